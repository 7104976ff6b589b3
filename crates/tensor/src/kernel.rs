//! Custom Metal and CUDA kernels as graph nodes. The text is a function *body*; MLX generates the signature around it
//! from the names (mlx/fast.cpp). `grid` counts threads, and CUDA rounds blocks up, so a CUDA body guards its bounds.

use crate::error::Result;
use crate::raw::{self, Array};
pub use crate::raw::{Launch, TemplateValue};

/// The text of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct KernelSource<'a> {
    /// Name of the generated function.
    pub name: &'a str,
    /// Names of the inputs in the body.
    pub inputs: &'a [&'a str],
    /// Names of the outputs in the body.
    pub outputs: &'a [&'a str],
    /// The body.
    pub body: &'a str,
    /// Text before the function: helpers, includes.
    pub header: &'a str,
    /// Copies inputs that are not row-contiguous before the launch.
    pub ensure_row_contiguous: bool,
}

impl<'a> KernelSource<'a> {
    fn raw(&self) -> raw::KernelSource<'a> {
        raw::KernelSource {
            name: self.name,
            inputs: self.inputs,
            outputs: self.outputs,
            body: self.body,
            header: self.header,
            ensure_row_contiguous: self.ensure_row_contiguous,
        }
    }
}

/// A kernel for Apple GPUs.
pub struct MetalKernel(raw::MetalKernel);

/// A kernel for NVIDIA GPUs.
pub struct CudaKernel(raw::CudaKernel);

/// Prepares a Metal kernel; it is compiled on first use.
///
/// # Errors
/// MLX's message where libmlx has no Metal.
#[track_caller]
pub fn metal_kernel(source: &KernelSource<'_>) -> Result<MetalKernel> {
    raw::MetalKernel::new(&source.raw()).map(MetalKernel)
}

/// Prepares a CUDA kernel with `shared_memory` bytes of dynamic shared memory; it is compiled on first use.
///
/// # Errors
/// MLX's message where libmlx has no CUDA.
#[track_caller]
pub fn cuda_kernel(source: &KernelSource<'_>, shared_memory: i32) -> Result<CudaKernel> {
    raw::CudaKernel::new(&source.raw(), shared_memory).map(CudaKernel)
}

impl MetalKernel {
    /// Adds a launch to the graph.
    ///
    /// # Errors
    /// MLX's refusal of inputs or a launch that do not fit.
    #[track_caller]
    pub fn apply(&self, inputs: &[&Array], launch: &Launch) -> Result<Vec<Array>> {
        self.0.apply(inputs, launch)
    }
}

impl CudaKernel {
    /// Adds a launch to the graph.
    ///
    /// # Errors
    /// MLX's refusal of inputs or a launch that do not fit.
    #[track_caller]
    pub fn apply(&self, inputs: &[&Array], launch: &Launch) -> Result<Vec<Array>> {
        self.0.apply(inputs, launch)
    }
}

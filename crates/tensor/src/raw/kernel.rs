//! Custom Metal and CUDA kernels.

use super::array::{Array, dtype_to_c};
use super::error_slot::{self, status, taken};
use super::handle::{VectorArray, VectorString, c_string, owned_handle};
use super::stream::current_raw;
use crate::Shape;
use crate::error::Result;
use strata_contracts::Dtype;
use strata_sys as sys;

/// A template parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateValue {
    /// A type.
    Dtype(Dtype),
    /// A number.
    Int(i32),
    /// A switch.
    Bool(bool),
}

/// Everything a launch needs beside its inputs.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    /// Shape and type of each output.
    pub outputs: Vec<(Shape, Dtype)>,
    /// Threads in all, per dimension.
    pub grid: [i32; 3],
    /// Threads of a group (Metal) or block (CUDA), per dimension.
    pub thread_group: [i32; 3],
    /// Template parameters by name.
    pub template: Vec<(&'static str, TemplateValue)>,
    /// Value that outputs start from; `None` leaves them as they are.
    pub initial: Option<f32>,
}

macro_rules! kernel {
    ($name:ident, $config:ident, $handle:ident, $free:ident, $config_handle:ident, $config_new:ident, $config_free:ident,
     $output:ident, $grid:ident, $group:ident, $init:ident, $t_dtype:ident, $t_int:ident, $t_bool:ident, $apply:ident,
     $what:literal) => {
        pub(crate) struct $name(sys::$handle);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: (1).
                unsafe { sys::$free(self.0) };
            }
        }

        owned_handle!(
            /// A launch on its way into a call.
            $config, $config_handle, $config_new, $config_free
        );

        impl $config {
            fn from_launch(launch: &Launch) -> Result<Self> {
                let config = Self::empty();
                for (shape, dtype) in &launch.outputs {
                    // SAFETY: (2).
                    status($what, unsafe {
                        sys::$output(config.0, shape.as_ptr(), shape.len(), dtype_to_c(*dtype))
                    })?;
                }
                let ([gx, gy, gz], [tx, ty, tz]) = (launch.grid, launch.thread_group);
                // SAFETY: (2).
                unsafe {
                    status($what, sys::$grid(config.0, gx, gy, gz))?;
                    status($what, sys::$group(config.0, tx, ty, tz))?;
                    if let Some(value) = launch.initial {
                        status($what, sys::$init(config.0, value))?;
                    }
                }
                for (name, value) in &launch.template {
                    let name = c_string(name)?;
                    // SAFETY: (2).
                    status($what, unsafe {
                        match *value {
                            TemplateValue::Dtype(d) => sys::$t_dtype(config.0, name.as_ptr(), dtype_to_c(d)),
                            TemplateValue::Int(i) => sys::$t_int(config.0, name.as_ptr(), i),
                            TemplateValue::Bool(b) => sys::$t_bool(config.0, name.as_ptr(), b),
                        }
                    })?;
                }
                Ok(config)
            }
        }

        impl $name {
            #[track_caller]
            pub(crate) fn apply(&self, inputs: &[&Array], launch: &Launch) -> Result<Vec<Array>> {
                let config = $config::from_launch(launch)?;
                let inputs = VectorArray::from_arrays(inputs.iter().copied());
                let mut out = VectorArray::empty();
                let stream = current_raw()?;
                // SAFETY: (2), (3).
                status($what, unsafe { sys::$apply(&raw mut out.0, self.0, inputs.0, config.0, stream) })?;
                out.to_arrays()
            }
        }
    };
}

kernel!(
    MetalKernel,
    MetalConfig,
    mlx_fast_metal_kernel,
    mlx_fast_metal_kernel_free,
    mlx_fast_metal_kernel_config,
    mlx_fast_metal_kernel_config_new,
    mlx_fast_metal_kernel_config_free,
    mlx_fast_metal_kernel_config_add_output_arg,
    mlx_fast_metal_kernel_config_set_grid,
    mlx_fast_metal_kernel_config_set_thread_group,
    mlx_fast_metal_kernel_config_set_init_value,
    mlx_fast_metal_kernel_config_add_template_arg_dtype,
    mlx_fast_metal_kernel_config_add_template_arg_int,
    mlx_fast_metal_kernel_config_add_template_arg_bool,
    mlx_fast_metal_kernel_apply,
    "metal_kernel"
);
kernel!(
    CudaKernel,
    CudaConfig,
    mlx_fast_cuda_kernel,
    mlx_fast_cuda_kernel_free,
    mlx_fast_cuda_kernel_config,
    mlx_fast_cuda_kernel_config_new,
    mlx_fast_cuda_kernel_config_free,
    mlx_fast_cuda_kernel_config_add_output_arg,
    mlx_fast_cuda_kernel_config_set_grid,
    mlx_fast_cuda_kernel_config_set_thread_group,
    mlx_fast_cuda_kernel_config_set_init_value,
    mlx_fast_cuda_kernel_config_add_template_arg_dtype,
    mlx_fast_cuda_kernel_config_add_template_arg_int,
    mlx_fast_cuda_kernel_config_add_template_arg_bool,
    mlx_fast_cuda_kernel_apply,
    "cuda_kernel"
);

/// Text of a kernel, common to both back ends.
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) inputs: &'a [&'a str],
    pub(crate) outputs: &'a [&'a str],
    pub(crate) body: &'a str,
    pub(crate) header: &'a str,
    pub(crate) ensure_row_contiguous: bool,
}

impl MetalKernel {
    #[track_caller]
    pub(crate) fn new(source: &Source<'_>) -> Result<Self> {
        error_slot::install();
        let (name, body, header) = (c_string(source.name)?, c_string(source.body)?, c_string(source.header)?);
        let inputs = VectorString::from_strings(source.inputs)?;
        let outputs = VectorString::from_strings(source.outputs)?;
        // SAFETY: (1), (2), (3); null when MLX has no Metal.
        let handle = unsafe {
            sys::mlx_fast_metal_kernel_new(
                name.as_ptr(),
                inputs.0,
                outputs.0,
                body.as_ptr(),
                header.as_ptr(),
                source.ensure_row_contiguous,
                false,
            )
        };
        if handle.ctx.is_null() { Err(taken("metal_kernel")) } else { Ok(Self(handle)) }
    }
}

impl CudaKernel {
    #[track_caller]
    pub(crate) fn new(source: &Source<'_>, shared_memory: i32) -> Result<Self> {
        error_slot::install();
        let (name, body, header) = (c_string(source.name)?, c_string(source.body)?, c_string(source.header)?);
        let inputs = VectorString::from_strings(source.inputs)?;
        let outputs = VectorString::from_strings(source.outputs)?;
        // SAFETY: (1), (2), (3); null when MLX has no CUDA.
        let handle = unsafe {
            sys::mlx_fast_cuda_kernel_new(
                name.as_ptr(),
                inputs.0,
                outputs.0,
                body.as_ptr(),
                header.as_ptr(),
                source.ensure_row_contiguous,
                shared_memory,
            )
        };
        if handle.ctx.is_null() { Err(taken("cuda_kernel")) } else { Ok(Self(handle)) }
    }
}

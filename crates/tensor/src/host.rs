//! Rust functions inside MLX's graph: what a host kernel is and what it sees.
//!
//! A kernel runs on MLX's CPU stream thread, so it is `Send + Sync` and sees plain memory, never arrays.
//!
//! A graph of kernels that is run again and again (a decode step) can be recorded as a [`Program`]: building and dispatching
//! a node costs MLX several microseconds, calling the next kernel of a program well below one.

pub use crate::raw::Program;
use crate::raw::{Array, Element};
use crate::{Result, Shape};
use smallvec::SmallVec;
use std::ffi::CStr;
use strata_contracts::Dtype;

/// Where an output's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// New memory; the kernel writes every element.
    Fresh,
    /// It starts with the content of this input, in place when nobody else needs the input. Shapes and types must
    /// be equal. The input's own view is empty while the kernel runs.
    TakesOver(usize),
}

/// Type and shape of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Element type.
    pub dtype: Dtype,
    /// Lengths of the dimensions.
    pub shape: Shape,
}

/// An operation written in Rust. Two equal kernels (`PartialEq`) must compute the same function: compiled graphs
/// merge them.
pub trait HostKernel: PartialEq + Send + Sync + 'static {
    /// Name in errors and graph dumps.
    const NAME: &'static CStr;
    /// The outputs, in order.
    const OUTPUTS: &'static [Output];

    /// Types and shapes of the outputs for these inputs; called once when the graph is built and again whenever a
    /// compiled graph meets new shapes.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the inputs.
    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String>;

    /// Computes the outputs.
    ///
    /// # Errors
    /// A sentence; it becomes the error of the evaluation that needed the outputs.
    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String>;
}

/// Adds a kernel to the graph.
///
/// # Errors
/// What [`HostKernel::outputs`] says of the inputs.
#[track_caller]
pub fn apply<K: HostKernel>(kernel: K, inputs: &[&Array]) -> Result<Vec<Array>> {
    crate::raw::apply_host_kernel(kernel, inputs)
}

/// What became of recording a graph ([`Program::record`]).
#[derive(Debug)]
pub enum Recorded {
    /// It is one.
    Program(Program),
    /// What lies on the way from inputs to outputs and is no host kernel.
    Obstacle(String),
}

/// An input as memory.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    dtype: Dtype,
    shape: &'a [i32],
    strides: &'a [i64],
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    pub(crate) fn new(dtype: Dtype, shape: &'a [i32], strides: &'a [i64], bytes: &'a [u8]) -> Self {
        Self { dtype, shape, strides, bytes }
    }

    pub(crate) fn forget_data(&mut self) {
        self.bytes = &[];
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Lengths of the dimensions.
    pub fn shape(&self) -> &'a [i32] {
        self.shape
    }

    /// Elements between neighbours along each dimension; never negative.
    pub fn strides(&self) -> &'a [i64] {
        self.strides
    }

    /// Number of elements.
    pub fn size(&self) -> usize {
        self.shape.iter().map(|&n| n as usize).product()
    }

    /// True when the elements lie in row-major order without gaps.
    pub fn is_row_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(self.strides).rev().all(|(&n, &stride)| {
            let fits = n == 1 || stride == expected;
            expected *= i64::from(n);
            fits
        })
    }

    /// The memory from the first element to the last; element `[i, j]` is at `i * strides[0] + j * strides[1]`.
    ///
    /// # Errors
    /// A sentence when the elements are not of type `T`.
    pub fn span<T: Element>(&self) -> Result<&'a [T], String> {
        check::<T>(self.dtype)?;
        bytemuck::try_cast_slice(self.bytes).map_err(|e| format!("an input is not aligned: {e}"))
    }

    /// All elements in row-major order.
    ///
    /// # Errors
    /// A sentence when they are not of type `T` or not contiguous.
    pub fn slice<T: Element>(&self) -> Result<&'a [T], String> {
        if self.is_row_contiguous() { self.span() } else { Err("an input is not contiguous".to_owned()) }
    }

    /// The bytes of [`View::span`].
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Copies the elements in row-major order.
    pub(crate) fn copy_to(&self, out: &mut [u8]) {
        if self.is_row_contiguous() {
            out.copy_from_slice(self.bytes);
            return;
        }
        let size = self.dtype.size();
        let mut index: SmallVec<[i32; 8]> = SmallVec::from_elem(0, self.shape.len());
        for target in out.chunks_exact_mut(size) {
            let at: i64 = index.iter().zip(self.strides).map(|(&i, &s)| i64::from(i) * s).sum();
            let at = at as usize * size;
            target.copy_from_slice(&self.bytes[at..at + size]);
            for (i, &n) in index.iter_mut().zip(self.shape).rev() {
                *i += 1;
                if *i < n {
                    break;
                }
                *i = 0;
            }
        }
    }
}

/// An output as memory, always row-contiguous.
#[derive(Debug)]
pub struct ViewMut<'a> {
    dtype: Dtype,
    shape: &'a [i32],
    bytes: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    pub(crate) fn new(dtype: Dtype, shape: &'a [i32], bytes: &'a mut [u8]) -> Self {
        Self { dtype, shape, bytes }
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Lengths of the dimensions.
    pub fn shape(&self) -> &'a [i32] {
        self.shape
    }

    /// All elements in row-major order.
    ///
    /// # Errors
    /// A sentence when the elements are not of type `T`.
    pub fn slice_mut<T: Element + bytemuck::NoUninit>(&mut self) -> Result<&mut [T], String> {
        check::<T>(self.dtype)?;
        bytemuck::try_cast_slice_mut(self.bytes).map_err(|e| format!("an output is not aligned: {e}"))
    }

    /// The bytes of all elements.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

fn check<T: Element>(dtype: Dtype) -> Result<(), String> {
    if T::DTYPE == dtype { Ok(()) } else { Err(format!("holds {dtype}, not {}", T::DTYPE)) }
}

//! MLX's operations, one thin function each; a file a kind.
//!
//! Operands broadcast as in NumPy and types promote as in MLX: `float16 + float32` is float32, and so is
//! `float16 + bfloat16`. Axes may be negative, counting from the last. Every function is lazy and fails with
//! [`Error::Mlx`](crate::Error::Mlx) when MLX refuses shapes or types.

mod arithmetic;
mod create;
mod index;
mod matmul;
mod quant;
mod reduce;
mod shape;
mod sort;

pub(crate) use arithmetic::astype;
pub use arithmetic::where_;
pub use create::{arange, full, ones, tri, zeros};
pub use index::{scatter, scatter_add};
pub use matmul::{addmm, conv1d, gather_mm};
pub use quant::{Quantized, dequantize, gather_qmm, quantize, quantized_matmul};
pub use shape::{concatenate, stack};

use crate::error::Result;
use crate::raw::{self, Array};

/// Computes all of `arrays` and waits.
///
/// # Errors
/// The first failure of anything they need.
#[track_caller]
pub fn eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    raw::eval(arrays, true)
}

/// Names of the primitives that evaluating `arrays` would run, in no order: what a step costs the host.
///
/// # Errors
/// What MLX reports.
///
/// ```
/// use strata_tensor::{Array, ops};
/// let x = Array::from_f32(2.0);
/// let mut names = ops::graph_names([&x.add(&x)?.exp()?])?;
/// names.sort();
/// assert_eq!(names, ["Add", "Exp"]);
/// # Ok::<(), strata_tensor::Error>(())
/// ```
#[track_caller]
pub fn graph_names<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<Vec<String>> {
    raw::graph_names(arrays)
}

/// Queues the computation of all of `arrays` and returns.
///
/// # Errors
/// Failures found while queueing; later ones show when a value is read.
#[track_caller]
pub fn async_eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    raw::eval(arrays, false)
}

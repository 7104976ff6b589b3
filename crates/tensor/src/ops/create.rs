//! New arrays.

use crate::error::Result;
use crate::raw::{self, Array};
use crate::shape::Shape;
use strata_contracts::Dtype;

/// Zeros.
///
/// # Errors
/// MLX's refusal of a negative length.
#[track_caller]
pub fn zeros(shape: impl Into<Shape>, dtype: Dtype) -> Result<Array> {
    raw::mlx_zeros(&shape.into(), dtype)
}

/// Ones.
///
/// # Errors
/// MLX's refusal of a negative length.
#[track_caller]
pub fn ones(shape: impl Into<Shape>, dtype: Dtype) -> Result<Array> {
    raw::mlx_full(&shape.into(), &Array::from_f32(1.0), dtype)
}

/// `value` (broadcast to `shape`) in every place.
///
/// # Errors
/// MLX's refusal of a negative length or a value that does not broadcast.
#[track_caller]
pub fn full(shape: impl Into<Shape>, value: &Array, dtype: Dtype) -> Result<Array> {
    raw::mlx_full(&shape.into(), value, dtype)
}

/// `start, start + step, …` below `stop`; shape `[ceil((stop - start) / step)]`.
///
/// # Errors
/// MLX's refusal of NaN, infinity or too many elements.
#[track_caller]
pub fn arange(start: f64, stop: f64, step: f64, dtype: Dtype) -> Result<Array> {
    raw::mlx_arange(start, stop, step, dtype)
}

/// `[n, m]`: ones at and below diagonal `k`, zeros above.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) for a negative length.
#[track_caller]
pub fn tri(n: i32, m: i32, k: i32, dtype: Dtype) -> Result<Array> {
    // MLX takes a negative length for a huge one.
    Shape::from([n, m]).elements()?;
    raw::mlx_tri(n, m, k, dtype)
}

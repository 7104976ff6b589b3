//! Root-mean-square normalisation in tensor operations: what mlx-lm runs.

use super::Overflow;
use strata_tensor::{Array, Dtype, Result, fast};

/// MLX's own normalisation.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array> {
    fast::rms_norm(x, weight, eps)
}

/// `residual + rms_norm(x)`; a clipped sum is made in float32, as mlx-lm's `clip_residual` does.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn rms_norm_onto(
    residual: &Array,
    x: &Array,
    weight: Option<&Array>,
    eps: f32,
    overflow: Overflow,
) -> Result<Array> {
    let y = rms_norm(x, weight, eps)?;
    if overflow != Overflow::Clip || x.dtype() != Dtype::Float16 {
        return residual.add(&y);
    }
    let bound = Array::from_f32(half::f16::MAX.to_f32());
    let sum = residual.astype(Dtype::Float32)?.add(&y.astype(Dtype::Float32)?)?;
    sum.clip(Some(&bound.negative()?), Some(&bound))?.astype(Dtype::Float16)
}

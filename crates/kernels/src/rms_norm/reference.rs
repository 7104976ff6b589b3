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

/// `(x + residual, rms_norm(x + residual))`; a clipped sum is made in float32, as mlx-lm's `clip_residual` does.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn add_rms_norm(
    x: &Array,
    residual: &Array,
    weight: Option<&Array>,
    eps: f32,
    overflow: Overflow,
) -> Result<(Array, Array)> {
    let sum = if overflow == Overflow::Clip && x.dtype() == Dtype::Float16 {
        let bound = Array::from_f32(half::f16::MAX.to_f32());
        let sum = x.astype(Dtype::Float32)?.add(&residual.astype(Dtype::Float32)?)?;
        sum.clip(Some(&bound.negative()?), Some(&bound))?.astype(Dtype::Float16)?
    } else {
        x.add(residual)?
    };
    let normalized = rms_norm(&sum, weight, eps)?;
    Ok((sum, normalized))
}

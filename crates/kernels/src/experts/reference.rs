//! The same in tensor operations, in mlx-lm's order (`models/qwen3_moe.py`), but for the order of the chosen.

use strata_tensor::{Array, Result};

/// As [`route`](super::route).
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn route(logits: &Array, k: usize, normalised: bool) -> Result<(Array, Array)> {
    let shares = logits.softmax(-1, true)?;
    let order = logits.multiply_number(-1.0)?.argsort(-1)?;
    let chosen = order.slice_axis(-1, 0, k as i32)?;
    let shares = shares.take_along_axis(&chosen, -1)?;
    let shares = if normalised { shares.divide(&shares.sum(-1, true)?)? } else { shares };
    Ok((chosen, shares))
}

/// As [`combine`](super::combine).
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn combine(residual: &Array, said: &Array, shares: &Array) -> Result<Array> {
    residual.add(&said.multiply(&shares.expand_dims(&[-1])?)?.sum(-2, false)?)
}

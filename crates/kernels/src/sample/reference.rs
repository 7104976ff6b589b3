//! Picking from logits in tensor operations.

use strata_tensor::{Array, Dtype, Result};

/// Index of each row's largest value.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn argmax(logits: &Array) -> Result<Array> {
    logits.argmax(-1, false)
}

/// Values and indices of each row's `k` largest, descending; of equal values the lowest index comes first.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn top_k(logits: &Array, k: usize) -> Result<(Array, Array)> {
    // MLX's sort is stable, so the order of the negated values is the one wanted.
    let order = logits.negative()?.argsort(-1)?;
    let indices = order.slice_axis(-1, 0, i32::try_from(k).unwrap_or(i32::MAX))?.astype(Dtype::Uint32)?;
    Ok((logits.take_along_axis(&indices, -1)?, indices))
}

//! Picking from logits in tensor operations.

use super::Draw;
use strata_tensor::{Array, Dtype, Result, ops};

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

/// An index of each row, drawn by `uniform`.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn draw(logits: &Array, uniform: &Array, options: Draw) -> Result<Array> {
    let distances =
        logits.astype(Dtype::Float32)?.subtract(&logits.astype(Dtype::Float32)?.max(-1, true)?)?;
    let weights = distances.exp()?;
    let sorted = weights.negative()?.sort(-1)?.negative()?;
    let width = logits.dim(-1);
    let mut floor = Array::from_f32(options.min_p);
    if options.top_p < 1.0 {
        // The first place at which the sum of the largest reaches its goal.
        let sums = sorted.cumsum(-1, false, true)?;
        let goal = weights.sum(-1, true)?.multiply_number(options.top_p)?;
        let place = sums.less(&goal)?.astype(Dtype::Int32)?.sum(-1, true)?;
        let place = place.minimum(&Array::from_i32(width - 1))?;
        floor = floor.maximum(&sorted.take_along_axis(&place, -1)?)?;
    }
    if options.top_k > 0 && options.top_k < width as u32 {
        let place = options.top_k as i32 - 1;
        floor = floor.maximum(&sorted.slice_axis(-1, place, place + 1)?)?;
    }
    let tempered = distances.multiply_number(1.0 / options.temperature)?.exp()?;
    let kept = ops::where_(&weights.less(&floor)?, &Array::from_f32(0.0), &tempered)?;
    let sums = kept.cumsum(-1, false, true)?;
    let goal = kept.sum(-1, true)?.multiply(&uniform.expand_dims(&[-1])?)?;
    sums.less_equal(&goal)?.astype(Dtype::Uint32)?.sum(-1, false)
}

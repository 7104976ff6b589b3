//! `y = x W` in tensor operations.

use super::Weight;
use strata_tensor::{Array, Result, ops};

/// As [`matmul`](super::matmul).
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn matmul(x: &Array, weight: Weight<'_>) -> Result<Array> {
    match weight {
        Weight::Plain(weight) => x.matmul(weight),
        Weight::Quantized(weight) => ops::quantized_matmul(x, weight, false),
    }
}

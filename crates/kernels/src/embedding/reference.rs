//! The lookup in tensor operations: rows are taken packed, then dequantized.

use strata_tensor::ops::{self, Quantized};
use strata_tensor::{Array, Result};

/// As [`embedding`](super::embedding).
///
/// # Errors
/// What MLX reports of operands that do not fit.
#[track_caller]
pub fn embedding(table: &Quantized, ids: &Array) -> Result<Array> {
    let take = |x: &Array| x.take(ids, 0);
    let rows = Quantized {
        weight: take(&table.weight)?,
        scales: take(&table.scales)?,
        biases: table.biases.as_ref().map(take).transpose()?,
        scheme: table.scheme,
    };
    ops::dequantize(&rows, None)
}

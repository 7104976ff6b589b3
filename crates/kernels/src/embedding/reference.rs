//! The lookup in tensor operations: rows are taken, dequantized if they are packed, and multiplied.

use super::{Options, Table};
use crate::linear::no_operation;
use strata_contracts::Dtype;
use strata_tensor::ops::{self, Quantized};
use strata_tensor::{Array, Result};

/// As [`embedding`](super::embedding).
///
/// # Errors
/// What MLX reports of operands that do not fit; packed tables.
#[track_caller]
pub fn embedding(table: Table<'_>, ids: &Array, options: Options) -> Result<Array> {
    let take = |x: &Array| x.take(ids, 0);
    let wide = |x: &Array| x.astype(Dtype::Float32);
    let rows = match table {
        Table::Plain(table) => wide(&take(table)?)?,
        Table::Quantized(table) => {
            let rows = Quantized {
                weight: take(&table.weight)?,
                scales: wide(&take(&table.scales)?)?,
                biases: table.biases.as_ref().map(|x| wide(&take(x)?)).transpose()?,
                scheme: table.scheme,
            };
            ops::dequantize(&rows, None)?
        }
        Table::Packed(_) => return Err(no_operation("embedding")),
    };
    rows.multiply_number(options.factor)?.astype(options.dtype)
}

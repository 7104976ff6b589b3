//! Rows of a quantized table: `y[i] = scales * q[ids[i]] + biases`, in the type of the scales.
//!
//! Shapes: `ids [...]` (uint32 or int32), the table `[V, K]` as in [`quantized_matmul`](crate::quantized_matmul),
//! `y [..., K]`. One float32 rounding, then one to the output type.

pub mod host;
mod node;
pub mod reference;

use strata_tensor::ops::Quantized;
use strata_tensor::{Array, Result};

/// Looks up rows with the host kernel.
///
/// # Errors
/// A mode other than affine or ids of another type; when it is computed, an id outside the table.
#[track_caller]
pub fn embedding(table: &Quantized, ids: &Array) -> Result<Array> {
    node::apply(table, ids)
}

//! Rows of a table: `y[i] = factor * W[ids[i]]`.
//!
//! Shapes: `ids [...]` (uint32 or int32), the table `[V, K]`, plain, affine-quantized as in
//! [`quantized_matmul`](crate::quantized_matmul), or packed for products ([`linear`](crate::linear)), so that a table that is
//! the output head as well is held once; `y [..., K]` in the type asked for. All arithmetic is in float32, rounded
//! once; without a factor a row of the table's own type is copied as it is.

pub mod host;
mod node;
pub mod reference;

use crate::linear::Packed;
use strata_contracts::Dtype;
use strata_tensor::ops::Quantized;
use strata_tensor::{Array, Result};

/// What rows are looked up in.
#[derive(Debug, Clone, Copy)]
pub enum Table<'a> {
    /// `[V, K]` of float32, float16 or bfloat16.
    Plain(&'a Array),
    /// Affine-quantized.
    Quantized(&'a Quantized),
    /// Affine-quantized, packed for this machine.
    Packed(&'a Packed),
}

/// What becomes of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Type of the result: float32, float16 or bfloat16.
    pub dtype: Dtype,
    /// Factor on every value.
    pub factor: f32,
}

/// Looks up rows with the host kernel.
///
/// # Errors
/// A mode other than affine, ids or a result of another type; when it is computed, an id outside the table.
#[track_caller]
pub fn embedding(table: Table<'_>, ids: &Array, options: Options) -> Result<Array> {
    node::apply(table, ids, options)
}

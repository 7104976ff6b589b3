//! Rotary embedding in tensor operations: MLX's own.

use crate::Offset;
use strata_tensor::{Array, Result, fast};

/// Rotates `x` `[B, H, L, D]`.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn rope(x: &Array, rope: &fast::Rope, offset: Offset<'_>) -> Result<Array> {
    match offset {
        Offset::At(offset) => fast::rope(x, rope, offset),
        Offset::Array(offset) => fast::rope_dynamic(x, rope, offset),
    }
}

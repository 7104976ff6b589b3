//! Appending in tensor operations: an update of each buffer.

use crate::Offset;
use strata_tensor::{Array, Result};

/// As [`super::append`], for any number of buffers.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn append(buffers: &[Array], new: &[Array], start: Offset<'_>) -> Result<Vec<Array>> {
    let pairs = buffers.iter().zip(new);
    pairs
        .map(|(buffer, new)| match start {
            Offset::At(start) => buffer.slice_update_axis(new, 2, start, start + new.dim(2)),
            Offset::Array(start) => buffer.slice_update_dynamic(new, &start.reshape([1])?, &[2]),
        })
        .collect()
}

//! Appending in tensor operations: an update of each buffer.

use strata_tensor::{Array, Result};

/// As [`super::append`], for any number of buffers.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn append(buffers: &[Array], new: &[Array], start: usize) -> Result<Vec<Array>> {
    let pairs = buffers.iter().zip(new);
    pairs
        .map(|(buffer, new)| {
            buffer.slice_update_axis(new, 2, start as i32, (start + new.dim(2) as usize) as i32)
        })
        .collect()
}

//! Layer normalisation in tensor operations.

use strata_tensor::{Array, Result, fast};

/// MLX's own normalisation.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Result<Array> {
    fast::layer_norm(x, weight, bias, eps)
}

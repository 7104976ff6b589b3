//! MLX's own.

use strata_contracts::QuantScheme;
use strata_tensor::ops::{self, Quantized};
use strata_tensor::{Array, Result};

/// Quantizes the rows of `x`.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn quantize(x: &Array, scheme: QuantScheme) -> Result<Quantized> {
    ops::quantize(x, scheme)
}

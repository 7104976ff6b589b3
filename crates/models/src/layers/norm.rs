//! RMS normalisation (arXiv 1910.07467).

use crate::error::Result;
use crate::weights::Source;
use strata_kernels::rms_norm::{self, Overflow};
use strata_tensor::{Array, fast};

/// `x / sqrt(mean(x²) + eps) · weight`.
pub(crate) struct RmsNorm {
    weight: Array,
    eps: f32,
    host: bool,
}

impl RmsNorm {
    /// Takes `PATH.weight` `[size]`.
    pub(crate) fn load(source: &Source<'_>, path: &str, size: i32, eps: f32) -> Result<Self> {
        let weight = source.tensor(&format!("{path}.weight"), &[size])?;
        Ok(Self { weight, eps, host: source.host_kernels() })
    }

    /// As [`RmsNorm::load`] where the file holds the gain's distance from 1; the sum is taken in the file's type.
    pub(crate) fn load_from_one(source: &Source<'_>, path: &str, size: i32, eps: f32) -> Result<Self> {
        let norm = Self::load(source, path, size, eps)?;
        Ok(Self { weight: norm.weight.add_number(1.0)?, ..norm })
    }

    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        if self.host {
            return Ok(rms_norm::rms_norm(x, Some(&self.weight), self.eps)?);
        }
        Ok(fast::rms_norm(x, Some(&self.weight), self.eps)?)
    }

    /// `residual + forward(x)` by the host kernel; `None` where it does not run.
    pub(crate) fn host_onto(&self, residual: &Array, x: &Array, overflow: Overflow) -> Result<Option<Array>> {
        if !self.host || residual.dtype() != x.dtype() {
            return Ok(None);
        }
        Ok(Some(rms_norm::rms_norm_onto(residual, x, Some(&self.weight), self.eps, overflow)?))
    }

    /// `residual + forward(x)`.
    pub(crate) fn forward_onto(&self, residual: &Array, x: &Array) -> Result<Array> {
        match self.host_onto(residual, x, Overflow::Infinite)? {
            Some(sum) => Ok(sum),
            None => Ok(residual.add(&self.forward(x)?)?),
        }
    }

    /// The host kernel's operands.
    pub(crate) fn host(&self) -> strata_kernels::linear::Norm<'_> {
        strata_kernels::linear::Norm { weight: Some(&self.weight), shift: 0.0, eps: self.eps }
    }

    pub(crate) fn eps(&self) -> f32 {
        self.eps
    }

    pub(crate) fn weight(&self) -> &Array {
        &self.weight
    }
}

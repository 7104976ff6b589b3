//! Linear layers: `y = x Wᵀ + b`, the weight plain or quantized.

use crate::error::Result;
use crate::weights::{Matrix, Source};
use strata_tensor::Array;
use strata_tensor::ops::{self, Quantized};

/// A linear layer `[…, K] -> […, N]`.
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Array>,
}

/// The matrix in the form that products read.
enum Weight {
    /// `[K, N]`: a transposed view of what the file holds.
    Dense(Array),
    /// Packed rows `[N, K]`.
    Quantized(Quantized),
}

impl Linear {
    /// Takes `PATH.weight` and, if `bias`, `PATH.bias`.
    pub(crate) fn load(
        source: &Source<'_>,
        path: &str,
        outputs: i32,
        inputs: i32,
        bias: bool,
    ) -> Result<Self> {
        let weight = match source.matrix(path, outputs, inputs)? {
            Matrix::Dense(w) => Weight::Dense(w.transpose(&[1, 0])?),
            Matrix::Quantized(q) => Weight::Quantized(q),
        };
        let bias = bias.then(|| source.tensor(&format!("{path}.bias"), &[outputs])).transpose()?;
        Ok(Self { weight, bias })
    }

    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        Ok(match (&self.weight, &self.bias) {
            (Weight::Dense(w), None) => x.matmul(w)?,
            (Weight::Dense(w), Some(bias)) => ops::addmm(bias, x, w, 1.0, 1.0)?,
            (Weight::Quantized(q), None) => ops::quantized_matmul(x, q, true)?,
            (Weight::Quantized(q), Some(bias)) => ops::quantized_matmul(x, q, true)?.add(bias)?,
        })
    }

    pub(crate) fn weights(&self) -> impl Iterator<Item = &Array> {
        let parts = match &self.weight {
            Weight::Dense(w) => [Some(w), None, None],
            Weight::Quantized(q) => [Some(&q.weight), Some(&q.scales), q.biases.as_ref()],
        };
        parts.into_iter().flatten().chain(&self.bias)
    }
}

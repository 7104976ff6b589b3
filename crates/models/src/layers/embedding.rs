//! The embedding table, and its second use as the output head.

use super::linear::Linear;
use crate::error::Result;
use crate::graph::bytes;
use crate::weights::{Matrix, Source};
use std::cell::OnceCell;
use strata_contracts::{Dtype, QuantMode};
use strata_kernels::embedding::{Options, Table, embedding};
use strata_tensor::Array;
use strata_tensor::ops::{self, Quantized};

/// Types that the host kernel reads and gives.
const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// A table `[V, E]`.
pub(crate) struct Embedding {
    table: Matrix,
    /// The table as a tied head, made at its first use.
    head: OnceCell<Linear>,
    /// Factor on what is looked up, though not on the head.
    factor: Option<f32>,
    host: bool,
    /// Type of the vectors, where the composition fixes it.
    activations: Option<Dtype>,
}

impl Embedding {
    /// Takes `PATH.weight`.
    pub(crate) fn load(source: &Source<'_>, path: &str, rows: i32, columns: i32) -> Result<Self> {
        Ok(Self {
            table: source.matrix(path, rows, columns)?,
            head: OnceCell::new(),
            factor: None,
            host: source.host_kernels(),
            activations: source.activations(),
        })
    }

    /// With a factor on every vector.
    pub(crate) fn times(self, factor: f32) -> Self {
        Self { factor: Some(factor), ..self }
    }

    /// int32 ids `[B, L]` -> `[B, L, E]`. Quantized rows are gathered first, then dequantized.
    pub(crate) fn forward(&self, ids: &Array) -> Result<Array> {
        if let Some(vectors) = self.on_host(ids)? {
            return Ok(vectors);
        }
        let vectors = match &self.table {
            Matrix::Dense(table) => table.take(ids, 0)?,
            Matrix::Quantized(q) => {
                let rows = Quantized {
                    weight: q.weight.take(ids, 0)?,
                    scales: q.scales.take(ids, 0)?,
                    biases: q.biases.as_ref().map(|b| b.take(ids, 0)).transpose()?,
                    scheme: q.scheme,
                };
                ops::dequantize(&rows, None)?
            }
        };
        let vectors = match self.activations {
            Some(dtype) => vectors.astype(dtype)?,
            None => vectors,
        };
        Ok(match self.factor {
            Some(factor) => vectors.multiply_number(factor)?,
            None => vectors,
        })
    }

    /// By the host kernel, where it runs and reads the table.
    fn on_host(&self, ids: &Array) -> Result<Option<Array>> {
        let (table, stored) = match &self.table {
            Matrix::Dense(table) => (Table::Plain(table), table.dtype()),
            Matrix::Quantized(q) if q.scheme.mode() == QuantMode::Affine => {
                (Table::Quantized(q), q.scales.dtype())
            }
            Matrix::Quantized(_) => return Ok(None),
        };
        let dtype = self.activations.unwrap_or(stored);
        if !self.host || ![dtype, stored].iter().all(|d| FLOATS.contains(d)) {
            return Ok(None);
        }
        let options = Options { dtype, factor: self.factor.unwrap_or(1.0) };
        Ok(Some(embedding(table, ids, options)?))
    }

    /// The table as a tied head: `[B, L, E] -> [B, L, V]`.
    pub(crate) fn as_linear(&self) -> Result<&Linear> {
        if self.head.get().is_none() {
            // Nobody else can have set it: the cell is not shared between threads.
            let _ = self.head.set(Linear::of(self.table.clone(), None, self.host)?);
        }
        Ok(self.head.get().expect("was just set"))
    }

    /// Bytes of the table as a tied head.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head.get().map_or_else(|| bytes(self.weights()), |head| bytes(head.weights()))
    }

    pub(crate) fn weights(&self) -> impl Iterator<Item = &Array> {
        let parts = match &self.table {
            Matrix::Dense(w) => [Some(w), None, None],
            Matrix::Quantized(q) => [Some(&q.weight), Some(&q.scales), q.biases.as_ref()],
        };
        parts.into_iter().flatten()
    }
}

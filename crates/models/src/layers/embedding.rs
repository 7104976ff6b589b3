//! The embedding table, and its second use as the output head.

use super::linear::{Linear, Weight};
use crate::error::Result;
use crate::weights::Source;
use strata_contracts::Dtype;
use strata_kernels::embedding::{Options, Table, embedding};
use strata_tensor::Array;
use strata_tensor::ops::{self, Quantized};

/// A table `[V, E]`.
pub(crate) struct Embedding {
    /// The table as the head that it may be as well: one matrix serves both.
    table: Linear,
    /// Factor on what is looked up, though not on the head.
    factor: Option<f32>,
    /// Type of the vectors, where the composition fixes it.
    activations: Option<Dtype>,
}

impl Embedding {
    /// Takes `PATH.weight`.
    pub(crate) fn load(source: &Source<'_>, path: &str, rows: i32, columns: i32) -> Result<Self> {
        let table = Linear::load(source, path, rows, columns, false)?;
        Ok(Self { table, factor: None, activations: source.activations() })
    }

    /// With a factor on every vector.
    pub(crate) fn times(self, factor: f32) -> Self {
        Self { factor: Some(factor), ..self }
    }

    /// int32 ids `[B, L]` -> `[B, L, E]`. Quantized rows are gathered first, then dequantized.
    pub(crate) fn forward(&self, ids: &Array) -> Result<Array> {
        let vectors = match self.table.weight() {
            Weight::HostDense(table) => return self.by_host(Table::Plain(table), table.dtype(), ids),
            Weight::HostPacked(table) => {
                return self.by_host(Table::Packed(table), table.scales.dtype(), ids);
            }
            Weight::Dense(transposed) => transposed.swapaxes(-1, -2)?.take(ids, 0)?,
            Weight::Quantized(q) => {
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

    fn by_host(&self, table: Table<'_>, stored: Dtype, ids: &Array) -> Result<Array> {
        let dtype = self.activations.unwrap_or(stored);
        Ok(embedding(table, ids, Options { dtype, factor: self.factor.unwrap_or(1.0) })?)
    }

    /// The table as a tied head: `[B, L, E] -> [B, L, V]`.
    pub(crate) fn as_linear(&self) -> &Linear {
        &self.table
    }

    pub(crate) fn weights(&self) -> impl Iterator<Item = &Array> {
        self.table.weights()
    }
}

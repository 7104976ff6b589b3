//! The output head: a matrix of its own, or the embedding table.

use super::embedding::Embedding;
use super::linear::Linear;
use crate::error::Result;
use crate::graph::bytes;
use crate::weights::Source;
use strata_tensor::Array;

/// Hidden states `[B, L, E]` -> logits `[B, L, V]`.
pub(crate) struct Head {
    /// `None` is the embedding table.
    own: Option<Linear>,
    /// Logits `x` become `cap · tanh(x / cap)`.
    cap: Option<f32>,
}

impl Head {
    /// Takes `lm_head.weight`; a tied head drops it, as some checkpoints hold the table twice.
    pub(crate) fn load(source: &Source<'_>, tied: bool, vocab: i32, hidden: i32) -> Result<Self> {
        if tied {
            source.discard_module("lm_head");
            return Ok(Self { own: None, cap: None });
        }
        Ok(Self { own: Some(Linear::load(source, "lm_head", vocab, hidden, false)?), cap: None })
    }

    /// With logits held between `-cap` and `cap`.
    pub(crate) fn soft_capped(self, cap: f32) -> Self {
        Self { cap: Some(cap), ..self }
    }

    pub(crate) fn forward(&self, hidden: &Array, table: &Embedding) -> Result<Array> {
        let head = self.of(table);
        match self.cap {
            Some(cap) => head.forward_soft_capped(hidden, cap),
            None => head.forward(hidden),
        }
    }

    /// Bytes of the matrix.
    pub(crate) fn bytes(&self, table: &Embedding) -> usize {
        bytes(self.of(table).weights())
    }

    fn of<'a>(&'a self, table: &'a Embedding) -> &'a Linear {
        self.own.as_ref().unwrap_or_else(|| table.as_linear())
    }

    pub(crate) fn weights(&self) -> impl Iterator<Item = &Array> {
        self.own.iter().flat_map(Linear::weights)
    }
}

//! A stack of blocks between an embedding table and an output head: the graph of every family that is nothing else.

use super::embedding::Embedding;
use super::head::Head;
use super::norm::RmsNorm;
use crate::error::Result;
use crate::graph::{Graph, bytes};
use strata_contracts::GraphDeclaration;
use strata_state::{LayerState, Phase, Positions, State};
use strata_tensor::Array;

/// The whole graph.
pub(crate) struct Decoder<B> {
    pub(crate) declaration: GraphDeclaration,
    pub(crate) embed_tokens: Embedding,
    pub(crate) layers: Vec<B>,
    pub(crate) norm: RmsNorm,
    pub(crate) lm_head: Head,
}

/// One layer of it.
pub(crate) trait Block {
    /// `[B, L, E]` -> `[B, L, E]`.
    fn forward(
        &self,
        x: &Array,
        state: &mut LayerState,
        positions: &Positions,
        phase: Phase,
    ) -> Result<Array>;

    fn weights(&self) -> Vec<&Array>;

    /// Bytes of weights that a step of so many rows reads at most.
    fn step_bytes(&self, _rows: usize) -> usize {
        bytes(self.weights())
    }
}

impl<B: Block> Graph for Decoder<B> {
    fn declaration(&self) -> &GraphDeclaration {
        &self.declaration
    }

    fn hidden(&self, tokens: &Array, state: &mut State, phase: Phase) -> Result<Array> {
        let positions = state.positions();
        let mut h = self.embed_tokens.forward(tokens)?; // [B, L] -> [B, L, E]
        for (index, layer) in self.layers.iter().enumerate() {
            h = layer.forward(&h, state.layer(index), &positions, phase)?;
        }
        state.advance(tokens.dim(1) as usize);
        self.norm.forward(&h)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.lm_head.forward(hidden, &self.embed_tokens)
    }

    fn weights(&self) -> Vec<&Array> {
        let mut all: Vec<&Array> = self.embed_tokens.weights().collect();
        all.extend(self.layers.iter().flat_map(Block::weights));
        all.push(self.norm.weight());
        all.extend(self.lm_head.weights());
        all
    }

    fn step_bytes(&self, rows: usize) -> usize {
        let layers: usize = self.layers.iter().map(|layer| layer.step_bytes(rows)).sum();
        layers + self.norm.weight().nbytes() + self.lm_head.bytes(&self.embed_tokens)
    }
}

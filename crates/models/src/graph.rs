//! What every family's graph offers.

use crate::error::Result;
use strata_contracts::GraphDeclaration;
use strata_state::{Phase, State};
use strata_tensor::Array;

/// A bound graph: weights and the order of operations. Like arrays, it stays on its thread.
pub trait Graph {
    /// What the graph says of itself.
    fn declaration(&self) -> &GraphDeclaration;

    /// Reads token ids int32 `[B, L]` at the state's positions, appends them to the state, and gives the normed hidden
    /// states `[B, L, E]`. Ids are not checked here: whoever takes them from outside does
    /// (`GraphDeclaration::vocab_size`).
    ///
    /// # Errors
    /// What MLX or the state reports; the state must then be dropped or rolled back.
    fn hidden(&self, tokens: &Array, state: &mut State, phase: Phase) -> Result<Array>;

    /// Logits `[B, L, V]` of hidden states.
    ///
    /// # Errors
    /// What MLX reports.
    fn logits(&self, hidden: &Array) -> Result<Array>;

    /// All weights, for evaluating them together and counting their bytes.
    fn weights(&self) -> Vec<&Array>;

    /// Bytes of weights that a decode step of `rows` rows reads at most: all but the table's rows that are not looked up, and the
    /// experts that are not chosen.
    fn step_bytes(&self, rows: usize) -> usize;
}

/// Bytes of arrays together.
pub(crate) fn bytes<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> usize {
    arrays.into_iter().map(Array::nbytes).sum()
}

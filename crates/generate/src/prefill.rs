//! Reading a prompt: checked, then in chunks, so that memory for activations stays bounded.

use crate::error::{Error, Result};
use strata_contracts::GraphDeclaration;
use strata_models::Graph;
use strata_state::{Phase, State};
use strata_tensor::{Array, eval};

/// Checks a prompt against a graph: it has tokens, they are in the vocabulary, and behind the `held` positions that
/// the state has they fit into the context.
///
/// # Errors
/// [`Error::EmptyPrompt`], [`Error::TokenRange`], [`Error::ContextLength`].
pub fn check_prompt(declaration: &GraphDeclaration, prompt: &[u32], held: usize) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let vocab_size = declaration.vocab_size;
    if let Some(position) = prompt.iter().position(|&id| id >= vocab_size) {
        return Err(Error::TokenRange { id: prompt[position], position, vocab_size });
    }
    let context_length = declaration.context_length;
    if held.saturating_add(prompt.len()) > context_length as usize {
        return Err(Error::ContextLength { tokens: prompt.len(), held, context_length });
    }
    Ok(())
}

/// Reads `prompt`, which has been checked, into the state, `step` tokens a forward pass.
///
/// # Errors
/// What the graph reports.
pub fn prefill(graph: &dyn Graph, state: &mut State, prompt: &[u32], step: usize) -> Result<()> {
    for chunk in prompt.chunks(step.max(1)) {
        let phase = if chunk.len() == 1 { Phase::Decode } else { Phase::Window };
        graph.hidden(&row(chunk)?, state, phase)?;
        eval(state.arrays())?;
    }
    Ok(())
}

/// One row of ids, int32 `[1, L]`.
pub(crate) fn row(ids: &[u32]) -> Result<Array> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    Ok(Array::from_slice(&ids, [1, ids.len() as i32])?)
}

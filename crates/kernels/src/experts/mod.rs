//! Mixtures of experts around their matrices: which experts a token goes to, and the sum of what they say. The products are
//! [`crate::linear`]'s, with experts.
//!
//! # Contract
//! `route` takes logits `[..., X]` and gives the `k` largest of each row in descending order: their indices, uint32
//! `[..., k]`, and their shares of the row's softmax, `[..., k]` in the logits' type; *normalised* shares are of the softmax
//! over the chosen alone. Of equal logits the lower index comes first; NaN orders below every number and makes the shares of
//! its row NaN. (Qwen 3, arXiv 2505.09388; mlx-lm `models/qwen3_moe.py`.)
//!
//! `combine` takes what was said `[..., k, E]`, shares `[..., k]` and a residual `[..., E]` and gives
//! `residual + sum over k (share * said)`.
//!
//! float32, float16 or bfloat16, one type throughout, float32 arithmetic, rounded once.

pub mod host;
mod node;
pub mod reference;

use strata_tensor::host::apply;
use strata_tensor::{Array, Result};

/// The `k` experts of each row, uint32 `[..., k]`, and their shares, with the host kernel.
///
/// # Errors
/// `k` of 0 or more than `X`, or a type that is not one of the contract's.
#[track_caller]
pub fn route(logits: &Array, k: usize, normalised: bool) -> Result<(Array, Array)> {
    let mut outputs = apply(node::Route { k, normalised }, &[logits])?;
    let shares = outputs.remove(1);
    Ok((outputs.remove(0), shares))
}

/// `residual + sum over k (shares * said)`, with the host kernel.
///
/// # Errors
/// Operands that do not fit each other, or a type that is not one of the contract's.
#[track_caller]
pub fn combine(residual: &Array, said: &Array, shares: &Array) -> Result<Array> {
    Ok(apply(node::Combine, &[residual, said, shares])?.remove(0))
}

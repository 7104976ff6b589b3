//! Gated feed-forward activation: `y = act(gate) * up`.
//!
//! # Contract
//! `gate` and `up` are rows of one width, each at a stride of its own (they may be the two halves of one projection); the
//! result is contiguous. One type throughout (float32, float16 or bfloat16), float32 arithmetic, rounded once.

pub mod host;
mod node;
pub mod reference;

use strata_tensor::host::apply;
use strata_tensor::{Array, Result};

/// The function of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`: SwiGLU (arXiv 2002.05202).
    Silu,
    /// `x * Phi(x)` by its tanh approximation: Gemma's GeGLU.
    GeluTanh,
    /// `x * Phi(x)` exactly (arXiv 1606.08415).
    GeluErf,
}

/// `act(gate) * up` with the host kernel; both are `[..., D]`.
///
/// # Errors
/// Operands of different shapes or types.
#[track_caller]
pub fn gated_activation(activation: Activation, gate: &Array, up: &Array) -> Result<Array> {
    Ok(apply(node::Gated { activation }, &[gate, up])?.remove(0))
}

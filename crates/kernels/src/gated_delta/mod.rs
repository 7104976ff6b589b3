//! The gated delta rule: a linear recurrence over a matrix of state for each head (arXiv 2412.06464, equation 10).
//!
//! # Contract
//! `q` and `k` are `[B, T, Hk, Dk]`, `v` is `[B, T, Hv, Dv]`, in one type: float32, float16 or bfloat16. The decay `g` is
//! `[B, T, Hv]`, or `[B, T, Hv, Dk]` with one for each column of the state; `beta` is `[B, T, Hv]`; both float32. The state
//! is float32 `[B, Hv, Dv, Dk]`. `Hv` is a multiple of `Hk`, and head `h` of the values reads head `h / (Hv / Hk)` of
//! queries and keys. For each head and step:
//!
//! ```text
//! S = S diag(g)          d = beta (v - S k)          S = S + d k^T          y = S q
//! ```
//!
//! `y` is `[B, T, Hv, Dv]` in the type of `q`, and the last state is the second result. Callers normalise `q` and `k` and
//! fold the scale into `q` (mlx-lm `models/gated_delta.py`). Where the optional mask `[B, T]` (bool) is false, the step leaves the
//! state as it is and `y` is 0, as mlx-lm's Metal kernel gives.

pub mod host;
mod node;
pub mod reference;

use crate::host::node::cast;
use strata_tensor::host::apply;
use strata_tensor::{Array, Dtype, Result};

/// What one call takes; shapes as in the contract.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Queries.
    pub q: &'a Array,
    /// Keys.
    pub k: &'a Array,
    /// Values.
    pub v: &'a Array,
    /// Decay, for each head or for each column.
    pub g: &'a Array,
    /// Strength of the update.
    pub beta: &'a Array,
    /// State before the first step.
    pub state: &'a Array,
    /// Steps that count.
    pub mask: Option<&'a Array>,
}

/// Outputs and the last state, with the host kernel.
///
/// # Errors
/// Operands that do not fit each other, or a type that is not one of the contract's.
#[track_caller]
pub fn gated_delta(operands: Operands<'_>) -> Result<(Array, Array)> {
    let Operands { q, k, v, g, beta, state, mask } = operands;
    let (g, beta, state) =
        (cast(g, Dtype::Float32)?, cast(beta, Dtype::Float32)?, cast(state, Dtype::Float32)?);
    let inputs = [Some(q), Some(k), Some(v), Some(&g), Some(&beta), Some(&state), mask];
    let mut outputs = apply(node::GatedDelta, &inputs.into_iter().flatten().collect::<Vec<_>>())?;
    let state = outputs.remove(1);
    Ok((outputs.remove(0), state))
}

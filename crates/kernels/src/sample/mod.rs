//! Picking from rows of logits: the largest value, the `k` largest, or a draw.
//!
//! # Contract
//! `logits` is `[..., V]`, float32, float16 or bfloat16; indices are uint32. Of equal values the lowest index comes first. NaN
//! orders below every number, so a row of NaN alone gives index 0 (MLX passes NaN over too, but for one at index 0).
//! `top_k` gives values and indices in descending order.
//!
//! `draw` gives index `i` of a row where the running sum of `exp(x_j / temperature)` over the indices that pass the filters first
//! exceeds `u` times the whole, for `u` in `0 .. 1`. Filters see the untempered distribution, each what the one before left, and
//! always leave the likeliest: the smallest set of likeliest ones whose probabilities sum to `top_p` (equal ones together),
//! those at least `min_p` times as likely as the likeliest, the `top_k` likeliest (those equal to the last one together).

pub mod host;
mod node;
pub mod reference;

use strata_tensor::host::apply;
use strata_tensor::{Array, Result};

/// Index of each row's largest value, `[..., V]` to `[...]`, with the host kernel.
///
/// # Errors
/// An empty row, or a type that is not one of the contract's.
#[track_caller]
pub fn argmax(logits: &Array) -> Result<Array> {
    Ok(apply(node::Argmax, &[logits])?.remove(0))
}

/// Values and indices of each row's `k` largest, `[..., V]` to twice `[..., k]`, with the host kernel.
///
/// # Errors
/// `k` of 0 or more than `V`, or a type that is not one of the contract's.
#[track_caller]
pub fn top_k(logits: &Array, k: usize) -> Result<(Array, Array)> {
    let mut outputs = apply(node::TopK { k }, &[logits])?;
    let indices = outputs.remove(1);
    Ok((outputs.remove(0), indices))
}

/// How an index is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Above 0.
    pub temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
}

impl Draw {
    pub(crate) fn filters(self) -> bool {
        self.top_p < 1.0 || self.min_p > 0.0 || self.top_k > 0
    }
}

/// An index of each row, `[..., V]` to `[...]`, drawn by `uniform` (float32 `[...]`, in `0 .. 1`), with the host kernel.
///
/// # Errors
/// An empty row, operands that do not fit, or a type that is not one of the contract's.
#[track_caller]
pub fn draw(logits: &Array, uniform: &Array, options: Draw) -> Result<Array> {
    Ok(apply(node::Drawn(options), &[logits, uniform])?.remove(0))
}

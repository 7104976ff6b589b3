//! Picking from rows of logits: the largest value, or the `k` largest.
//!
//! # Contract
//! `logits` is `[..., V]`, float32, float16 or bfloat16; indices are uint32. Of equal values the lowest index comes first. NaN
//! orders below every number, so a row of NaN alone gives index 0 (MLX passes NaN over too, but for one at index 0).
//! `top_k` gives values and indices in descending order.

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

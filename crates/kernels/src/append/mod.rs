//! Writing new positions into buffers of a cache: all buffers of a layer in one node of the graph.
//!
//! # Contract
//! `buffers[i]` is `[B, H, T, W_i]` and `new[i]` is `[B, H, L, W_i]` of the same type, whatever it is, at any strides with the
//! last axis contiguous. The results are the buffers with positions `start .. start + L` replaced, in the buffers' own
//! memory when nobody else needs them. `start` is one for all rows.

pub mod host;
mod node;
pub mod reference;

use crate::Offset;
use strata_tensor::host::apply;
use strata_tensor::{Array, Error, Failure, Result};

/// Writes `new` into `buffers` at positions `start ..` with the host kernel; 2, 4 or 6 buffers.
///
/// # Errors
/// Operands that do not fit each other, positions beyond the buffers (of an array: when it is computed), or another number
/// of buffers.
#[track_caller]
pub fn append(buffers: &[Array], new: &[Array], start: Offset<'_>) -> Result<Vec<Array>> {
    let inputs: Vec<&Array> = buffers.iter().chain(new).chain(start.input()).collect();
    let start = start.known();
    match buffers.len() {
        2 => apply(node::Append::<2> { start }, &inputs),
        4 => apply(node::Append::<4> { start }, &inputs),
        6 => apply(node::Append::<6> { start }, &inputs),
        other => Err(Error::Mlx(Box::new(Failure {
            op: "append",
            message: format!("has no form for {other} buffers"),
            at: std::panic::Location::caller(),
        }))),
    }
}

//! Root-mean-square normalisation, alone or added to a residual.
//!
//! # Contract
//! `y = x / sqrt(mean(x^2) + eps) * weight` over the last axis (arXiv 1910.07467); without a weight the factor is 1.
//! `x`, `weight` `[D]` and `y` have one type: float32, float16 or bfloat16; the arithmetic is in float32 and rounds once
//! (MLX rounds before it multiplies with the weight too). Gemma's `1 + weight` is made by the caller.
//!
//! The fused form gives `residual + y`, rounded once (Gemma 2 and 3, which norm what a block gives). In float16 the sum may be
//! clipped to the finite range ([`Overflow::Clip`]), as Gemma 3 asks for (transformers pull request 36832; mlx-lm
//! `gemma3_text.py`, `clip_residual`). A sum that is normed, as in most families, is the residual of one
//! [`linear`](crate::linear) map and the norm before the next.

pub mod host;
mod node;
pub mod reference;

use crate::host::node::cast;
use strata_tensor::host::apply;
use strata_tensor::{Array, Result};

/// What a sum beyond the largest finite float16 becomes. The other types are never clipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Infinite.
    Infinite,
    /// The largest finite value.
    Clip,
}

/// Normalises `x` `[..., D]` with the host kernel.
///
/// # Errors
/// A weight that is not `[D]`, or a type that is not one of the contract's.
#[track_caller]
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array> {
    let weight = weight.map(|weight| cast(weight, x.dtype())).transpose()?;
    let inputs = [Some(x), weight.as_ref()];
    Ok(apply(node::RmsNorm { eps }, &inputs.into_iter().flatten().collect::<Vec<_>>())?.remove(0))
}

/// `residual + rms_norm(x)` with the host kernel; both operands are `[..., D]`.
///
/// # Errors
/// A residual of another shape, a weight that is not `[D]`, or a type that is not one of the contract's.
#[track_caller]
pub fn rms_norm_onto(
    residual: &Array,
    x: &Array,
    weight: Option<&Array>,
    eps: f32,
    overflow: Overflow,
) -> Result<Array> {
    let weight = weight.map(|weight| cast(weight, x.dtype())).transpose()?;
    let inputs = [Some(residual), Some(x), weight.as_ref()];
    let inputs: Vec<_> = inputs.into_iter().flatten().collect();
    Ok(apply(node::RmsNormOnto { eps, overflow }, &inputs)?.remove(0))
}

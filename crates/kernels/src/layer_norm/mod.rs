//! Layer normalisation.
//!
//! # Contract
//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last axis (arXiv 1607.06450), with the population
//! variance; weight and bias `[D]` are optional. One type throughout (float32, float16 or bfloat16), arithmetic in float32,
//! rounded once.

pub mod host;
mod node;
pub mod reference;

use crate::host::node::cast;
use strata_tensor::host::apply;
use strata_tensor::{Array, Result};

/// Normalises `x` `[..., D]` with the host kernel.
///
/// # Errors
/// A weight or bias that is not `[D]`, or a type that is not one of the contract's.
#[track_caller]
pub fn layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Result<Array> {
    let cast = |x: Option<&Array>, dtype| x.map(|x| cast(x, dtype)).transpose();
    let (weight, bias) = (cast(weight, x.dtype())?, cast(bias, x.dtype())?);
    let kernel = node::LayerNorm { eps, weight: weight.is_some(), bias: bias.is_some() };
    let inputs = [Some(x), weight.as_ref(), bias.as_ref()];
    Ok(apply(kernel, &inputs.into_iter().flatten().collect::<Vec<_>>())?.remove(0))
}

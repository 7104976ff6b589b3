//! Rotary position embedding, with the meaning of MLX's `fast.rope`.
//!
//! # Contract
//! `x` is `[B, H, L, D]`, float32, float16 or bfloat16, any strides with the last axis contiguous. The first `dims` values of
//! each row are rotated in pairs and the others copied (arXiv 2104.09864): with `a = (l + offset) * scale * f[i]`,
//!
//! ```text
//! y1 = x1 cos a - x2 sin a        y2 = x1 sin a + x2 cos a
//! ```
//!
//! where pair `i` of `0 .. dims / 2` is `(i, i + dims / 2)`, or `(2 i, 2 i + 1)` when *traditional*. The frequencies are
//! `f[i] = base^(-2 i / dims)` ([`inverse_frequencies`]) or the reciprocals of an explicit array; the offset is one for
//! all rows of the batch or one for each. Angles are products in float32, as in MLX; sine, cosine and rotation are float32
//! and rounded once.

pub mod host;
pub(crate) mod node;
pub mod reference;

use crate::Offset;
use std::sync::Arc;
use strata_tensor::host::apply;
use strata_tensor::{Array, Result, fast};

/// How positions turn pairs, with the frequencies at hand: what the host kernels take.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// `f[i]` for each pair; rotates twice as many values.
    pub frequencies: Arc<[f32]>,
    /// Pairs are neighbours instead of half of the rotated values apart.
    pub traditional: bool,
    /// Factor of the positions.
    pub scale: f32,
}

impl Rope {
    /// The same rotation as MLX's; reads explicit frequencies to the host, so do it once, when a model is bound.
    ///
    /// # Errors
    /// What MLX reports of the frequencies' evaluation.
    pub fn new(rope: &fast::Rope) -> Result<Self> {
        let frequencies: Vec<f32> = match &rope.freqs {
            Some(periods) => periods.to_vec::<f32>()?.iter().map(|period| 1.0 / period).collect(),
            None => inverse_frequencies(rope.base.unwrap_or(1.0), usize::try_from(rope.dims).unwrap_or(0)),
        };
        Ok(Self { frequencies: frequencies.into(), traditional: rope.traditional, scale: rope.scale })
    }
}

/// Rotates `x` `[B, H, L, D]`, whose first position is `offset` (of all rows, or one a row), with the host kernel.
///
/// # Errors
/// Heads narrower than what is rotated, an offset that is not int32 or of another length, or a type that is not one of
/// the contract's.
#[track_caller]
pub fn rope(x: &Array, rope: &Rope, offset: Offset<'_>) -> Result<Array> {
    let (kernel, offset) = node::Rotate::<1>::new(rope, 1, offset, None, x.dim(-1));
    let inputs = [Some(x), offset];
    Ok(apply(kernel, &inputs.into_iter().flatten().collect::<Vec<_>>())?.remove(0))
}

/// `base^(-2 i / dims)` for each pair: MLX's expression, `exp(-i * (log(base) / (dims / 2)))` in float32.
pub fn inverse_frequencies(base: f32, dims: usize) -> Vec<f32> {
    let half = dims / 2;
    let step = base.ln() / half as f32;
    // The argument is rounded as MLX rounds it; the exponential of that float32 is then exact to its last place.
    (0..half).map(|i| f64::from(-(i as f32) * step).exp() as f32).collect()
}

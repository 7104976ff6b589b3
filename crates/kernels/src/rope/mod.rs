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
//! `f[i] = base^(-2 i / dims)` ([`inverse_frequencies`]), the reciprocals of an explicit array, or those of a base that grows with
//! the sequence ([`Frequencies::Dynamic`]); the offset is one for all rows of the batch or one for each. The rotated values may have
//! a factor. Angles are products in float32, as in MLX; sine, cosine and rotation are float32 and rounded once.

pub mod host;
pub(crate) mod node;
pub mod reference;

use crate::Offset;
use std::borrow::Cow;
use std::sync::Arc;
use strata_tensor::host::apply;
use strata_tensor::{Array, Result, fast};

/// How positions turn pairs, with the frequencies at hand: what the host kernels take.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// How fast each pair turns.
    pub frequencies: Frequencies,
    /// Pairs are neighbours instead of half of the rotated values apart.
    pub traditional: bool,
    /// Factor of the positions.
    pub scale: f32,
    /// Factor of the rotated values (the attention temperature of YaRN, arXiv 2309.00071); usually 1.
    pub factor: f32,
}

/// Radians a position, for each pair.
#[derive(Debug, Clone, PartialEq)]
pub enum Frequencies {
    /// `f[i]`.
    Fixed(Arc<[f32]>),
    /// Those of `base * (factor * n / longest - factor + 1) ^ (dims / (dims - 2))` for sequences that end at `n` (a row's offset
    /// and the length of `x`), `n` at least `longest`: NTK-aware scaling, mlx-lm `models/rope_utils.py`.
    Dynamic {
        /// Values that are rotated.
        dims: usize,
        /// The base up to the longest sequence.
        base: f64,
        /// How much longer sequences are to be than those that the model was made for.
        factor: f64,
        /// Positions that the model was made for.
        longest: f64,
    },
}

impl Frequencies {
    /// Pairs; twice as many values are rotated.
    pub fn pairs(&self) -> usize {
        match self {
            Self::Fixed(frequencies) => frequencies.len(),
            Self::Dynamic { dims, .. } => dims / 2,
        }
    }

    /// The frequencies of a sequence that ends at position `end`.
    pub fn at(&self, end: i32) -> Cow<'_, [f32]> {
        match *self {
            Self::Fixed(ref frequencies) => Cow::Borrowed(frequencies),
            Self::Dynamic { dims, base, factor, longest } => {
                let stretch = factor * f64::from(end).max(longest) / longest - (factor - 1.0);
                let base = base * stretch.powf(dims as f64 / (dims as f64 - 2.0));
                Cow::Owned(inverse_frequencies(base as f32, dims))
            }
        }
    }
}

impl Rope {
    /// Pairs half of the rotated values apart that turn by these `f[i]`.
    pub fn fixed(frequencies: impl Into<Arc<[f32]>>) -> Self {
        let frequencies = Frequencies::Fixed(frequencies.into());
        Self { frequencies, traditional: false, scale: 1.0, factor: 1.0 }
    }

    /// The same rotation as MLX's; reads explicit frequencies to the host, so do it once, when a model is bound.
    ///
    /// # Errors
    /// What MLX reports of the frequencies' evaluation.
    pub fn new(rope: &fast::Rope) -> Result<Self> {
        let frequencies: Vec<f32> = match &rope.freqs {
            Some(periods) => periods.to_vec::<f32>()?.iter().map(|period| 1.0 / period).collect(),
            None => inverse_frequencies(rope.base.unwrap_or(1.0), usize::try_from(rope.dims).unwrap_or(0)),
        };
        Ok(Self { traditional: rope.traditional, scale: rope.scale, ..Self::fixed(frequencies) })
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

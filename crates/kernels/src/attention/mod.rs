//! Scaled dot-product attention: `softmax(cap(scale * q k^T) + mask) v`, without a full score matrix.
//!
//! # Contract
//! - `q` is `[B, Hq, L, Dk]`, `k` is `[B, Hkv, S, Dk]`, `v` is `[B, Hkv, S, Dv]`; `Hq` is a multiple of `Hkv`, and query
//!   head `h` reads key head `h / (Hq / Hkv)`. All have one type: float32, float16 or bfloat16. Any strides, with the
//!   last axis contiguous. The result is `[B, Hq, L, Dv]`, or `[B, L, Hq * Dv]`, in the same type.
//! - A query at index `i` stands at position `S - L + i` ([`Span`]).
//! - `cap(s) = softcap * tanh(s / softcap)` when there is a soft cap (Gemma 2, arXiv 2408.00118, section 2).
//! - An array mask comes after the cap: boolean (true: visible) or additive.
//! - A sink is one more score for each query head, without a value: it takes part in the softmax only
//!   (gpt-oss; arXiv 2309.17453).
//! - A query that sees no key gets the mean of all values, as MLX gives (it fills hidden scores with the lowest finite
//!   number); zero when it has a sink; NaN when an additive mask hides all.
//!
//! The fused softmax keeps a running maximum and sum (arXiv 1805.02867); all arithmetic is in float32.

pub mod host;
pub(crate) mod node;
pub mod reference;

use crate::Offset;
use crate::host::heads::Layout;
use crate::host::node::cast;
use strata_tensor::host::apply;
use strata_tensor::{Array, Dtype, Result};

/// Keys that a query sees by its position alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// All keys.
    All,
    /// Keys up to the query's own position.
    Causal,
    /// The newest so many keys up to the query's own position.
    Window(usize),
}

impl Span {
    /// Visible keys of query `index`, with `length` queries and `keys` keys.
    pub fn range(self, index: usize, length: usize, keys: usize) -> std::ops::Range<usize> {
        // One past the query's position, which is below zero for a query before the first key.
        let end = (keys + index + 1).saturating_sub(length);
        match self {
            Self::All => 0..keys,
            Self::Causal => 0..end,
            Self::Window(window) => end.saturating_sub(window)..end,
        }
    }
}

/// What shapes the scores.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Factor of the dot products.
    pub scale: f32,
    /// Keys visible by position.
    pub span: Span,
    /// Keys and values lie in buffers with room behind this position, which is `S`.
    pub end: Option<Offset<'a>>,
    /// Further mask, which broadcasts to `[B, Hq, L, S]`: bool (true is visible) or additive. Columns beyond an `end` that is an
    /// array are not read.
    pub mask: Option<&'a Array>,
    /// Bound of the scores by a scaled tanh.
    pub softcap: Option<f32>,
    /// `[Hq]`: one more score for each query head.
    pub sinks: Option<&'a Array>,
}

impl Options<'_> {
    /// Scores scaled by `scale` and masked by `span`; nothing else.
    pub fn new(scale: f32, span: Span) -> Self {
        Self { scale, span, end: None, mask: None, softcap: None, sinks: None }
    }
}

/// Attention with the host kernel, into an array of the given layout: `[B, Hq, L, Dv]` or `[B, L, Hq * Dv]`.
///
/// # Errors
/// Operands that do not fit each other, or a type that is not one of the contract's.
#[track_caller]
pub fn attention(q: &Array, k: &Array, v: &Array, options: &Options<'_>, layout: Layout) -> Result<Array> {
    let (node, extra) = node::Settings::new(options, layout, q.dtype())?;
    let inputs: Vec<&Array> = [q, k, v].into_iter().chain(&extra).collect();
    Ok(apply(node::Attention(node), &inputs)?.remove(0))
}

/// A mask as kernels take it: bool as it is, others in the type of the scores.
pub(crate) fn cast_mask(mask: &Array, dtype: Dtype) -> Result<Array> {
    if mask.dtype() == Dtype::Bool { Ok(mask.clone()) } else { cast(mask, dtype) }
}

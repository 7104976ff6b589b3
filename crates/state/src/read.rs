//! What queries see after an append: keys, values, mask and kernel, already chosen.

use crate::error::Result;
use crate::mask::{Masks, Seen, Span};
use crate::planes::Planes;
use strata_contracts::KernelSet;
use strata_tensor::fast::{self, Mask};
use strata_tensor::{Array, Dtype, ops};

/// A read of a layer's keys and values by the queries of the positions just appended.
#[derive(Debug, Clone)]
pub struct AttentionRead(Reads);

#[derive(Debug, Clone)]
enum Reads {
    /// All queries at once.
    Span(SpanRead),
    /// One read a query, each of what was stored when its position was the newest.
    Steps(Vec<SpanRead>),
}

#[derive(Debug, Clone)]
struct SpanRead {
    stored: Planes,
    seen: Seen,
    masks: Masks,
    kernels: KernelSet,
}

impl AttentionRead {
    pub(crate) fn new(stored: Planes, seen: Seen, masks: &Masks, kernels: KernelSet) -> Self {
        Self(Reads::Span(SpanRead { stored, seen, masks: masks.clone(), kernels }))
    }

    /// Reads of single positions, in order.
    pub(crate) fn steps(reads: Vec<Self>) -> Self {
        let spans = reads.into_iter().flat_map(|read| match read.0 {
            Reads::Span(span) => vec![span],
            Reads::Steps(spans) => spans,
        });
        Self(Reads::Steps(spans.collect()))
    }

    /// `softmax(scale · Q Kᵀ + mask) V`: queries `[B, Hq, L, D]` -> `[B, Hq, L, Dv]`.
    ///
    /// # Errors
    /// What MLX reports of shapes that do not fit.
    pub fn attend(&self, queries: &Array, scale: f32) -> Result<Array> {
        self.each(queries, |read, queries| read.attend(queries, scale))
    }

    /// `softmax(cap · tanh(scale · Q Kᵀ / cap) + mask) V` (Gemma 2, arXiv 2408.00118), in mlx-lm's order of operations
    /// (models/gemma2.py): scaled queries, scores in the queries' type, masked scores at that type's minimum.
    ///
    /// # Errors
    /// What MLX reports of shapes that do not fit.
    pub fn attend_soft_capped(&self, queries: &Array, scale: f32, cap: f32) -> Result<Array> {
        self.each(queries, |read, queries| read.attend_soft_capped(queries, scale, cap))
    }

    fn each(&self, queries: &Array, attend: impl Fn(&SpanRead, &Array) -> Result<Array>) -> Result<Array> {
        match &self.0 {
            Reads::Span(read) => attend(read, queries),
            Reads::Steps(reads) => {
                let steps = reads.iter().zip(0..);
                let outs = steps.map(|(read, i)| attend(read, &queries.slice_axis(2, i, i + 1)?));
                let outs = outs.collect::<Result<Vec<_>>>()?;
                Ok(ops::concatenate(&outs.iter().collect::<Vec<_>>(), 2)?)
            }
        }
    }
}

impl SpanRead {
    fn attend(&self, queries: &Array, scale: f32) -> Result<Array> {
        let [keys, values] = self.stored.arrays() else { unreachable!("dense storage has two planes") };
        // Both kernel sets read through MLX until the host kernels land.
        let (KernelSet::Reference | KernelSet::Fast) = self.kernels;
        let mask = match &self.seen {
            Seen::All => Mask::None,
            Seen::Causal => Mask::Causal,
            Seen::Array(array) => Mask::Array(array),
        };
        Ok(fast::scaled_dot_product_attention(queries, keys, values, scale, mask, None)?)
    }

    fn attend_soft_capped(&self, queries: &Array, scale: f32, cap: f32) -> Result<Array> {
        let [keys, values] = self.stored.arrays() else { unreachable!("dense storage has two planes") };
        let shape = queries.shape();
        let (b, heads, l, d) = (shape[0], shape[1], shape[2], shape[3]);
        let kv_heads = keys.dim(1);
        let repeats = heads / kv_heads.max(1);
        let mut q = queries.multiply_number(scale)?;
        let (mut k, mut v) = (keys.clone(), values.clone());
        if repeats > 1 {
            q = q.reshape([b, kv_heads, repeats, l, d])?; // [B, Hkv, Hq/Hkv, L, D]
            k = k.expand_dims(&[2])?; // [B, Hkv, 1, S, D]
            v = v.expand_dims(&[2])?;
        }
        let mut scores = q.matmul(&k.swapaxes(-1, -2)?)?;
        scores = scores.divide(&scores.number(cap)?)?.tanh()?.multiply_number(cap)?;
        if let Some(seen) = self.seen_array(queries, repeats > 1)? {
            scores = ops::where_(&seen, &scores, &scores.number(lowest(scores.dtype()))?)?;
        }
        let out = scores.softmax(-1, true)?.matmul(&v)?;
        Ok(if repeats > 1 { out.reshape([b, heads, l, values.dim(3)])? } else { out })
    }

    /// The mask as an array that broadcasts to scores `[B, Hkv, (Hq/Hkv,) L, S]`.
    fn seen_array(&self, queries: &Array, grouped: bool) -> Result<Option<Array>> {
        let array = match &self.seen {
            Seen::All => return Ok(None),
            Seen::Causal => self.masks.array(&Span::causal(queries.dim(2) as usize, self.stored.len()))?,
            Seen::Array(array) => array.clone(),
        };
        Ok(Some(if grouped && array.ndim() > 3 { array.expand_dims(&[-3])? } else { array }))
    }
}

/// The most negative finite value of a floating-point type.
fn lowest(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Float16 => -65504.0,
        Dtype::Bfloat16 => f32::from_bits(0xff7f_0000),
        _ => f32::MIN,
    }
}

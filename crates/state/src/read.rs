//! What queries see after an append: keys, values, mask and kernel, already chosen.

use crate::error::Result;
use strata_contracts::KernelSet;
use strata_tensor::fast::{self, Mask};
use strata_tensor::{Array, Dtype, ops};

/// A read of a layer's keys and values by the queries of the positions just appended.
#[derive(Debug, Clone)]
pub struct AttentionRead {
    keys: Array,
    values: Array,
    causal: bool,
    kernels: KernelSet,
}

impl AttentionRead {
    pub(crate) fn dense(keys: Array, values: Array, causal: bool, kernels: KernelSet) -> Self {
        Self { keys, values, causal, kernels }
    }

    /// `softmax(scale · Q Kᵀ + mask) V`: queries `[B, Hq, L, D]` -> `[B, Hq, L, Dv]`.
    ///
    /// # Errors
    /// What MLX reports of shapes that do not fit.
    pub fn attend(&self, queries: &Array, scale: f32) -> Result<Array> {
        // Both kernel sets read through MLX until the host kernels land.
        let (KernelSet::Reference | KernelSet::Fast) = self.kernels;
        let mask = if self.causal { Mask::Causal } else { Mask::None };
        Ok(fast::scaled_dot_product_attention(queries, &self.keys, &self.values, scale, mask, None)?)
    }

    /// `softmax(cap · tanh(scale · Q Kᵀ / cap) + mask) V` (Gemma 2, arXiv 2408.00118), in mlx-lm's order of operations
    /// (models/gemma2.py): scaled queries, scores in the queries' type, masked scores at that type's minimum.
    ///
    /// # Errors
    /// What MLX reports of shapes that do not fit.
    pub fn attend_soft_capped(&self, queries: &Array, scale: f32, cap: f32) -> Result<Array> {
        let shape = queries.shape();
        let (b, heads, l, d) = (shape[0], shape[1], shape[2], shape[3]);
        let kv_heads = self.keys.dim(1);
        let repeats = heads / kv_heads.max(1);
        let mut q = queries.multiply_number(scale)?;
        let (mut k, mut v) = (self.keys.clone(), self.values.clone());
        if repeats > 1 {
            q = q.reshape([b, kv_heads, repeats, l, d])?; // [B, Hkv, Hq/Hkv, L, D]
            k = k.expand_dims(&[2])?; // [B, Hkv, 1, S, D]
            v = v.expand_dims(&[2])?;
        }
        let mut scores = q.matmul(&k.swapaxes(-1, -2)?)?;
        scores = scores.divide(&scores.number(cap)?)?.tanh()?.multiply_number(cap)?;
        if self.causal {
            let s = self.keys.dim(2);
            let rows = ops::arange(f64::from(s - l), f64::from(s), 1.0, Dtype::Int32)?.expand_dims(&[1])?;
            let columns = ops::arange(0.0, f64::from(s), 1.0, Dtype::Int32)?.expand_dims(&[0])?;
            let seen = rows.greater_equal(&columns)?;
            scores = ops::where_(&seen, &scores, &scores.number(lowest(scores.dtype()))?)?;
        }
        let out = scores.softmax(-1, true)?.matmul(&v)?;
        Ok(if repeats > 1 { out.reshape([b, heads, l, self.values.dim(3)])? } else { out })
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

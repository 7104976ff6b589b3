//! MLX's fused operations.

use crate::error::Result;
use crate::raw::{self, Array};

/// `x / sqrt(mean(x²) + eps) · weight` along the last dimension, in float32 inside (arXiv 1910.07467).
///
/// # Errors
/// MLX's refusal of a weight that is not `[last dimension]`.
#[track_caller]
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array> {
    raw::mlx_fast_rms_norm(x, weight, eps)
}

/// `(x - mean) / sqrt(var + eps) · weight + bias` along the last dimension (arXiv 1607.06450).
///
/// # Errors
/// MLX's refusal of weights that are not `[last dimension]`.
#[track_caller]
pub fn layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Result<Array> {
    raw::mlx_fast_layer_norm(x, weight, bias, eps)
}

/// How positions turn pairs of a head's values (arXiv 2104.09864).
#[derive(Debug, Clone)]
pub struct Rope {
    /// The first `dims` values of a head turn; the others pass.
    pub dims: i32,
    /// Pairs are neighbours (`true`) or half of `dims` apart (`false`).
    pub traditional: bool,
    /// Angle of pair `i` is `position · scale / base^(2i / dims)`; `None` when `freqs` are given.
    pub base: Option<f32>,
    /// Factor of the position.
    pub scale: f32,
    /// float32 `[dims / 2]`: the angle of pair `i` is `position · scale / freqs[i]`.
    pub freqs: Option<Array>,
}

/// Turns `x` `[B, …, L, D]`, whose positions start at `offset`.
///
/// # Errors
/// MLX's refusal of shapes that do not fit.
#[track_caller]
pub fn rope(x: &Array, rope: &Rope, offset: i32) -> Result<Array> {
    raw::mlx_fast_rope(x, rope.dims, rope.traditional, rope.base, rope.scale, offset, rope.freqs.as_ref())
}

/// As [`rope`] with the offset as an int32 array: 0-d, or `[B]` with one a row.
///
/// # Errors
/// MLX's refusal of shapes that do not fit.
#[track_caller]
pub fn rope_dynamic(x: &Array, rope: &Rope, offset: &Array) -> Result<Array> {
    raw::mlx_fast_rope_dynamic(
        x,
        rope.dims,
        rope.traditional,
        rope.base,
        rope.scale,
        offset,
        rope.freqs.as_ref(),
    )
}

/// Which keys a query sees.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// All of them.
    None,
    /// With `L` queries and `S` keys, query `i` sees keys up to `S - L + i`.
    Causal,
    /// bool (true is seen) or additive in the scores' type, broadcast to `[B, Hq, L, S]`.
    Array(&'a Array),
}

/// Attention: queries `[B, Hq, L, D]`, keys `[B, Hkv, S, D]`, values `[B, Hkv, S, Dv]` -> `[B, Hq, L, Dv]`;
/// `softmax(scale · Q Kᵀ + mask) V`, where `Hq / Hkv` query heads share a key head. `sinks` `[Hq]` are logits that take
/// part in the softmax's sum only.
///
/// # Errors
/// MLX's refusal of shapes or types that do not fit.
#[track_caller]
pub fn scaled_dot_product_attention(
    queries: &Array,
    keys: &Array,
    values: &Array,
    scale: f32,
    mask: Mask<'_>,
    sinks: Option<&Array>,
) -> Result<Array> {
    let (mode, array) = match mask {
        Mask::None => ("", None),
        Mask::Causal => ("causal", None),
        Mask::Array(array) => ("array", Some(array)),
    };
    raw::mlx_fast_scaled_dot_product_attention(queries, keys, values, scale, mode, array, sinks, false)
}

//! Root-mean-square norm of each head, then rotary embedding, of queries and keys together (Qwen 3, Gemma 3).
//!
//! # Contract
//! `rope(rms_norm(x, weight, eps))` of [`crate::rms_norm`] and [`crate::rope`] for `q` `[B, Hq, L, D]` with weight `[D]` and
//! `k` `[B, Hk, L, D]` with its own; the row is rounded once, after the rotation. Without norms, both are only rotated. Values
//! `[B, Hk, L, D]` go along, as they are: they come from a projection beside the keys, and leave it in the same layout.

pub mod host;
pub mod reference;

use crate::Offset;
use crate::host::node::cast;
use crate::rope::{Rope, node};
use strata_tensor::host::apply;
use strata_tensor::{Array, Result};

/// Root-mean-square norms of queries and keys.
#[derive(Debug, Clone, Copy)]
pub struct Norms<'a> {
    /// `[D]`, of the queries.
    pub q: &'a Array,
    /// `[D]`, of the keys.
    pub k: &'a Array,
    /// Added to the mean square.
    pub eps: f32,
}

/// Normalises and rotates queries and keys, and splits values into heads, with the host kernel. Each is `[B, H, L, D]`, or
/// `[B, L, H * D]` as a projection gives it; the results are `[B, H, L, D]`, queries, keys and values.
///
/// # Errors
/// Operands that do not fit each other or `width`, the `D` above.
#[track_caller]
pub fn qk_norm_rope(
    q: &Array,
    k: &Array,
    v: &Array,
    width: i32,
    norms: Option<Norms<'_>>,
    rope: &Rope,
    offset: Offset<'_>,
) -> Result<[Array; 3]> {
    let (kernel, offset) = node::Rotate::<3>::new(rope, 2, offset, norms.map(|norms| norms.eps), width);
    let weights = norms.map(|n| Ok((cast(n.q, q.dtype())?, cast(n.k, q.dtype())?))).transpose()?;
    let (wq, wk) = weights.as_ref().map_or((None, None), |(q, k)| (Some(q), Some(k)));
    let inputs = [Some(q), Some(k), Some(v), wq, wk, offset];
    let outputs = apply(kernel, &inputs.into_iter().flatten().collect::<Vec<_>>())?;
    let mut outputs = outputs.into_iter();
    Ok(std::array::from_fn(|_| outputs.next().expect("one output an array")))
}

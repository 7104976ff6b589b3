//! Attention over affine-quantized keys and values, which are dequantized a block at a time in the nearest cache.
//!
//! # Contract
//! As [`crate::attention`], with keys `[B, Hkv, S, Dk]` and values `[B, Hkv, S, Dv]` each stored as MLX's affine quantization
//! stores matrices: `x = scale * n + bias` for groups of 32, 64 or 128 values of a row, `n` an unsigned number of 2, 3, 4, 5, 6
//! or 8 bits, packed into uint32 words with the first value in the lowest bits; scales and biases in the type of the
//! queries. Keys and values may differ in bits and group size. All may be slices of longer buffers.

pub mod host;
pub(crate) mod node;
pub mod reference;

use crate::attention::Options;
use crate::host::heads::Layout;
use strata_tensor::host::apply;
use strata_tensor::ops::Quantized;
use strata_tensor::{Array, Result};

/// Attention with the host kernel, into an array of the given layout: `[B, Hq, L, Dv]` or `[B, L, Hq * Dv]`.
///
/// # Errors
/// Operands that do not fit each other, a type that is not one of the contract's, or a mode other than affine.
#[track_caller]
pub fn quantized_attention(
    q: &Array,
    k: &Quantized,
    v: &Quantized,
    options: &Options<'_>,
    layout: Layout,
) -> Result<Array> {
    let (kernel, extra) = node::QuantizedAttention::new(options, layout, q.dtype(), k.scheme, v.scheme)?;
    let stored = node::of_affine("quantized_attention", k, v)?;
    let inputs: Vec<&Array> = [q].into_iter().chain(stored).chain(&extra).collect();
    Ok(apply(kernel, &inputs)?.remove(0))
}

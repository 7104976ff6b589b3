//! Attention over quantized keys and values in tensor operations, in the order of mlx-lm's
//! `quantized_scaled_dot_product_attention` (`models/base.py`).

use crate::attention::{Options, reference};
use crate::host::heads::Layout;
use strata_tensor::ops::{Quantized, dequantize, quantized_matmul, where_};
use strata_tensor::{Array, Dtype, Result};

/// Attention into an array of the given layout. With a soft cap or sinks, which mlx-lm has not for quantized storage, keys
/// and values are dequantized first.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn quantized_attention(
    q: &Array,
    k: &Quantized,
    v: &Quantized,
    options: &Options<'_>,
    layout: Layout,
) -> Result<Array> {
    if options.softcap.is_some() || options.sinks.is_some() {
        let dtype = Some(q.dtype());
        return reference::attention(q, &dequantize(k, dtype)?, &dequantize(v, dtype)?, options, layout);
    }
    let key_heads = k.weight.dim(1);
    let group = q.dim(1) / key_heads;
    let mask = reference::mask(q.dim(2), k.weight.dim(2), options)?;
    let queries = q.multiply_number(options.scale)?;
    let split = |x: &Array| x.unflatten(1, [key_heads, group]);
    let expand = |x: &Quantized| {
        let expand = |x: &Array| x.expand_dims(&[2]);
        Ok::<_, strata_tensor::Error>(Quantized {
            weight: expand(&x.weight)?,
            scales: expand(&x.scales)?,
            biases: x.biases.as_ref().map(expand).transpose()?,
            scheme: x.scheme,
        })
    };
    let mut scores = quantized_matmul(&split(&queries)?, &expand(k)?, true)?;
    if let Some(mask) = mask {
        let heads = mask.ndim() > 2 && mask.dim(-3) > 1;
        let mask = if heads {
            mask.unflatten(-3, [key_heads, group])?
        } else if mask.ndim() > 2 {
            mask.expand_dims(&[-3])?
        } else {
            mask
        };
        scores = if mask.dtype() == Dtype::Bool {
            where_(&mask, &scores, &scores.number(reference::lowest(scores.dtype()))?)?
        } else {
            scores.add(&mask)?
        };
    }
    let out = quantized_matmul(&scores.softmax(-1, true)?, &expand(v)?, false)?.flatten(1, 2)?;
    match layout {
        Layout::HeadsFirst => Ok(out),
        Layout::PositionsFirst => out.transpose(&[0, 2, 1, 3])?.flatten(2, 3),
    }
}

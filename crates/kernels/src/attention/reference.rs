//! Attention in tensor operations: MLX's fused form, or its composition where a soft cap comes before the mask.

use super::{Options, Span};
use crate::Offset;
use crate::host::heads::Layout;
use strata_tensor::fast::{Mask, scaled_dot_product_attention};
use strata_tensor::{Array, Dtype, Result, ops};

/// Attention into an array of the given layout.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn attention(q: &Array, k: &Array, v: &Array, options: &Options<'_>, layout: Layout) -> Result<Array> {
    let keys = options.end.map_or(Ok(k.dim(2)), Offset::read)?;
    let (k, v) = (&k.slice_axis(2, 0, keys)?, &v.slice_axis(2, 0, keys)?);
    let mask = mask(q.dim(2), keys, options)?;
    let out = if let Some(cap) = options.softcap {
        capped(q, k, v, options, cap, mask.as_ref())?
    } else {
        let mask = mask.as_ref().map_or(Mask::None, Mask::Array);
        scaled_dot_product_attention(q, k, v, options.scale, mask, options.sinks)?
    };
    match layout {
        Layout::HeadsFirst => Ok(out),
        Layout::PositionsFirst => out.transpose(&[0, 2, 1, 3])?.flatten(2, 3),
    }
}

/// Span and array mask as one array.
pub(crate) fn mask(length: i32, keys: i32, options: &Options<'_>) -> Result<Option<Array>> {
    let positions = |start: i32, end: i32| ops::arange(f64::from(start), f64::from(end), 1.0, Dtype::Int32);
    let (rows, columns) = (positions(keys - length, keys)?.expand_dims(&[1])?, positions(0, keys)?);
    let span = match options.span {
        Span::All => return Ok(options.mask.cloned()),
        Span::Causal => rows.greater_equal(&columns)?,
        Span::Window(window) => {
            let window = Array::from_i32(i32::try_from(window).unwrap_or(i32::MAX - keys.max(0)));
            rows.greater_equal(&columns)?.logical_and(&rows.less(&columns.add(&window)?)?)?
        }
    };
    match options.mask {
        None => Ok(Some(span)),
        Some(mask) if mask.dtype() == Dtype::Bool => span.logical_and(mask).map(Some),
        Some(mask) => ops::where_(&span, mask, &mask.number(f32::NEG_INFINITY)?).map(Some),
    }
}

/// The lowest finite number, which MLX gives hidden scores.
pub(crate) fn lowest(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Float16 => half::f16::MIN.to_f32(),
        Dtype::Bfloat16 => half::bf16::MIN.to_f32(),
        _ => f32::MIN,
    }
}

/// `softmax(cap * tanh(scores / cap) + mask) v`, as mlx-lm's `gemma2.py` composes it, with sinks as one more column.
fn capped(
    q: &Array,
    k: &Array,
    v: &Array,
    options: &Options<'_>,
    cap: f32,
    mask: Option<&Array>,
) -> Result<Array> {
    let (heads, key_heads) = (q.dim(1), k.dim(1));
    let group = heads / key_heads;
    let q = q.multiply_number(options.scale)?.unflatten(1, [key_heads, group])?;
    let (k, v) = (k.expand_dims(&[2])?, v.expand_dims(&[2])?);
    let scores = q.matmul(&k.swapaxes(-1, -2)?)?.flatten(1, 2)?;
    let mut scores = scores.divide(&scores.number(cap)?)?.tanh()?.multiply_number(cap)?;
    match mask {
        Some(mask) if mask.dtype() == Dtype::Bool => {
            scores = ops::where_(mask, &scores, &scores.number(lowest(scores.dtype()))?)?;
        }
        Some(mask) => scores = scores.add(mask)?,
        None => {}
    }
    if let Some(sinks) = options.sinks {
        let [b, l] = [q.dim(0), q.dim(3)];
        let column =
            sinks.astype(scores.dtype())?.reshape([1, heads, 1, 1])?.broadcast_to([b, heads, l, 1])?;
        scores = ops::concatenate(&[&column, &scores], -1)?;
    }
    let mut weights = scores.softmax(-1, true)?;
    if options.sinks.is_some() {
        weights = weights.slice_axis(-1, 1, weights.dim(-1))?;
    }
    weights.unflatten(1, [key_heads, group])?.matmul(&v)?.flatten(1, 2)
}

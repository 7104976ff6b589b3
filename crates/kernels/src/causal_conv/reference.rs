//! The causal convolution in tensor operations, in the order of mlx-lm's `models/qwen3_next.py`.

use strata_tensor::{Array, Dtype, Result, ops};

/// Outputs `[B, T, C]` and the new carried inputs.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn causal_conv(
    x: &Array,
    weight: &Array,
    carried: &Array,
    lengths: Option<&Array>,
    silu: bool,
) -> Result<(Array, Array)> {
    let (taps, channels) = (weight.dim(0), weight.dim(1));
    let z = ops::concatenate(&[carried, x], 1)?;
    let y = ops::conv1d(&z, &weight.transpose(&[1, 0])?.expand_dims(&[-1])?, 1, 0, 1, channels)?;
    let y = if silu { y.multiply(&y.sigmoid()?)? } else { y };
    let keep = taps - 1;
    let last = match lengths {
        Some(lengths) => {
            let steps = ops::arange(0.0, f64::from(keep), 1.0, Dtype::Int32)?;
            let at = lengths.expand_dims(&[1])?.add(&steps)?.expand_dims(&[2])?;
            z.take_along_axis(&at, 1)?
        }
        None => z.slice_axis(1, z.dim(1) - keep, z.dim(1))?,
    };
    Ok((y, last))
}

//! How fast each pair of a head turns: the wavelengths over 2π that `fast::Rope` takes as `freqs`.
//!
//! Everything is computed by MLX in float32, as mlx-lm does (models/rope_utils.py): in double precision some values would
//! round differently.

use crate::error::Result;
use strata_artifacts::Section;
use strata_tensor::{Array, Dtype, ops};

/// LongRoPE: each plain wavelength times its own factor.
pub(super) fn long(factors: &[f32], dims: i32, base: f64) -> Result<Array> {
    Ok(Array::from_slice(factors, [factors.len() as i32])?.multiply(&plain(dims, base)?)?)
}

/// Only the first `rotated` of `dims` values turn, and the exponent runs over all of them: pairs stay half a head
/// apart, the others never turn.
pub(super) fn proportional(rotated: i32, dims: i32, base: f64, factor: f64) -> Result<Array> {
    let even = ops::arange(0.0, f64::from(rotated), 2.0, Dtype::Float32)?;
    let exponents = even.divide(&number(f64::from(dims)))?;
    let turning = number(factor).multiply(&number(base).power(&exponents)?)?;
    let still = ops::full([(dims - rotated) / 2], &Array::from_f32(f32::INFINITY), Dtype::Float32)?;
    Ok(ops::concatenate(&[&turning, &still], 0)?)
}

/// float32 `[dims / 2]`: `2i / dims`.
pub(super) fn exponents(dims: i32) -> Result<Array> {
    let even = ops::arange(0.0, f64::from(dims), 2.0, Dtype::Float32)?;
    Ok(even.divide(&Array::from_f32(dims as f32))?)
}

/// float32 `[dims / 2]`: `base^(2i / dims)`, the wavelengths over 2π.
fn plain(dims: i32, base: f64) -> Result<Array> {
    Ok(Array::from_f32(base as f32).power(&exponents(dims)?)?)
}

/// Llama 3's scaling: long waves are stretched by `factor`, short ones stay, those between are mixed.
pub(super) fn llama3(scaling: &Section<'_>, dims: i32, base: f64, factor: f64) -> Result<Array> {
    let low = scaling.get::<f64>("low_freq_factor")?.unwrap_or(1.0);
    let high = scaling.get::<f64>("high_freq_factor")?.unwrap_or(4.0);
    let original = scaling.get::<f64>("original_max_position_embeddings")?.unwrap_or(8192.0);
    let freqs = plain(dims, base)?;
    let wavelengths = number(2.0 * std::f64::consts::PI).multiply(&freqs)?;
    let (longest, shortest) = (number(original / low), number(original / high));
    let is_long = wavelengths.greater(&longest)?;
    let freqs = ops::where_(&is_long, &freqs.multiply(&number(factor))?, &freqs)?;
    let is_medium = wavelengths.greater(&shortest)?.bitwise_and(&wavelengths.less(&longest)?)?;
    let smooth =
        number(original).divide(&wavelengths)?.subtract(&number(low))?.divide(&number(high - low))?;
    let mixed = freqs.divide(&number(1.0).subtract(&smooth)?.divide(&number(factor))?.add(&smooth)?)?;
    Ok(ops::where_(&is_medium, &mixed, &freqs)?)
}

/// YaRN (arXiv 2309.00071): frequencies, and the factor on the input.
pub(super) fn yarn(scaling: &Section<'_>, dims: i32, base: f64, factor: f64) -> Result<(Array, f64)> {
    let get = |key, default| -> Result<f64> { Ok(scaling.get::<f64>(key)?.unwrap_or(default)) };
    let original = get("original_max_position_embeddings", 4096.0)?;
    let correction = |rotations: f64| {
        f64::from(dims) * (original / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln())
    };
    let low = correction(get("beta_fast", 32.0)?).floor().max(0.0);
    let mut high = correction(get("beta_slow", 1.0)?).ceil().min(f64::from(dims - 1));
    if low == high {
        high += 0.001; // keeps the ramp's slope finite
    }
    let magnitude = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let input_factor = magnitude(get("mscale", 1.0)?) / magnitude(get("mscale_all_dim", 0.0)?);

    let extra = plain(dims, base)?;
    let inter = number(factor).multiply(&extra)?;
    let ramp = ops::arange(0.0, f64::from(dims / 2), 1.0, Dtype::Float32)?
        .subtract(&number(low))?
        .divide(&number(high - low))?
        .clip(Some(&number(0.0)), Some(&number(1.0)))?;
    let mask = number(1.0).subtract(&ramp)?;
    let mixed = inter.multiply(&mask)?.add(&extra.multiply(&number(1.0).subtract(&mask)?)?)?;
    Ok((inter.multiply(&extra)?.divide(&mixed)?, input_factor))
}

fn number(value: f64) -> Array {
    Array::from_f32(value as f32)
}

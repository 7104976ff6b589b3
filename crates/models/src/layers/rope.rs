//! Rotary position encoding in the variants that configurations name (mlx-lm models/rope_utils.py).
//!
//! Frequencies are computed by MLX in float32, as mlx-lm does: in double precision some would round differently.

use crate::config::Config;
use crate::error::Result;
use strata_artifacts::Section;
use strata_state::Positions;
use strata_tensor::{Array, Dtype, fast, ops};

/// A rotary encoding of heads of `dims` values.
pub(crate) struct Rope {
    /// The encoding itself; for [`Kind::Dynamic`] the base is filled in at each call.
    fast: fast::Rope,
    kind: Kind,
}

enum Kind {
    Fixed,
    /// The base grows once the sequence is longer than the model was made for (NTK-aware scaling).
    Dynamic {
        base: f64,
        factor: f64,
        max_positions: f64,
    },
    /// The rotated part of the input is multiplied first (YaRN's attention temperature, arXiv 2309.00071).
    Scaled {
        factor: f32,
    },
}

impl Rope {
    /// The plain encoding.
    pub(crate) fn plain(dims: i32, base: f32, traditional: bool) -> Self {
        Self::with_scale(dims, base, traditional, 1.0)
    }

    fn with_scale(dims: i32, base: f32, traditional: bool, scale: f32) -> Self {
        Self {
            fast: fast::Rope { dims, traditional, base: Some(base), scale, freqs: None },
            kind: Kind::Fixed,
        }
    }

    fn with_freqs(dims: i32, traditional: bool, freqs: Array, kind: Kind) -> Self {
        Self { fast: fast::Rope { dims, traditional, base: None, scale: 1.0, freqs: Some(freqs) }, kind }
    }

    /// The encoding that `scaling` (the block `rope_scaling`) describes.
    pub(crate) fn from_config(
        config: &Config<'_>,
        scaling: Option<&Section<'_>>,
        dims: i32,
        base: f64,
        traditional: bool,
        max_positions: Option<i32>,
    ) -> Result<Self> {
        let Some(scaling) = scaling else { return Ok(Self::plain(dims, base as f32, traditional)) };
        let kind = match scaling.get::<String>("type")? {
            Some(kind) => kind,
            None => scaling.get::<String>("rope_type")?.unwrap_or_else(|| "default".to_owned()),
        };
        let factor = || -> Result<f64> {
            let factor = scaling.require::<f64>("factor")?;
            if factor > 0.0 {
                Ok(factor)
            } else {
                Err(config.unsupported("rope_scaling", "factor must be above 0"))
            }
        };
        match kind.as_str() {
            "default" | "mrope" => Ok(Self::plain(dims, base as f32, traditional)),
            "linear" => Ok(Self::with_scale(dims, base as f32, traditional, (1.0 / factor()?) as f32)),
            "dynamic" => {
                if dims <= 2 {
                    return Err(config.unsupported("head_dim", "dynamic rope needs more than 2 values"));
                }
                let max_positions = f64::from(max_positions.unwrap_or(2048));
                let kind = Kind::Dynamic { base, factor: factor()?, max_positions };
                let fast = fast::Rope { dims, traditional, base: None, scale: 1.0, freqs: None };
                Ok(Self { fast, kind })
            }
            "llama3" => {
                let freqs = llama3_freqs(scaling, dims, base, factor()?)?;
                Ok(Self::with_freqs(dims, traditional, freqs, Kind::Fixed))
            }
            "yarn" | "deepseek_yarn" | "telechat3-yarn" => {
                let (freqs, factor) = yarn(scaling, dims, base, factor()?)?;
                let kind = if factor == 1.0 { Kind::Fixed } else { Kind::Scaled { factor: factor as f32 } };
                Ok(Self::with_freqs(dims, traditional, freqs, kind))
            }
            other => Err(config.unsupported(
                "rope_scaling",
                format!("{other:?} is none of default, linear, dynamic, llama3, yarn"),
            )),
        }
    }

    /// Turns `x` `[B, H, L, D]`, whose positions start at `positions`.
    pub(crate) fn forward(&self, x: &Array, positions: &Positions) -> Result<Array> {
        match &self.kind {
            Kind::Fixed => turn(x, &self.fast, positions),
            Kind::Scaled { factor } => {
                let dims = self.fast.dims;
                let turned = x.slice_axis(-1, 0, dims)?.multiply_number(*factor)?;
                let x = if dims == x.dim(-1) { turned } else { x.slice_update_axis(&turned, -1, 0, dims)? };
                turn(&x, &self.fast, positions)
            }
            Kind::Dynamic { base, factor, max_positions } => match positions {
                Positions::Uniform(offset) => {
                    let length = f64::from(x.dim(-2) + offset).max(*max_positions);
                    let dims = f64::from(self.fast.dims);
                    let stretch = factor * length / max_positions - (factor - 1.0);
                    let base = base * stretch.powf(dims / (dims - 2.0));
                    let rope = fast::Rope { base: Some(base as f32), ..self.fast.clone() };
                    turn(x, &rope, positions)
                }
                Positions::Rows(offsets) => {
                    // Rows of different lengths have different bases: each row turns alone.
                    let rows = x.dim(0);
                    let turned: Vec<Array> = (0..rows)
                        .map(|row| self.dynamic_row(x, offsets, row, *base, *factor, *max_positions))
                        .collect::<Result<_>>()?;
                    Ok(ops::concatenate(&turned.iter().collect::<Vec<_>>(), 0)?)
                }
            },
        }
    }

    /// One row of a batch under dynamic scaling, its base computed in the graph (float32 instead of double).
    fn dynamic_row(
        &self,
        x: &Array,
        offsets: &Array,
        row: i32,
        base: f64,
        factor: f64,
        max_positions: f64,
    ) -> Result<Array> {
        let offset = offsets.slice_axis(0, row, row + 1)?.squeeze(&[0])?;
        let dims = f64::from(self.fast.dims);
        let length = offset
            .astype(Dtype::Float32)?
            .add_number(x.dim(-2) as f32)?
            .maximum(&Array::from_f32(max_positions as f32))?;
        let stretch =
            length.multiply_number((factor / max_positions) as f32)?.add_number((1.0 - factor) as f32)?;
        let stretched = stretch.power(&Array::from_f32((dims / (dims - 2.0)) as f32))?;
        let base = stretched.multiply_number(base as f32)?;
        let rope = fast::Rope { freqs: Some(base.power(&exponents(self.fast.dims)?)?), ..self.fast.clone() };
        Ok(fast::rope_dynamic(&x.slice_axis(0, row, row + 1)?, &rope, &offset)?)
    }
}

fn turn(x: &Array, rope: &fast::Rope, positions: &Positions) -> Result<Array> {
    Ok(match positions {
        Positions::Uniform(offset) => fast::rope(x, rope, *offset)?,
        Positions::Rows(offsets) => fast::rope_dynamic(x, rope, offsets)?,
    })
}

/// float32 `[dims / 2]`: `2i / dims`.
fn exponents(dims: i32) -> Result<Array> {
    let even = ops::arange(0.0, f64::from(dims), 2.0, Dtype::Float32)?;
    Ok(even.divide(&Array::from_f32(dims as f32))?)
}

/// float32 `[dims / 2]`: `base^(2i / dims)`, the wavelengths over 2π.
fn plain_freqs(dims: i32, base: f64) -> Result<Array> {
    Ok(Array::from_f32(base as f32).power(&exponents(dims)?)?)
}

/// Llama 3's scaling: long waves are stretched by `factor`, short ones stay, those between are mixed.
fn llama3_freqs(scaling: &Section<'_>, dims: i32, base: f64, factor: f64) -> Result<Array> {
    let low = scaling.get::<f64>("low_freq_factor")?.unwrap_or(1.0);
    let high = scaling.get::<f64>("high_freq_factor")?.unwrap_or(4.0);
    let original = scaling.get::<f64>("original_max_position_embeddings")?.unwrap_or(8192.0);
    let number = |v: f64| Array::from_f32(v as f32);
    let freqs = plain_freqs(dims, base)?;
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
fn yarn(scaling: &Section<'_>, dims: i32, base: f64, factor: f64) -> Result<(Array, f64)> {
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

    let number = |v: f64| Array::from_f32(v as f32);
    let extra = plain_freqs(dims, base)?;
    let inter = number(factor).multiply(&extra)?;
    let ramp = ops::arange(0.0, f64::from(dims / 2), 1.0, Dtype::Float32)?
        .subtract(&number(low))?
        .divide(&number(high - low))?
        .clip(Some(&number(0.0)), Some(&number(1.0)))?;
    let mask = number(1.0).subtract(&ramp)?;
    let mixed = inter.multiply(&mask)?.add(&extra.multiply(&number(1.0).subtract(&mask)?)?)?;
    Ok((inter.multiply(&extra)?.divide(&mixed)?, input_factor))
}

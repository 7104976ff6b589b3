//! Rotary position encoding in the variants that configurations name (mlx-lm models/rope_utils.py). How fast each pair
//! turns stands in `frequencies.rs`.

use super::frequencies::{self, exponents};
use crate::config::Config;
use crate::error::Result;
use std::cell::OnceCell;
use strata_artifacts::Section;
use strata_kernels::rope::{self as host, Frequencies};
use strata_state::Positions;
use strata_tensor::{Array, Dtype, fast, ops};

/// A rotary encoding of heads of `dims` values.
pub(crate) struct Rope {
    /// The encoding itself; for [`Kind::Dynamic`] the base is filled in at each call.
    fast: fast::Rope,
    kind: Kind,
    /// The host kernel's form, made on first use.
    host: OnceCell<host::Rope>,
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

impl Kind {
    fn scaled(factor: f64) -> Self {
        if factor == 1.0 { Self::Fixed } else { Self::Scaled { factor: factor as f32 } }
    }
}

/// Longest original context that is believed.
const LONGEST: usize = 1 << 24;

impl Rope {
    /// The plain encoding.
    pub(crate) fn plain(dims: i32, base: f32, traditional: bool) -> Self {
        Self::with_scale(dims, base, traditional, 1.0)
    }

    fn with_scale(dims: i32, base: f32, traditional: bool, scale: f32) -> Self {
        Self {
            fast: fast::Rope { dims, traditional, base: Some(base), scale, freqs: None },
            kind: Kind::Fixed,
            host: OnceCell::new(),
        }
    }

    fn with_freqs(dims: i32, traditional: bool, freqs: Array, kind: Kind) -> Self {
        let fast = fast::Rope { dims, traditional, base: None, scale: 1.0, freqs: Some(freqs) };
        Self { fast, kind, host: OnceCell::new() }
    }

    /// Wavelengths `factors` times the plain ones, made for `max_positions` from a model of `original` positions (LongRoPE,
    /// arXiv 2402.13753; mlx-lm's `SuScaledRoPE`). The long factors serve every length, as in mlx-lm.
    pub(crate) fn long(
        config: &Config<'_>,
        factors: &[f32],
        dims: i32,
        base: f64,
        max_positions: i32,
        original: i32,
    ) -> Result<Self> {
        if factors.len() as i32 != dims / 2 {
            let reason = format!("long_factor needs {} entries, one a pair, not {}", dims / 2, factors.len());
            return Err(config.unsupported("rope_scaling", reason));
        }
        let (max, original) = (f64::from(max_positions), f64::from(original));
        if original < 2.0 {
            return Err(config.unsupported("original_max_position_embeddings", "longrope needs at least 2"));
        }
        let stretch = max / original;
        let factor = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() };
        Ok(Self::with_freqs(dims, false, frequencies::long(factors, dims, base)?, Kind::scaled(factor)))
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
        let positive = |factor: f64| -> Result<f64> {
            if factor > 0.0 {
                Ok(factor)
            } else {
                Err(config.unsupported("rope_scaling", "factor must be above 0"))
            }
        };
        let factor = || positive(scaling.require::<f64>("factor")?);
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
                Ok(Self { fast, kind, host: OnceCell::new() })
            }
            "llama3" => {
                let freqs = frequencies::llama3(scaling, dims, base, factor()?)?;
                Ok(Self::with_freqs(dims, traditional, freqs, Kind::Fixed))
            }
            "yarn" | "deepseek_yarn" | "telechat3-yarn" => {
                let (freqs, factor) = frequencies::yarn(scaling, dims, base, factor()?)?;
                Ok(Self::with_freqs(dims, traditional, freqs, Kind::scaled(factor)))
            }
            "longrope" => {
                let original = scaling.size("original_max_position_embeddings", 2..=LONGEST)? as i32;
                let factors = scaling.require::<Vec<f32>>("long_factor")?;
                Self::long(config, &factors, dims, base, max_positions.unwrap_or(original), original)
            }
            "proportional" => {
                let part = scaling.get::<f64>("partial_rotary_factor")?.unwrap_or(1.0);
                if !(0.0..=1.0).contains(&part) {
                    return Err(
                        config.unsupported("rope_scaling", "partial_rotary_factor must be between 0 and 1")
                    );
                }
                let factor = positive(scaling.get::<f64>("factor")?.unwrap_or(1.0))?;
                let rotated = (f64::from(dims) * part) as i32;
                let freqs = frequencies::proportional(rotated, dims, base, factor)?;
                Ok(Self::with_freqs(dims, traditional, freqs, Kind::Fixed))
            }
            other => Err(config.unsupported(
                "rope_scaling",
                format!(
                    "{other:?} is none of default, linear, dynamic, llama3, yarn, longrope, proportional"
                ),
            )),
        }
    }

    /// The host kernel's form.
    pub(crate) fn host(&self) -> Result<&host::Rope> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let host = match self.kind {
            Kind::Fixed => host::Rope::new(&self.fast)?,
            Kind::Scaled { factor } => host::Rope { factor, ..host::Rope::new(&self.fast)? },
            Kind::Dynamic { base, factor, max_positions } => {
                let dims = self.fast.dims as usize;
                let frequencies = Frequencies::Dynamic { dims, base, factor, longest: max_positions };
                let traditional = self.fast.traditional;
                host::Rope { frequencies, traditional, ..host::Rope::fixed([]) }
            }
        };
        Ok(self.host.get_or_init(|| host))
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

#[cfg(test)]
mod tests {
    use super::*;
    use strata_artifacts::RawConfig;

    const HEAD: [f32; 16] =
        [0.9, -0.4, 0.7, 0.2, -0.8, 0.5, 0.3, -0.6, 0.1, 0.8, -0.9, 0.4, 0.6, -0.3, -0.7, -0.2];

    /// What `scaling` makes of a head of 16 values at `position`.
    fn turned(rope: &Rope, position: i32) -> Vec<f32> {
        let x = Array::from_slice(&HEAD, [1, 1, 1, 16]).unwrap();
        rope.forward(&x, &Positions::Uniform(position)).unwrap().to_vec().unwrap()
    }

    /// Pairs `(i, i + distance)` turn by `position · base^(-2i / exponent_dims)`, in float64.
    fn assert_turns(rope: &Rope, pairs: usize, distance: usize, exponent_dims: f64) {
        for position in [0, 1, 5000] {
            let mut expected = HEAD.map(f64::from);
            let mut bound = [0.0_f64; 16];
            for i in 0..pairs {
                let angle = f64::from(position) * 10000_f64.powf(-2.0 * i as f64 / exponent_dims);
                let (sin, cos) = angle.sin_cos();
                let (a, b) = (expected[i], expected[i + distance]);
                (expected[i], expected[i + distance]) = (a * cos - b * sin, a * sin + b * cos);
                // Two roundings of the angle and those of sine, cosine and sum, in float32.
                let rounding = 2.0 * f64::from(f32::EPSILON) * (angle + 2.0);
                (bound[i], bound[i + distance]) = (rounding, rounding);
            }
            for (i, found) in turned(rope, position).into_iter().enumerate() {
                let error = (f64::from(found) - expected[i]).abs();
                assert!(error <= bound[i], "position {position}, value {i}: {found}, not {}", expected[i]);
            }
        }
    }

    #[test]
    fn b13_ordinary_partial_rope_counts_by_the_rotated_width() {
        assert_turns(&Rope::plain(4, 10000.0, false), 2, 2, 4.0);
    }

    #[test]
    fn b13_proportional_rope_counts_by_the_head_and_pairs_half_a_head_apart() {
        let text = r#"{"model_type": "t", "rope_scaling":
            {"rope_type": "proportional", "partial_rotary_factor": 0.25}}"#;
        let file = RawConfig::parse(text, "config.json".as_ref()).unwrap();
        let config = Config::new("t", &file).unwrap();
        let (base, scaling) = config.rope(Some(10000.0)).unwrap();
        let rope = Rope::from_config(&config, scaling.as_ref(), 16, base, false, None).unwrap();
        assert_turns(&rope, 2, 8, 16.0);
    }
}

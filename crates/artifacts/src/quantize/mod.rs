//! Quantizing weights on the host, bit for bit as `mlx.core.quantize` does on the CPU (MLX 0.32.2).
//!
//! [`quantize`] packs one matrix in any scheme that MLX has, [`quantize_folder`] a whole model. Every operation of
//! MLX rounds to the type of the weights, so the type is part of the result: see `affine.rs` and `microscaling.rs`.

mod affine;
mod error;
mod folder;
mod microscaling;
mod plan;
mod rules;

pub use error::QuantizeError;
pub use folder::{QuantizeOptions, QuantizeSummary, quantize_folder};
pub use rules::{QuantRule, QuantRules, RuleError};

pub(crate) use affine::pack;
pub(crate) use folder::settings;
pub(crate) use plan::packed_specs;
pub(crate) use rules::group_size_beside;

use half::{bf16, f16};
use strata_contracts::{Dtype, QuantMode, QuantScheme};

/// A quantized matrix, row-major and little endian.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packed {
    /// 32-bit words of packed values.
    pub weight: Vec<u8>,
    /// One a group: the weights' own type in affine mode, otherwise one byte.
    pub scales: Vec<u8>,
    /// One a group in affine mode, in the weights' own type; otherwise empty.
    pub biases: Vec<u8>,
}

impl Packed {
    /// Type of the scales that `scheme` makes of weights of `dtype`.
    const fn scale_dtype(scheme: QuantScheme, dtype: Dtype) -> Dtype {
        if scheme.has_biases() { dtype } else { Dtype::Uint8 }
    }

    /// The arrays of a file: weight, scales and, where there are some, biases.
    pub fn into_parts(self) -> Vec<Vec<u8>> {
        let Self { weight, scales, biases } = self;
        if biases.is_empty() { vec![weight, scales] } else { vec![weight, scales, biases] }
    }

    fn append(&mut self, other: &Self) {
        self.weight.extend(&other.weight);
        self.scales.extend(&other.scales);
        self.biases.extend(&other.biases);
    }
}

/// Quantizes `values`, whole groups of `scheme`, which are exactly representable in `dtype`: float32, bfloat16 or
/// float16. Rows need no mark: each is a whole number of groups. All cores take part.
///
/// # Errors
/// [`QuantizeError::Groups`] when the values are not whole groups, [`QuantizeError::NotFinite`] when one is
/// infinite or not a number, [`QuantizeError::Dtype`] for another type.
pub fn quantize(scheme: QuantScheme, dtype: Dtype, values: &[f32]) -> Result<Packed, QuantizeError> {
    let group = scheme.group_size() as usize;
    // Packing works on eight values at a time, and every group size is a multiple of eight.
    if !values.len().is_multiple_of(group) {
        return Err(QuantizeError::Groups { values: values.len(), group_size: scheme.group_size() });
    }
    let rounding = Rounding::of(dtype)?;
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(QuantizeError::NotFinite { index, found: values[index] });
    }
    let serial = |part: &[f32]| {
        let mut packed = Packed::default();
        for group in part.chunks_exact(group) {
            match scheme.mode() {
                QuantMode::Affine => affine::push_group(scheme.bits(), rounding, group, &mut packed),
                QuantMode::Mxfp4 => microscaling::push_mxfp4(rounding, group, &mut packed),
                QuantMode::Mxfp8 => microscaling::push_mxfp8(rounding, group, &mut packed),
                QuantMode::Nvfp4 => microscaling::push_nvfp4(rounding, group, &mut packed),
            }
        }
        packed
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (values.len() / group).div_ceil(threads).max(MIN_GROUPS) * group;
    if values.len() <= share {
        return Ok(serial(values));
    }
    let serial = &serial;
    let parts: Vec<Packed> = std::thread::scope(|scope| {
        let parts = values.chunks(share).map(|part| scope.spawn(move || serial(part)));
        let parts: Vec<_> = parts.collect();
        parts
            .into_iter()
            .map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut packed = Packed::default();
    for part in &parts {
        packed.append(part);
    }
    Ok(packed)
}

/// Fewer groups than this are not worth a thread.
const MIN_GROUPS: usize = 1 << 12;

/// The type to which each of MLX's operations rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    Float32,
    Bfloat16,
    Float16,
}

impl Rounding {
    fn of(dtype: Dtype) -> Result<Self, QuantizeError> {
        match dtype {
            Dtype::Float32 => Ok(Self::Float32),
            Dtype::Bfloat16 => Ok(Self::Bfloat16),
            Dtype::Float16 => Ok(Self::Float16),
            other => Err(QuantizeError::Dtype { found: other.name() }),
        }
    }

    fn round(self, value: f32) -> f32 {
        match self {
            Self::Float32 => value,
            Self::Bfloat16 => bf16::from_f32(value).to_f32(),
            Self::Float16 => f16::from_f32(value).to_f32(),
        }
    }

    fn push(self, value: f32, out: &mut Vec<u8>) {
        match self {
            Self::Float32 => out.extend(value.to_le_bytes()),
            Self::Bfloat16 => out.extend(bf16::from_f32(value).to_le_bytes()),
            Self::Float16 => out.extend(f16::from_f32(value).to_le_bytes()),
        }
    }
}

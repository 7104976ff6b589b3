//! How a weight matrix is quantized: mode, bits and group size, proven compatible on construction.
//!
//! The modes and their legal pairs of bits and group size are those of MLX 0.32 (`mlx/ops.cpp`, `quantize`).

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Number format of a quantized matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuantMode {
    /// `w = scale * q + bias` with one scale and one bias a group.
    Affine,
    /// OCP microscaling: e2m1 values, one e8m0 scale for 32 of them.
    Mxfp4,
    /// OCP microscaling: e4m3 values, one e8m0 scale for 32 of them.
    Mxfp8,
    /// e2m1 values, one e4m3 scale for 16 of them.
    Nvfp4,
}

impl QuantMode {
    /// MLX's name of the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }
}

/// A legal combination of mode, bits and group size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct QuantScheme {
    mode: QuantMode,
    bits: u8,
    group_size: u16,
}

/// A combination as it is written.
#[derive(Deserialize)]
struct Unchecked {
    mode: QuantMode,
    bits: u32,
    group_size: u32,
}

impl TryFrom<Unchecked> for QuantScheme {
    type Error = QuantError;

    fn try_from(u: Unchecked) -> Result<Self, QuantError> {
        Self::new(u.mode, u.bits, u.group_size)
    }
}

/// Quantization settings that no kernel holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// Text that names no scheme.
    #[error(
        "`{text}` is no quantization; write BITS or BITS:GROUP, such as 4 or 8:32, or mxfp4, mxfp8 or nvfp4"
    )]
    Form {
        /// The text.
        text: String,
    },
    /// The bit width does not exist for this mode.
    #[error("{mode} quantization has no {bits}-bit form")]
    Bits {
        /// Name of the mode.
        mode: &'static str,
        /// The width asked for.
        bits: u32,
    },
    /// The group size does not exist for this mode.
    #[error("{mode} quantization has no groups of {group_size}")]
    GroupSize {
        /// Name of the mode.
        mode: &'static str,
        /// The size asked for.
        group_size: u32,
    },
    /// The row length is not a whole number of groups and packed words.
    #[error("a row of {columns} values is not a whole number of groups of {group_size}")]
    Columns {
        /// Values in one row.
        columns: usize,
        /// Values in one group.
        group_size: u32,
    },
}

impl QuantScheme {
    /// Checks a combination.
    ///
    /// # Errors
    /// [`QuantError::Bits`] or [`QuantError::GroupSize`] when MLX has no such form.
    pub fn new(mode: QuantMode, bits: u32, group_size: u32) -> Result<Self, QuantError> {
        let (all_bits, groups): (&[u32], &[u32]) = match mode {
            QuantMode::Affine => (&[2, 3, 4, 5, 6, 8], &[32, 64, 128]),
            QuantMode::Mxfp4 => (&[4], &[32]),
            QuantMode::Mxfp8 => (&[8], &[32]),
            QuantMode::Nvfp4 => (&[4], &[16]),
        };
        if !all_bits.contains(&bits) {
            return Err(QuantError::Bits { mode: mode.name(), bits });
        }
        if !groups.contains(&group_size) {
            return Err(QuantError::GroupSize { mode: mode.name(), group_size });
        }
        Ok(Self { mode, bits: bits as u8, group_size: group_size as u16 })
    }

    /// The only scheme of a microscaling mode, by MLX's name of the mode.
    fn microscaling(name: &str) -> Option<Self> {
        let schemes = [(QuantMode::Mxfp4, 4, 32), (QuantMode::Mxfp8, 8, 32), (QuantMode::Nvfp4, 4, 16)];
        let (mode, bits, group_size) = schemes.into_iter().find(|(mode, ..)| mode.name() == name)?;
        Some(Self { mode, bits, group_size })
    }

    /// Affine quantization with `bits` and `group_size`.
    ///
    /// # Errors
    /// As [`QuantScheme::new`].
    pub fn affine(bits: u32, group_size: u32) -> Result<Self, QuantError> {
        Self::new(QuantMode::Affine, bits, group_size)
    }

    /// Number format.
    pub const fn mode(self) -> QuantMode {
        self.mode
    }

    /// Bits of one value.
    pub const fn bits(self) -> u32 {
        self.bits as u32
    }

    /// Values that share one scale.
    pub const fn group_size(self) -> u32 {
        self.group_size as u32
    }

    /// True when groups carry a bias beside the scale.
    pub const fn has_biases(self) -> bool {
        matches!(self.mode, QuantMode::Affine)
    }

    /// 32-bit words that hold one row of `columns` values.
    ///
    /// # Errors
    /// [`QuantError::Columns`] when the row does not divide into groups.
    pub fn packed_columns(self, columns: usize) -> Result<usize, QuantError> {
        let group = self.group_size as usize;
        if columns == 0 || !columns.is_multiple_of(group) {
            return Err(QuantError::Columns { columns, group_size: self.group_size() });
        }
        Ok(columns / 16 * self.bits as usize / 2)
    }
}

/// `BITS` or `BITS:GROUP` for affine quantization, in groups of 64 where none is named; or the name of a mode that
/// has one scheme only: `mxfp4`, `mxfp8`, `nvfp4`.
impl FromStr for QuantScheme {
    type Err = QuantError;

    fn from_str(text: &str) -> Result<Self, QuantError> {
        if let Some(scheme) = Self::microscaling(text) {
            return Ok(scheme);
        }
        let number = |part: &str| part.parse().map_err(|_| QuantError::Form { text: text.to_owned() });
        let (bits, group_size) = text.split_once(':').unwrap_or((text, "64"));
        Self::affine(number(bits)?, number(group_size)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_read_as_bits_and_group_or_as_a_mode() {
        for (text, mode, bits, group) in [
            ("4", QuantMode::Affine, 4, 64),
            ("8:32", QuantMode::Affine, 8, 32),
            ("3:128", QuantMode::Affine, 3, 128),
            ("mxfp4", QuantMode::Mxfp4, 4, 32),
            ("mxfp8", QuantMode::Mxfp8, 8, 32),
            ("nvfp4", QuantMode::Nvfp4, 4, 16),
        ] {
            assert_eq!(text.parse(), QuantScheme::new(mode, bits, group), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_scheme_is_refused() {
        for text in ["", "four", "4:", ":32", "4:x", "4:32:1", "-4", "affine", "99999999999"] {
            let found = text.parse::<QuantScheme>();
            assert!(matches!(found, Err(QuantError::Form { .. })), "{text}: {found:?}");
        }
        assert!(matches!("7".parse::<QuantScheme>(), Err(QuantError::Bits { bits: 7, .. })));
        assert!(matches!("4:48".parse::<QuantScheme>(), Err(QuantError::GroupSize { group_size: 48, .. })));
    }
}

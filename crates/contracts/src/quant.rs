//! How a weight matrix is quantized: mode, bits and group size, proven compatible on construction.
//!
//! The modes and their legal pairs of bits and group size are those of MLX 0.32 (`mlx/ops.cpp`, `quantize`).

use serde::{Deserialize, Serialize};

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

/// A combination of quantization settings that no kernel holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
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

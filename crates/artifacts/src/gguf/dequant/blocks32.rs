//! The types with 32 values a block and one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! Values are unpacked to unsigned integers in [`quants`], which the exact repacking to MLX groups shares.

use super::half;
use crate::gguf::types::TensorType;

/// The 32 unsigned integers of one block of Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0.
///
/// The low nibbles of the 16 data bytes are values 0 to 15, the high ones 16 to 31; bit `i` of the `qh` word of
/// the 5-bit types is bit 4 of value `i`. Values of Q8_0 are shifted by 128 to be unsigned.
pub(in crate::gguf) fn quants(kind: TensorType, block: &[u8]) -> [u8; 32] {
    let nibbles = |data: &[u8]| -> [u8; 32] {
        std::array::from_fn(|i| if i < 16 { data[i] & 0x0f } else { data[i - 16] >> 4 })
    };
    let fifth_bits = |at: usize, low: [u8; 32]| -> [u8; 32] {
        std::array::from_fn(|i| low[i] | (block[at + i / 8] >> (i % 8) & 1) << 4)
    };
    match kind {
        TensorType::Q4_0 => nibbles(&block[2..]),
        TensorType::Q4_1 => nibbles(&block[4..]),
        TensorType::Q5_0 => fifth_bits(2, nibbles(&block[6..])),
        TensorType::Q5_1 => fifth_bits(4, nibbles(&block[8..])),
        TensorType::Q8_0 => std::array::from_fn(|i| block[2 + i] ^ 0x80),
        other => unreachable!("{} has no blocks of 32 linear values", other.name()),
    }
}

pub(super) fn q4_0(block: &[u8], out: &mut Vec<f32>) {
    symmetric(TensorType::Q4_0, 8, block, out);
}

pub(super) fn q5_0(block: &[u8], out: &mut Vec<f32>) {
    symmetric(TensorType::Q5_0, 16, block, out);
}

pub(super) fn q8_0(block: &[u8], out: &mut Vec<f32>) {
    symmetric(TensorType::Q8_0, 128, block, out);
}

pub(super) fn q4_1(block: &[u8], out: &mut Vec<f32>) {
    with_minimum(TensorType::Q4_1, block, out);
}

pub(super) fn q5_1(block: &[u8], out: &mut Vec<f32>) {
    with_minimum(TensorType::Q5_1, block, out);
}

/// `d * (q - zero)`
fn symmetric(kind: TensorType, zero: i16, block: &[u8], out: &mut Vec<f32>) {
    let d = half(block, 0);
    out.extend(quants(kind, block).map(|q| d * f32::from(i16::from(q) - zero)));
}

/// `d * q + m`
fn with_minimum(kind: TensorType, block: &[u8], out: &mut Vec<f32>) {
    let (d, m) = (half(block, 0), half(block, 2));
    out.extend(quants(kind, block).map(|q| d * f32::from(q) + m));
}

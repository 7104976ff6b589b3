//! Affine groups: `w = scale * q + bias`, the scale chosen so that the value of largest magnitude is exact.
//!
//! The arithmetic is float32 whatever the weights' type, in the order of `mlx/backend/cpu/quantized.cpp`
//! (`quantize`, MLX 0.32); scale and bias are rounded to the weights' type last.

use super::{Packed, Rounding};

/// Appends one group.
pub(super) fn push_group(bits: u32, rounding: Rounding, group: &[f32], packed: &mut Packed) {
    let bins = ((1_u32 << bits) - 1) as f32;
    let low = group.iter().copied().fold(f32::INFINITY, f32::min);
    let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let low_is_edge = low.abs() > high.abs();
    let mut scale = ((high - low) / bins).max(1e-7);
    if !low_is_edge {
        scale = -scale;
    }
    let edge = if low_is_edge { low } else { high };
    let steps = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if steps != 0.0 {
        scale = edge / steps;
        bias = edge;
    }
    let quants =
        group.iter().map(|&value| ((value - bias) / scale).round_ties_even().max(0.0).min(bins) as u8);
    pack(&quants.collect::<Vec<u8>>(), bits, &mut packed.weight);
    rounding.push(scale, &mut packed.scales);
    rounding.push(bias, &mut packed.biases);
}

/// Appends values of `bits` bits each, the first one lowest; eight values always fill whole bytes.
///
/// This is MLX's layout at every width: a row is one little-endian stream of bits.
pub(crate) fn pack(values: &[u8], bits: u32, out: &mut Vec<u8>) {
    for eight in values.chunks_exact(8) {
        let word = eight.iter().rev().fold(0_u64, |word, &value| word << bits | u64::from(value));
        out.extend(&word.to_le_bytes()[..bits as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_bit_values_fill_five_bytes_lowest_first() {
        let mut out = Vec::new();
        pack(&[1, 2, 3, 4, 5, 6, 7, 31], 5, &mut out);
        let word = out.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
        let back: Vec<u64> = (0..8).map(|i| word >> (5 * i) & 31).collect();
        assert_eq!((out.len(), back), (5, vec![1, 2, 3, 4, 5, 6, 7, 31]));
    }
}

//! The formats with one byte of scale a group: mxfp4, mxfp8 (OCP Microscaling Formats 1.0) and nvfp4.
//!
//! MLX composes them of array operations on the CPU (`fp_quantize` in `mlx/ops.cpp`), each of which rounds to the
//! weights' type but for the logarithm; the same steps stand here in the same order. MLX 0.32.2 takes the power of
//! two not below the ideal scale, where later sources take the nearest.

use super::affine::pack;
use super::{Packed, Rounding};

/// e2m1 values by code.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

pub(super) fn push_mxfp4(rounding: Rounding, group: &[f32], packed: &mut Packed) {
    let power = push_power_of_two(6.0, rounding, group, packed);
    let scaled = group.iter().map(|&value| rounding.round(value / power));
    push_e2m1(scaled, |difference| rounding.round(difference), packed);
}

pub(super) fn push_mxfp8(rounding: Rounding, group: &[f32], packed: &mut Packed) {
    let power = push_power_of_two(448.0, rounding, group, packed);
    packed.weight.extend(group.iter().map(|&value| to_e4m3(rounding.round(value / power))));
}

pub(super) fn push_nvfp4(rounding: Rounding, group: &[f32], packed: &mut Packed) {
    let code = to_e4m3(rounding.round(largest(group) / 6.0));
    packed.scales.push(code);
    let scale = from_e4m3(code);
    // A factor of 1 in float32 turns what follows to float32.
    push_e2m1(group.iter().map(|&value| rounding.round(value / scale)), |difference| difference, packed);
}

/// Appends the exponent of the power of two not below `largest / most`, biased by 127, and returns that power.
fn push_power_of_two(most: f32, rounding: Rounding, group: &[f32], packed: &mut Packed) -> f32 {
    let scale = rounding.round(largest(group) / most);
    let exponent = if scale == 0.0 { 0.0 } else { scale.log2().ceil() };
    packed.scales.push((exponent as i32 + 127) as u8);
    rounding.round(exponent.exp2())
}

fn largest(group: &[f32]) -> f32 {
    group.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// Appends the codes of the nearest e2m1 values; among equally near ones the lowest code.
fn push_e2m1(scaled: impl Iterator<Item = f32>, round: impl Fn(f32) -> f32, packed: &mut Packed) {
    let code = |value: f32| {
        let distance = |code: usize| round(value - E2M1[code]).abs();
        (1..16).fold(0, |best, code| if distance(code) < distance(best) { code } else { best }) as u8
    };
    pack(&scaled.map(code).collect::<Vec<u8>>(), 4, &mut packed.weight);
}

/// The e4m3 code nearest to `value`, ties to even, saturated at 448 (`ToFP8` in `mlx/backend/cpu/unary_ops.h`).
fn to_e4m3(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24 & 0x80) as u8;
    let magnitude = value.abs();
    let bits = magnitude.to_bits();
    if bits >= 543 << 21 {
        return sign | 0x7e;
    }
    if bits < 121 << 23 {
        // Subnormal: adding 2^14 leaves the multiple of 2^-9, rounded, in the lowest bits.
        let shift = f32::from_bits(141 << 23);
        return sign | ((magnitude + shift).to_bits() - shift.to_bits()) as u8;
    }
    let odd = bits >> 20 & 1;
    let rebased = bits.wrapping_add((7_u32.wrapping_sub(127) << 23).wrapping_add(0x7_ffff)).wrapping_add(odd);
    sign | (rebased >> 20) as u8
}

fn from_e4m3(code: u8) -> f32 {
    // e4m3 in the top bits of a float16 has an exponent bias smaller by eight.
    half::f16::from_bits(u16::from(code & 0x7f) << 7).to_f32() * 256.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_values_come_back_and_halves_go_to_even() {
        for code in 0..=0x7e {
            assert_eq!(to_e4m3(from_e4m3(code)), code);
            assert_eq!(to_e4m3(-from_e4m3(code)), code | 0x80);
        }
        assert_eq!((to_e4m3(1.0625), to_e4m3(1.1875), to_e4m3(1e9)), (to_e4m3(1.0), to_e4m3(1.25), 0x7e));
    }
}

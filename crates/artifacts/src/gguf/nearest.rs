//! Types that MLX can't hold exactly, as the MLX affine groups of 32 nearest to them: `w = scale * q + bias`.
//!
//! Scales and biases are rounded to float16, by at most a part in 2^12, where rounding values to bfloat16 takes a part
//! in 2^9. Each number is the one nearest to the exact value.
//!
//! - Q4_K and Q5_K have groups of 32 with a scale and a minimum, so nothing but those is rounded.
//! - Q3_K and Q6_K have a scale for each half of such a group. Two bits more than their own hold quarters of the
//!   coarser half's steps: its values stay, and the finer half's move to the nearest quarter.
//! - IQ4_NL and IQ4_XS have sixteen levels from -127 to 113 times a scale, 11 to 24 apart. Six bits hold every fourth.
//! - Q2_K has scale and minimum for each half. Four bits, two more than its own, cover the range of both.

use super::affine::Groups;
use super::dequant::{dequantize, scale_and_minimum};
use super::reader::Tensor;
use super::types::TensorType;
use half::f16;

/// Where the largest scale is below this, float16 is too coarse for scales: it has steps of 2^-24 there, which the 128
/// numbers on either side of zero multiply to an eighth of the type's own step.
const LEAST_SCALE: f32 = 1.0 / (1 << 17) as f32;

/// The bits of the groups nearest to this tensor, if its type has such and its scales are in the range of float16.
pub(super) fn bits(tensor: &Tensor<'_>) -> Option<u32> {
    let bits = width(tensor.kind)?;
    let block = tensor.kind.block();
    let mut largest = 0.0_f32;
    for bytes in tensor.data.chunks_exact(block.bytes) {
        for group in 0..block.values / 32 {
            let (scale, bias) = scale_and_bias(tensor.kind, bits, bytes, group);
            if !(scale.is_finite() && bias.is_finite()) {
                return None;
            }
            largest = largest.max(scale.to_f32().abs());
        }
    }
    (largest >= LEAST_SCALE).then_some(bits)
}

/// Appends the groups of `row`, whole blocks of a type for which `bits` gave a width.
pub(super) fn push_row(kind: TensorType, row: &[u8], groups: &mut Groups) {
    let Some(bits) = width(kind) else { return };
    let most = ((1_u32 << bits) - 1) as f32;
    let mut values = Vec::new();
    for block in row.chunks_exact(kind.block().bytes) {
        values.clear();
        dequantize(kind, block, &mut values);
        for (group, values) in values.chunks_exact(32).enumerate() {
            let (scale, bias) = scale_and_bias(kind, bits, block, group);
            // A group of equal values has no scale; any number will do, and the cast makes 0 of what is none.
            let number =
                |value: f32| ((value - bias.to_f32()) / scale.to_f32()).round().clamp(0.0, most) as u8;
            groups.push(bits, (scale, bias), &std::array::from_fn(|i| number(values[i])));
        }
    }
}

const fn width(kind: TensorType) -> Option<u32> {
    Some(match kind {
        TensorType::Q2_K | TensorType::Q4_K => 4,
        TensorType::Q3_K | TensorType::Q5_K => 5,
        TensorType::IQ4_NL | TensorType::IQ4_XS => 6,
        TensorType::Q6_K => 8,
        _ => return None,
    })
}

/// Scale and bias of the `group`th 32 values of a block.
fn scale_and_bias(kind: TensorType, bits: u32, block: &[u8], group: usize) -> (f16, f16) {
    let own = |group| scale_and_minimum(kind, block, group);
    let halves = || [own(2 * group), own(2 * group + 1)];
    let step = match kind {
        TensorType::Q4_K | TensorType::Q5_K => {
            let (scale, minimum) = own(group);
            return (f16::from_f32(scale), f16::from_f32(-minimum));
        }
        TensorType::Q2_K => {
            let ends = halves().map(|(scale, minimum)| [-minimum, 3.0 * scale - minimum]);
            let low = ends.as_flattened().iter().copied().fold(f32::INFINITY, f32::min);
            let high = ends.as_flattened().iter().copied().fold(f32::NEG_INFINITY, f32::max);
            return (f16::from_f32((high - low) / 15.0), f16::from_f32(low));
        }
        TensorType::Q3_K | TensorType::Q6_K => {
            let [(first, _), (second, _)] = halves();
            if first.abs() < second.abs() { second / 4.0 } else { first / 4.0 }
        }
        _ => own(group).0 * 4.0,
    };
    let scale = f16::from_f32(step);
    // A power of two times a float16 is one, unless it overflows.
    (scale, f16::from_f32(scale.to_f32() * -((1_u32 << (bits - 1)) as f32)))
}

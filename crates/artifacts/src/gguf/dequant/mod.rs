//! Values of GGUF blocks as float32, bit for bit what `gguf.quants.dequantize` of the Python package `gguf`
//! 0.19 gives: the same operations in the same order, no fused multiply-add.
//!
//! Block layouts are those of ggml (`ggml-common.h`). Scales stay products of floats until they meet the values.

mod blocks32;
mod iq4;
mod k_quants;

pub(super) use blocks32::quants;

use super::types::TensorType;

/// Appends the values of `data`, whole blocks of `kind`, to `out`.
pub fn dequantize(kind: TensorType, data: &[u8], out: &mut Vec<f32>) {
    let block = kind.block();
    out.reserve(data.len() / block.bytes * block.values);
    let each: fn(&[u8], &mut Vec<f32>) = match kind {
        TensorType::F32 => |b, out| out.push(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        TensorType::F16 => |b, out| out.push(half(b, 0)),
        TensorType::BF16 => |b, out| out.push(half::bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        TensorType::Q4_0 => blocks32::q4_0,
        TensorType::Q4_1 => blocks32::q4_1,
        TensorType::Q5_0 => blocks32::q5_0,
        TensorType::Q5_1 => blocks32::q5_1,
        TensorType::Q8_0 => blocks32::q8_0,
        TensorType::Q2_K => k_quants::q2_k,
        TensorType::Q3_K => k_quants::q3_k,
        TensorType::Q4_K => k_quants::q4_k,
        TensorType::Q5_K => k_quants::q5_k,
        TensorType::Q6_K => k_quants::q6_k,
        TensorType::IQ4_NL => iq4::iq4_nl,
        TensorType::IQ4_XS => iq4::iq4_xs,
    };
    for bytes in data.chunks_exact(block.bytes) {
        each(bytes, out);
    }
}

/// Scale and minimum of one of a block's groups, of 16 values in Q2_K, Q3_K and Q6_K and 32 in the others that have
/// scales within blocks or a table of levels: a value is `scale * q - minimum`, with an integer `q`.
pub(super) fn scale_and_minimum(kind: TensorType, block: &[u8], group: usize) -> (f32, f32) {
    match kind {
        TensorType::Q2_K => k_quants::q2_k_scale(block, group),
        TensorType::Q3_K => (k_quants::q3_k_scale(block, group), 0.0),
        TensorType::Q4_K | TensorType::Q5_K => k_quants::q4_k_scale(block, group),
        TensorType::Q6_K => (k_quants::q6_k_scale(block, group), 0.0),
        TensorType::IQ4_NL => (iq4::iq4_nl_scale(block), 0.0),
        TensorType::IQ4_XS => (iq4::iq4_xs_scale(block, group), 0.0),
        other => unreachable!("{} has no groups within blocks", other.name()),
    }
}

/// The float16 at byte `at` of a block, widened.
fn half(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

//! Types without an exact MLX form in the groups nearest to them: what that adds to the rounding that the type itself
//! has done. Truth: `dequantize`, which `blocks.rs` holds to the Python package `gguf`.

use crate::convert::Converted;
use crate::random::Random;
use crate::support::{Builder, Value, llama};
use half::f16;
use std::ops::Range;
use strata_artifacts::gguf::{ConvertOptions, Inexact, TensorType, dequantize};

const MODULE: &str = "model.layers.0.mlp.down_proj";
const ROWS: usize = 64;
const COLUMNS: usize = 512;

/// The type, the bytes of a block that hold its numbers, how many levels those have, the bits in MLX, and the most that
/// the squares of the added errors sum to, as a part of `step² / 12` summed, which is what rounding to the type's own
/// levels has cost.
const TYPES: [(TensorType, Range<usize>, u32, u32, f64); 7] = [
    (TensorType::Q2_K, 16..80, 4, 4, 0.05),
    (TensorType::Q3_K, 0..96, 8, 5, 0.05),
    (TensorType::Q4_K, 16..144, 16, 4, 1e-4),
    (TensorType::Q5_K, 16..176, 32, 5, 3e-4),
    (TensorType::Q6_K, 0..192, 64, 8, 0.05),
    (TensorType::IQ4_NL, 2..18, 16, 6, 0.08),
    (TensorType::IQ4_XS, 8..136, 16, 6, 0.08),
];

/// Byte offsets of a block's float16 scales.
fn halves(kind: TensorType) -> &'static [usize] {
    match kind {
        TensorType::Q2_K => &[80, 82],
        TensorType::Q3_K => &[108],
        TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        TensorType::Q6_K => &[208],
        _ => &[0],
    }
}

/// Random blocks of 64 rows whose float16 scales are about `scale`, of either sign.
fn blocks(kind: TensorType, scale: f32) -> Vec<u8> {
    let mut random = Random(7);
    let block = kind.block();
    let mut data: Vec<u8> =
        (0..ROWS * COLUMNS / block.values * block.bytes).map(|_| random.next() as u8).collect();
    for block in data.chunks_exact_mut(block.bytes) {
        for &at in halves(kind) {
            let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
            // Minima of K-quants are subtracted and never negative, nor are the scales beside them.
            let sign = if halves(kind).len() == 2 { 1.0 } else { sign };
            let value = f16::from_f32(sign * scale * (1.0 + random.below(1000) as f32 / 1000.0));
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
    data
}

fn model(kind: TensorType, data: Vec<u8>) -> Builder {
    let mut model = llama();
    model.set("llama.feed_forward_length", Value::U32(COLUMNS as u32));
    model.tensors.retain(|tensor| !tensor.name.contains("ffn_") || tensor.name.contains("norm"));
    for name in ["ffn_gate", "ffn_up"] {
        model.floats(&format!("blk.0.{name}.weight"), &[64, COLUMNS as u64], &vec![0.5; 64 * COLUMNS]);
    }
    model.tensor("blk.0.ffn_down.weight", &[COLUMNS as u64, ROWS as u64], kind.code(), data);
    model
}

fn nearest(kind: TensorType, data: Vec<u8>) -> Converted {
    let mut options = ConvertOptions::default();
    options.inexact = Inexact::Nearest;
    Converted::with(&model(kind, data), &options).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|value| f16::from_le_bytes(value.try_into().unwrap()).to_f32()).collect()
}

/// Numbers, scales and biases of the converted matrix.
fn groups(model: &Converted, bits: u32) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    let words = model.bytes(&format!("{MODULE}.weight"));
    let bit = |at: usize| u32::from(words[at / 8] >> (at % 8) & 1);
    let number = |i: usize| (0..bits as usize).map(|k| bit(i * bits as usize + k) << k).sum();
    let part = |name: &str| floats(&model.bytes(&format!("{MODULE}.{name}")));
    ((0..words.len() * 8 / bits as usize).map(number).collect(), part("scales"), part("biases"))
}

/// Each value, its lowest level and the mean distance of its levels.
fn levels(kind: TensorType, data: &[u8], numbers: &Range<usize>, levels: u32) -> Vec<(f32, f32, f32)> {
    let all = |byte: Option<u8>| {
        let mut data = data.to_vec();
        for block in data.chunks_exact_mut(kind.block().bytes) {
            if let Some(byte) = byte {
                block[numbers.clone()].fill(byte);
            }
        }
        let mut values = Vec::new();
        dequantize(kind, &data, &mut values);
        values
    };
    let (low, high) = (all(Some(0)), all(Some(0xff)));
    let value = |(i, value): (usize, f32)| (value, low[i], (high[i] - low[i]) / (levels - 1) as f32);
    all(None).into_iter().enumerate().map(value).collect()
}

#[test]
fn the_nearest_groups_add_little_to_the_types_own_rounding() {
    for (kind, numbers, count, bits, bound) in TYPES {
        let data = blocks(kind, 0.01);
        let model = nearest(kind, data.clone());
        assert_eq!(model.config["quantization"]["bits"], bits, "{}", kind.name());
        assert_eq!(model.config["quantization"]["group_size"], 32);
        let (found, scales, biases) = groups(&model, bits);
        let (mut added, mut own) = (0.0, 0.0);
        for (i, (value, _, step)) in levels(kind, &data, &numbers, count).into_iter().enumerate() {
            let error = scales[i / 32] * found[i] as f32 + biases[i / 32] - value;
            added += f64::from(error).powi(2);
            own += f64::from(step).powi(2) / 12.0;
        }
        assert_eq!(found.len(), ROWS * COLUMNS);
        assert!(added < bound * own, "{}: {}", kind.name(), added / own);
    }
}

#[test]
fn groups_with_scale_and_minimum_keep_their_numbers() {
    for (kind, numbers, count, bits, _) in TYPES {
        if !matches!(kind, TensorType::Q4_K | TensorType::Q5_K) {
            continue;
        }
        let data = blocks(kind, 0.01);
        let (found, scales, biases) = groups(&nearest(kind, data.clone()), bits);
        for (i, (value, low, step)) in levels(kind, &data, &numbers, count).into_iter().enumerate() {
            assert_eq!(scales[i / 32], f16::from_f32(step).to_f32(), "{} {i}", kind.name());
            assert_eq!(biases[i / 32], f16::from_f32(low).to_f32(), "{} {i}", kind.name());
            if step > 0.0 {
                assert_eq!(found[i], ((value - low) / step).round() as u32, "{} {i}", kind.name());
            }
        }
    }
}

#[test]
fn types_without_a_minimum_have_the_middle_number_for_zero() {
    for (kind, .., bits, _) in TYPES {
        if matches!(kind, TensorType::Q2_K | TensorType::Q4_K | TensorType::Q5_K) {
            continue;
        }
        let (_, scales, biases) = groups(&nearest(kind, blocks(kind, 0.01)), bits);
        let middle = -((1_u32 << (bits - 1)) as f32);
        assert!(scales.iter().zip(biases).all(|(scale, bias)| bias == middle * scale), "{}", kind.name());
    }
}

#[test]
fn scales_beyond_float16_make_a_tensor_bfloat16() {
    for (kind, ..) in TYPES {
        for scale in [30_000.0, 6e-8] {
            if kind == TensorType::IQ4_XS && scale < 1.0 {
                // Its scales are up to 32 times as large within the block, and just in the range.
                continue;
            }
            let model = nearest(kind, blocks(kind, scale));
            let bytes = model.bytes(&format!("{MODULE}.weight")).len();
            assert_eq!(bytes, ROWS * COLUMNS * 2, "{} {scale}", kind.name());
            assert!(model.config.get("quantization").is_none());
        }
    }
}

#[test]
fn floats_and_exact_types_are_as_they_would_be() {
    let model = nearest(TensorType::Q8_0, vec![0x21; ROWS * COLUMNS / 32 * 34]);
    assert_eq!(model.bytes(&format!("{MODULE}.weight")).len(), ROWS * COLUMNS);
    assert_eq!(model.bytes("model.layers.0.self_attn.q_proj.weight").len(), 64 * 64 * 4);
}

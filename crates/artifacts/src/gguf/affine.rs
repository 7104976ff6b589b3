//! GGUF blocks as MLX affine groups of 32, without loss: `w = scale * q + bias`.
//!
//! Q4_0, Q5_0 and Q8_0 become a scale `d` and a bias of `-8d`, `-16d`, `-128d`; Q4_1 and Q5_1 keep `d` and `m`.
//! A multiple of a float16 by a power of two is a float16 unless it overflows; `bits` refuses such tensors.
//! MLX packs a row as one little-endian stream of bits (`mlx/backend/cpu/quantized.cpp`, MLX 0.32), and its own
//! GGUF loader gives the same words, scales and biases (`mlx/io/gguf_quants.cpp`).

use super::dequant::quants;
use super::reader::Tensor;
use super::types::TensorType;
use crate::quantize::pack;
use half::f16;

/// Values in one group: a block of these types.
pub(super) const GROUP_SIZE: u32 = 32;

/// The bits at which MLX holds this tensor exactly, if it does.
pub(super) fn bits(tensor: &Tensor<'_>) -> Option<u32> {
    let (bits, _) = form(tensor.kind)?;
    let exact = tensor.data.chunks_exact(tensor.kind.block().bytes).all(|block| {
        let (scale, bias) = scale_and_bias(tensor.kind, block);
        scale.is_finite() && bias.is_finite()
    });
    exact.then_some(bits)
}

/// Rows of one matrix: packed values, scales and biases, each little endian and row-major.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Groups {
    /// 32-bit words of packed values.
    pub(super) weight: Vec<u8>,
    /// float16, one a group.
    pub(super) scales: Vec<u8>,
    /// float16, one a group.
    pub(super) biases: Vec<u8>,
}

impl Groups {
    /// Appends the groups of `row`, whole blocks of a type for which `bits` gave a width.
    pub(super) fn push_row(&mut self, kind: TensorType, row: &[u8]) {
        let Some((bits, _)) = form(kind) else { return };
        for block in row.chunks_exact(kind.block().bytes) {
            self.push(bits, scale_and_bias(kind, block), &quants(kind, block));
        }
    }

    /// Appends one group of numbers below `2^bits`.
    pub(super) fn push(&mut self, bits: u32, (scale, bias): (f16, f16), numbers: &[u8; 32]) {
        self.scales.extend(scale.to_le_bytes());
        self.biases.extend(bias.to_le_bytes());
        pack(numbers, bits, &mut self.weight);
    }
}

/// Bits a value and, for the types without a stored minimum, the factor from scale to bias.
const fn form(kind: TensorType) -> Option<(u32, Option<f32>)> {
    Some(match kind {
        TensorType::Q4_0 => (4, Some(-8.0)),
        TensorType::Q4_1 => (4, None),
        TensorType::Q5_0 => (5, Some(-16.0)),
        TensorType::Q5_1 => (5, None),
        TensorType::Q8_0 => (8, Some(-128.0)),
        _ => return None,
    })
}

fn scale_and_bias(kind: TensorType, block: &[u8]) -> (f16, f16) {
    let scale = f16::from_le_bytes([block[0], block[1]]);
    let bias = match form(kind) {
        Some((_, Some(factor))) => f16::from_f32(factor * scale.to_f32()),
        _ => f16::from_le_bytes([block[2], block[3]]),
    };
    (scale, bias)
}

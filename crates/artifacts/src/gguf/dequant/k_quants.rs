//! The types with 256 values a block and scales within the block: Q2_K to Q6_K.

use super::half;

/// 16 bytes of scale and minimum nibbles, 64 bytes of 2-bit values, `d`, `dmin`: `d·sc·q - dmin·m` in groups of 16.
pub(super) fn q2_k(block: &[u8], out: &mut Vec<f32>) {
    let (scales, values) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half(block, 80), half(block, 82));
    for i in 0..256 {
        let scale = scales[i / 16];
        let q = two_bits(values, i);
        out.push(d * f32::from(scale & 0x0f) * f32::from(q) - dmin * f32::from(scale >> 4));
    }
}

/// 32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, `d`: `d·(sc-32)·(q-4)` in groups of 16.
pub(super) fn q3_k(block: &[u8], out: &mut Vec<f32>) {
    let (third, values, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half(block, 108);
    // Low nibbles of the 16 scales stand in bytes 0 to 7, first all low halves, then all high halves; their upper
    // two bits stand in bytes 8 to 11, four scales apart.
    let scale = |group: usize| {
        let low = packed[group % 8] >> (4 * (group / 8)) & 0x0f;
        let high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
        d * f32::from(i16::from(low | high << 4) - 32)
    };
    for i in 0..256 {
        let bit = third[i % 32] >> (i / 32) & 1;
        let q = i16::from(two_bits(values, i)) - if bit == 1 { 0 } else { 4 };
        out.push(scale(i / 16) * f32::from(q));
    }
}

/// `d`, `dmin`, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles: `d·sc·q - dmin·m` in groups of 32.
pub(super) fn q4_k(block: &[u8], out: &mut Vec<f32>) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let values = &block[16..144];
    for i in 0..256 {
        let (scale, minimum) = scale_and_minimum(&block[4..16], i / 32);
        let q = nibble_pairs(values, i, 32);
        out.push(d * f32::from(scale) * f32::from(q) - dmin * f32::from(minimum));
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the nibbles.
pub(super) fn q5_k(block: &[u8], out: &mut Vec<f32>) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let (fifth, values) = (&block[16..48], &block[48..176]);
    for i in 0..256 {
        let (scale, minimum) = scale_and_minimum(&block[4..16], i / 32);
        let q = nibble_pairs(values, i, 32) | (fifth[i % 32] >> (i / 32) & 1) << 4;
        out.push(d * f32::from(scale) * f32::from(q) - dmin * f32::from(minimum));
    }
}

/// 128 bytes of nibbles, 64 bytes of upper two bits, 16 signed scales, `d`: `d·sc·(q-32)` in groups of 16.
pub(super) fn q6_k(block: &[u8], out: &mut Vec<f32>) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half(block, 208);
    for i in 0..256 {
        let q = nibble_pairs(low, i, 64) | two_bits(high, i) << 4;
        let scale = d * f32::from(i8::from_le_bytes([scales[i / 16]]));
        out.push(scale * f32::from(i16::from(q) - 32));
    }
}

/// Value `i` where each run of 32 bytes holds 128 two-bit values, 32 of them at each shift.
fn two_bits(data: &[u8], i: usize) -> u8 {
    data[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// Value `i` where each run of `run` bytes holds first the low nibbles of all, then the high ones.
fn nibble_pairs(data: &[u8], i: usize, run: usize) -> u8 {
    data[i / (2 * run) * run + i % run] >> (i / run % 2 * 4) & 0x0f
}

/// Scale and minimum of group `j` of 8: six bits each in 12 bytes. The first four pairs are whole bytes' low six
/// bits; the last four join nibbles of bytes 8 to 11 with the upper two bits of bytes 0 to 7.
fn scale_and_minimum(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 0x3f, packed[j + 4] & 0x3f)
    } else {
        let nibbles = packed[j + 4];
        (nibbles & 0x0f | packed[j - 4] >> 2 & 0x30, nibbles >> 4 | packed[j] >> 2 & 0x30)
    }
}

//! The types with 256 values a block and scales within the block: Q2_K to Q6_K.
//!
//! Scales and minima of the groups have functions of their own, which the nearest MLX groups share.

use super::half;

/// 16 bytes of scale and minimum nibbles, 64 bytes of 2-bit values, `d`, `dmin`: `d·sc·q - dmin·m` in groups of 16.
pub(super) fn q2_k(block: &[u8], out: &mut Vec<f32>) {
    for group in 0..16 {
        let (scale, minimum) = q2_k_scale(block, group);
        let value = |i| scale * f32::from(two_bits(&block[16..80], i)) - minimum;
        out.extend((16 * group..16 * (group + 1)).map(value));
    }
}

/// `d·sc` and `dmin·m` of a group of 16.
pub(super) fn q2_k_scale(block: &[u8], group: usize) -> (f32, f32) {
    let (d, dmin) = (half(block, 80), half(block, 82));
    (d * f32::from(block[group] & 0x0f), dmin * f32::from(block[group] >> 4))
}

/// 32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of 6-bit scales, `d`: `d·(sc-32)·(q-4)` in groups of 16.
pub(super) fn q3_k(block: &[u8], out: &mut Vec<f32>) {
    let (third, values) = (&block[..32], &block[32..96]);
    for group in 0..16 {
        let scale = q3_k_scale(block, group);
        let value = |i| {
            let bit = third[i % 32] >> (i / 32) & 1;
            scale * f32::from(i16::from(two_bits(values, i)) - if bit == 1 { 0 } else { 4 })
        };
        out.extend((16 * group..16 * (group + 1)).map(value));
    }
}

/// `d·(sc-32)` of a group of 16. Low nibbles of the 16 scales stand in bytes 0 to 7 of the twelve, first all low
/// halves, then all high halves; their upper two bits stand in bytes 8 to 11, four scales apart.
pub(super) fn q3_k_scale(block: &[u8], group: usize) -> f32 {
    let packed = &block[96..108];
    let low = packed[group % 8] >> (4 * (group / 8)) & 0x0f;
    let high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
    half(block, 108) * f32::from(i16::from(low | high << 4) - 32)
}

/// `d`, `dmin`, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles: `d·sc·q - dmin·m` in groups of 32.
pub(super) fn q4_k(block: &[u8], out: &mut Vec<f32>) {
    for group in 0..8 {
        let (scale, minimum) = q4_k_scale(block, group);
        let value = |i| scale * f32::from(nibble_pairs(&block[16..144], i, 32)) - minimum;
        out.extend((32 * group..32 * (group + 1)).map(value));
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the nibbles.
pub(super) fn q5_k(block: &[u8], out: &mut Vec<f32>) {
    let (fifth, values) = (&block[16..48], &block[48..176]);
    for group in 0..8 {
        let (scale, minimum) = q4_k_scale(block, group);
        let value = |i| {
            let q = nibble_pairs(values, i, 32) | (fifth[i % 32] >> group & 1) << 4;
            scale * f32::from(q) - minimum
        };
        out.extend((32 * group..32 * (group + 1)).map(value));
    }
}

/// `d·sc` and `dmin·m` of a group of 32 of Q4_K or Q5_K: six bits each in 12 bytes. The first four pairs are whole
/// bytes' low six bits; the last four join nibbles of bytes 8 to 11 with the upper two bits of bytes 0 to 7.
pub(super) fn q4_k_scale(block: &[u8], group: usize) -> (f32, f32) {
    let (d, dmin, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    let (scale, minimum) = if group < 4 {
        (packed[group] & 0x3f, packed[group + 4] & 0x3f)
    } else {
        let nibbles = packed[group + 4];
        (nibbles & 0x0f | packed[group - 4] >> 2 & 0x30, nibbles >> 4 | packed[group] >> 2 & 0x30)
    };
    (d * f32::from(scale), dmin * f32::from(minimum))
}

/// 128 bytes of nibbles, 64 bytes of upper two bits, 16 signed scales, `d`: `d·sc·(q-32)` in groups of 16.
pub(super) fn q6_k(block: &[u8], out: &mut Vec<f32>) {
    let (low, high) = (&block[..128], &block[128..192]);
    for group in 0..16 {
        let scale = q6_k_scale(block, group);
        let value = |i| {
            let q = nibble_pairs(low, i, 64) | two_bits(high, i) << 4;
            scale * f32::from(i16::from(q) - 32)
        };
        out.extend((16 * group..16 * (group + 1)).map(value));
    }
}

/// `d·sc` of a group of 16.
pub(super) fn q6_k_scale(block: &[u8], group: usize) -> f32 {
    half(block, 208) * f32::from(i8::from_le_bytes([block[192 + group]]))
}

/// Value `i` where each run of 32 bytes holds 128 two-bit values, 32 of them at each shift.
fn two_bits(data: &[u8], i: usize) -> u8 {
    data[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// Value `i` where each run of `run` bytes holds first the low nibbles of all, then the high ones.
fn nibble_pairs(data: &[u8], i: usize, run: usize) -> u8 {
    data[i / (2 * run) * run + i % run] >> (i / run % 2 * 4) & 0x0f
}

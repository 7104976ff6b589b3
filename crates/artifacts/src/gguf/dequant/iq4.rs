//! The four-bit types that look their values up in one table: IQ4_NL (32 a block) and IQ4_XS (256 a block).

use super::half;

/// The sixteen levels, `kvalues_iq4nl` of ggml.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(super) fn iq4_nl(block: &[u8], out: &mut Vec<f32>) {
    lookup(iq4_nl_scale(block), &block[2..18], out);
}

pub(super) fn iq4_nl_scale(block: &[u8]) -> f32 {
    half(block, 0)
}

/// `d` f16, high two bits of eight scales in a u16, their low nibbles in four bytes, then 8 × 16 bytes of values.
pub(super) fn iq4_xs(block: &[u8], out: &mut Vec<f32>) {
    for group in 0..8 {
        lookup(iq4_xs_scale(block, group), &block[8 + 16 * group..24 + 16 * group], out);
    }
}

/// Scale of a group of 32.
pub(super) fn iq4_xs_scale(block: &[u8], group: usize) -> f32 {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let low = block[4 + group / 2] >> (4 * (group % 2)) & 0x0f;
    let scale = i16::from(low) | ((high >> (2 * group) & 3) << 4) as i16;
    half(block, 0) * f32::from(scale - 32)
}

/// Low nibbles first, then high ones.
fn lookup(scale: f32, data: &[u8], out: &mut Vec<f32>) {
    let level = |nibble: u8| scale * f32::from(LEVELS[usize::from(nibble)]);
    out.extend(data.iter().map(|byte| level(byte & 0x0f)));
    out.extend(data.iter().map(|byte| level(byte >> 4)));
}

//! Rows of a quantized matrix as float32: `scale * q + bias`, one rounding.
#![allow(unsafe_code)]

use super::super::Quantized;
use crate::host::Level;
use crate::host::element::Element;
use crate::host::element::each_float;
use crate::host::lanes::{Body, Bytes, MAX_LANES, dispatch};

/// Writes rows `first ..` of the stack to `out`, as many as it holds.
pub(crate) fn rows(level: Level, weight: Quantized<'_>, first: usize, out: &mut [f32]) {
    match weight.scheme.bits() {
        2 => dispatch(level, Rows::<2> { weight, first, out }),
        3 => dispatch(level, Rows::<3> { weight, first, out }),
        4 => dispatch(level, Rows::<4> { weight, first, out }),
        5 => dispatch(level, Rows::<5> { weight, first, out }),
        6 => dispatch(level, Rows::<6> { weight, first, out }),
        _ => dispatch(level, Rows::<8> { weight, first, out }),
    }
}

struct Rows<'a, const BITS: u32> {
    weight: Quantized<'a>,
    first: usize,
    out: &'a mut [f32],
}

impl<const BITS: u32> Body for Rows<'_, BITS> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let Self { weight, first, out } = self;
        let (group, groups) = (weight.group(), weight.groups());
        for (at, out) in out.chunks_exact_mut(weight.columns()).enumerate() {
            let row = first + at;
            let packed = weight.packed[row * weight.row_words()..][..weight.row_words()].as_ptr();
            let scales = weight.scales.slice(row * groups..(row + 1) * groups);
            let biases = weight.biases.slice(row * groups..(row + 1) * groups);
            for (g, out) in out.chunks_exact_mut(group).enumerate() {
                let scale = each_float!(scales, scales => s.splat(scales[g].to_f32()));
                let bias = each_float!(biases, biases => s.splat(biases[g].to_f32()));
                for (at, out) in out.chunks_exact_mut(S::LANES).enumerate() {
                    let k = g * group + at * S::LANES;
                    // SAFETY: a row of packed numbers holds `K`, and every vector lies within one group.
                    unsafe {
                        let numbers = match BITS {
                            2 | 4 | 8 => s.unpack::<BITS>(packed, k),
                            _ => odd::<S, BITS>(s, packed.cast(), k),
                        };
                        s.store(out.as_mut_ptr(), s.fma(scale, numbers, bias));
                    }
                }
            }
        }
    }
}

/// `LANES` numbers of 3, 5 or 6 bits from value `at` on, as floats.
#[inline(always)]
unsafe fn odd<S: Bytes, const BITS: u32>(s: S, row: *const u8, at: usize) -> S::V {
    let mut floats = [0.0; MAX_LANES];
    for (part, eight) in floats[..S::LANES.max(8)].chunks_exact_mut(8).enumerate() {
        // With four lanes, the eight numbers around `at` are taken apart and the right half kept.
        let first = (at / 8 + part) * BITS as usize;
        let mut word = 0_u64;
        for i in 0..BITS as usize {
            // SAFETY: eight numbers are `BITS` whole bytes of the row.
            word |= u64::from(unsafe { *row.add(first + i) }) << (8 * i);
        }
        for (i, x) in eight.iter_mut().enumerate() {
            *x = (word >> (i as u32 * BITS) & ((1 << BITS) - 1)) as f32;
        }
    }
    // SAFETY: the array holds a vector from either half.
    unsafe { s.load(floats.as_ptr().add(at % 8)) }
}

//! Rows of a quantized matrix as float32: `scale * q + bias`, one rounding.
#![allow(unsafe_code)]

use super::super::Quantized;
use crate::host::Level;
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
        let (group, groups, row_bytes) = (weight.group(), weight.groups(), weight.row_bytes());
        for (at, out) in out.chunks_exact_mut(weight.columns()).enumerate() {
            let row = first + at;
            let packed = &weight.packed[row * weight.row_words()..][..weight.row_words()];
            let mut factors = [[0.0; MAX_LANES]; 2];
            for (g, out) in out.chunks_exact_mut(group).enumerate() {
                let lane = g % S::LANES;
                if lane == 0 {
                    let count = S::LANES.min(groups - g);
                    for (values, floats) in [weight.scales, weight.biases].into_iter().zip(&mut factors) {
                        let at = row * groups + g;
                        // SAFETY: the row has `count` more groups, and the array holds a vector.
                        each_float!(values, values => unsafe {
                            s.store(floats.as_mut_ptr(), s.load_some(values[at..].as_ptr(), count));
                        });
                    }
                }
                let (scale, bias) = (s.splat(factors[0][lane]), s.splat(factors[1][lane]));
                // Numbers that cross bytes are spread first, as many at a time as a group holds at least.
                let step = if matches!(BITS, 2 | 4 | 8) { group } else { group.min(4 * S::LANES) };
                for (part, out) in out.chunks_exact_mut(step).enumerate() {
                    let start = g * group + part * step;
                    let mut bytes = [0_u32; MAX_LANES];
                    let (numbers, offset) = if matches!(BITS, 2 | 4 | 8) {
                        (packed.as_ptr(), start)
                    } else {
                        let from = start * BITS as usize / 8;
                        let count = (step * BITS as usize / 8).min(row_bytes - from);
                        // SAFETY: `count` bytes are left in the row; the array holds a vector of bytes.
                        unsafe {
                            let numbers = s.load_odd::<BITS>(packed.as_ptr().cast::<u8>().add(from), count);
                            s.store_bytes(bytes.as_mut_ptr().cast(), numbers);
                        }
                        (bytes.as_ptr(), 0)
                    };
                    for (at, out) in out.chunks_exact_mut(S::LANES).enumerate() {
                        let k = offset + at * S::LANES;
                        // SAFETY: `step` numbers start at `offset`, whole vectors of them.
                        unsafe {
                            let x = match BITS {
                                2 | 4 => s.unpack::<BITS>(numbers, k),
                                _ => s.unpack::<8>(numbers, k),
                            };
                            s.store(out.as_mut_ptr(), s.fma(scale, x, bias));
                        }
                    }
                }
            }
        }
    }
}

//! Quantization of rows on the CPU.
#![allow(unsafe_code)]

use crate::Error;
use crate::host::Level;
use crate::host::lanes::{Body, Lane, Simd, dispatch};
use crate::host::pool::{Disjoint, parallel_for};
use crate::host::rows::{PIECE, Rows, expect};
use strata_contracts::QuantScheme;

/// The largest group.
const MOST: usize = 128;

/// Words, and scales and biases, all contiguous, of rows `x`.
///
/// # Errors
/// [`Error::Shape`] when the results do not fit; [`Error::Unsupported`] when rows are not whole groups.
pub fn quantize<E: Lane>(
    level: Level,
    x: Rows<'_, E>,
    scheme: QuantScheme,
    words: &mut [u32],
    [scales, biases]: [&mut [E]; 2],
) -> Result<(), Error> {
    const KERNEL: &str = "quantize";
    let (count, group) = (x.count(), scheme.group_size() as usize);
    let each = scheme
        .packed_columns(x.width())
        .map_err(|error| Error::Unsupported { kernel: KERNEL, what: error.to_string() })?;
    let groups = x.width() / group;
    expect(KERNEL, "words", "elements", count * each, words.len())?;
    expect(KERNEL, "scales", "elements", count * groups, scales.len())?;
    expect(KERNEL, "biases", "elements", count * groups, biases.len())?;
    let (words, scales, biases) = (Disjoint::new(words), Disjoint::new(scales), Disjoint::new(biases));
    let piece = PIECE.div_ceil(x.width().max(1));
    parallel_for(count.div_ceil(piece), |index| {
        for row in index * piece..count.min((index + 1) * piece) {
            // SAFETY: each row has words and factors of its own.
            let (words, scales, biases) = unsafe {
                (
                    words.range(row * each..(row + 1) * each),
                    scales.range(row * groups..(row + 1) * groups),
                    biases.range(row * groups..(row + 1) * groups),
                )
            };
            let factors = scales.iter_mut().zip(biases);
            let parts = x.row(row).chunks_exact(group).zip(words.chunks_exact_mut(each / groups.max(1)));
            for ((x, words), (scale, bias)) in parts.zip(factors) {
                let most = (1_u32 << scheme.bits()) - 1;
                let mut numbers = [0.0; MOST];
                let found = dispatch(level, Group { x, most: most as f32, numbers: &mut numbers });
                (*scale, *bias) = (E::from_f32(found[0]), E::from_f32(found[1]));
                pack(&numbers[..group], scheme.bits(), words);
            }
        }
    });
    Ok(())
}

/// Packs numbers, the first in the lowest bits.
fn pack(numbers: &[f32], bits: u32, words: &mut [u32]) {
    let (mut held, mut have) = (0_u64, 0);
    let mut words = words.iter_mut();
    for &number in numbers {
        held |= u64::from(number as u32) << have;
        have += bits;
        if have >= 32 {
            if let Some(word) = words.next() {
                *word = held as u32;
            }
            (held, have) = (held >> 32, have - 32);
        }
    }
}

/// Writes the numbers of a group and returns its scale and bias.
struct Group<'a, E> {
    x: &'a [E],
    /// The largest number.
    most: f32,
    numbers: &'a mut [f32; MOST],
}

impl<E: Lane> Body for Group<'_, E> {
    type Out = [f32; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; 2] {
        let Self { x, most, numbers } = self;
        let (mut low, mut high) = (s.splat(f32::INFINITY), s.splat(f32::NEG_INFINITY));
        let mut differences = s.splat(0.0);
        for at in (0..x.len()).step_by(S::LANES) {
            let value = E::get(s, x, at);
            // Where one is NaN, the second operand is what comes out.
            (low, high) = (s.min(value, low), s.max(value, high));
            differences = s.add(differences, s.sub(value, value));
        }
        let nan = s.sum(differences).is_nan();
        let (low, high) = (-s.largest(s.sub(s.splat(0.0), low)), s.largest(high));
        let is_low = low.abs() > high.abs();
        let step = ((high - low) / most).max(1e-7);
        let (step, edge) = if is_low { (step, low) } else { (-step, high) };
        let n = (edge / step).round_ties_even();
        let (scale, bias) = if n == 0.0 { (step, 0.0) } else { (edge / n, edge) };
        let (scales, biases) = (s.splat(scale), s.splat(bias));
        for at in (0..x.len()).step_by(S::LANES) {
            let number = s.round(s.div(s.sub(E::get(s, x, at), biases), scales));
            f32::put(s, numbers, at, s.min(s.max(number, s.splat(0.0)), s.splat(most)));
        }
        [if nan { f32::NAN } else { scale }, bias]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::Random;
    use half::{bf16, f16};

    fn check_type<E: Lane>() {
        for (bits, group) in [(2, 32), (3, 64), (4, 32), (5, 128), (6, 32), (8, 64)] {
            let scheme = QuantScheme::affine(bits, group).unwrap();
            let width = 2 * group as usize;
            let mut x: Vec<E> = Random::new(u64::from(bits)).vec(5 * width, 3.0);
            x[..group as usize].fill(E::from_f32(0.0));
            x[group as usize..width].fill(E::from_f32(-1.5));
            let rows = Rows::contiguous("test", "x", &x, width).unwrap();
            let each = scheme.packed_columns(width).unwrap();
            let mut first: Option<(Vec<u32>, Vec<f32>)> = None;
            for level in Level::available() {
                let (mut words, mut scales) = (vec![7; 5 * each], vec![E::default(); 10]);
                let mut biases = scales.clone();
                quantize(level, rows, scheme, &mut words, [&mut scales, &mut biases]).unwrap();
                for (at, value) in x.iter().enumerate() {
                    let (row, column) = (at / width, at % width);
                    let bit = column * bits as usize;
                    let words = &words[row * each..];
                    let pair = u64::from(words[bit / 32])
                        | u64::from(words.get(bit / 32 + 1).copied().unwrap_or(0)) << 32;
                    let number = (pair >> (bit % 32)) & ((1 << bits) - 1);
                    let of = |factors: &[E]| factors[at / group as usize].to_f32();
                    let exact = (value.to_f32() - of(&biases)) / of(&scales);
                    let expected = exact.round_ties_even().clamp(0.0, ((1 << bits) - 1) as f32);
                    // Half types round scale and bias afterwards.
                    if E::DTYPE == strata_contracts::Dtype::Float32 {
                        assert_eq!(number as f32, expected, "{level:?} {bits} bits, value {at}");
                    }
                }
                let floats: Vec<f32> = scales.iter().chain(&biases).map(|x| x.to_f32()).collect();
                assert_eq!(
                    *first.get_or_insert((words.clone(), floats.clone())),
                    (words, floats),
                    "{level:?}"
                );
            }
        }
    }

    #[test]
    fn numbers_are_the_nearest_and_the_same_at_every_level() {
        check_type::<f32>();
        check_type::<f16>();
        check_type::<bf16>();
    }

    #[test]
    fn nan_and_infinity_reach_what_is_read() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 13, 31] {
                let mut x = [0.5_f32; 64];
                x[at] = bad;
                let rows = Rows::contiguous("test", "x", &x, 64).unwrap();
                for level in Level::available() {
                    let (mut words, mut scales, mut biases) = ([0; 8], [0.0; 2], [0.0; 2]);
                    let scheme = QuantScheme::affine(4, 32).unwrap();
                    quantize(level, rows, scheme, &mut words, [&mut scales, &mut biases]).unwrap();
                    assert!(!(scales[0] + biases[0]).is_finite(), "{level:?} {bad} {scales:?} {biases:?}");
                    assert!(scales[1].is_finite() && biases[1].is_finite());
                }
            }
        }
    }
}

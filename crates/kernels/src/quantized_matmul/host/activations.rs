//! Activations rounded to 16 bits in blocks of 32, laid out as the dot products of panels read them.
//!
//! A block is 32 bytes of `hi` and 32 of `lo` of numbers `255 hi + lo`, both in `-127 ..= 127`. Its bytes stand in the order in which
//! quads of the weights meet them: of each word, which is `4 * phases` columns, first every `phases`th column from the first on, then
//! from the second on, and so on. Rounding to int8 alone costs SmolLM2-135M 1.7 % of perplexity; a second dot product costs nothing
//! where reading the weights takes longer.

use crate::host::lanes::{Bytes, Lane};

/// Values that share one step.
pub(crate) const BLOCK: usize = 32;

/// 1.5 * 2^23, whose low 16 bits are zero.
const MAGIC: f32 = 12_582_912.0;

/// What `hi` counts.
pub(crate) const RADIX: f32 = 255.0;

/// The largest number of 16-bit rounding.
const LARGEST: f32 = 127.0 * RADIX;

/// Below this an activation block counts as zero: its step would not be a normal float32.
const TINY: f32 = 1e-30;

/// How rows for one kind of weight matrix are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) columns: usize,
    group: usize,
    phases: usize,
    /// Bytes, steps and sums of a row.
    pub(crate) bytes: usize,
    pub(crate) steps: usize,
    pub(crate) sums: usize,
}

/// Rounded rows.
#[derive(Clone, Copy)]
pub(crate) struct RoundedRows<'a> {
    pub(crate) layout: Layout,
    /// `[rows, layout.bytes]`.
    pub(crate) bytes: &'a [i8],
    /// `[rows, layout.steps]`.
    pub(crate) steps: &'a [f32],
    /// `[rows, layout.sums]`: of each group of the weights, the sum of the rounded activations.
    pub(crate) sums: &'a [f32],
}

impl Layout {
    /// For `columns`, whole blocks and groups, and weights with so many quads in a word.
    pub(crate) fn new(columns: usize, group: usize, phases: usize) -> Self {
        Self { columns, group, phases, bytes: 2 * columns, steps: columns / BLOCK, sums: columns / group }
    }

    /// Rounds one row. Returns false when a value is not finite; the row is then worthless.
    #[inline(always)]
    pub(crate) fn round_row<S: Bytes>(
        self,
        s: S,
        row: &[f32],
        bytes: &mut [i8],
        steps: &mut [f32],
        sums: &mut [f32],
    ) -> bool {
        let (blocks_per_group, magic) = (self.group / BLOCK, s.splat(MAGIC));
        sums.fill(0.0);
        let mut largest_bits = 0;
        let (mut group, mut inner) = (0, 0);
        let blocks =
            row.as_chunks::<BLOCK>().0.iter().zip(bytes.as_chunks_mut::<BLOCK>().0.as_chunks_mut::<2>().0);
        for ((block, [first, second]), at_step) in blocks.zip(steps) {
            let (bits, step, inverse) = measure(block);
            largest_bits = bits.max(largest_bits);
            let (inverse, mut sum) = (s.splat(inverse), s.splat(0.0));
            let mut dealt = [[0; BLOCK]; 2];
            for at in (0..BLOCK).step_by(S::LANES) {
                // Adding 1.5 * 2^23 leaves the nearest integer in the low bits. No number is halfway between two of `high`.
                let round = |x| s.sub(s.add(x, magic), magic);
                let whole = round(s.mul(f32::get(s, block, at), inverse));
                let high = round(s.mul(whole, s.splat(1.0 / RADIX)));
                let low = s.sub(whole, s.mul(s.splat(RADIX), high));
                sum = s.add(sum, whole);
                s.low_bytes(s.as_bytes(s.add(high, magic)), &mut dealt[0][at..]);
                s.low_bytes(s.as_bytes(s.add(low, magic)), &mut dealt[1][at..]);
            }
            // Sums of so few integers are exact.
            sums[group] += step * s.sum(sum);
            *at_step = step;
            s.deal(&dealt[0], self.phases, first);
            s.deal(&dealt[1], self.phases, second);
            inner += 1;
            if inner == blocks_per_group {
                (group, inner) = (group + 1, 0);
            }
        }
        largest_bits < f32::INFINITY.to_bits()
    }
}

/// The bits of a block's largest magnitude, the step that makes it [`LARGEST`], and the inverse of the step.
#[inline(always)]
fn measure(block: &[f32; BLOCK]) -> (u32, f32, f32) {
    // Magnitudes compare as integers, and those of infinities and NaN are the largest.
    let bits = block.iter().fold(0, |most, x| (x.to_bits() & 0x7fff_ffff).max(most));
    let largest = f32::from_bits(bits);
    if largest < TINY { (bits, 0.0, 0.0) } else { (bits, largest / LARGEST, LARGEST / largest) }
}

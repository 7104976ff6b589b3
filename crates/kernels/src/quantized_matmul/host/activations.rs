//! Activations rounded to int8 in blocks of 32, laid out as the dot products read them.
//!
//! A chunk is what one vector of packed weights covers: `4 * lanes * phases` values. Value `i` of a chunk stands at
//! `i % phases * 4 * lanes + i / phases`, so that phase `p` of the weight bytes meets the activations in its order. Lane `l` of
//! all chunks together then belongs to block `l * phases / 8`; `steps` holds the block's step `d` once for each lane. For
//! panels of weights, whose lanes are output features, a chunk is one word of a row (one lane), and rounding is to 16 bits: a
//! block is 32 bytes of `hi` and 32 of `lo` of numbers `255 hi + lo`, both in `-127 ..= 127`. Rounding to int8 alone costs SmolLM2-135M
//! 1.7 % of perplexity; a second dot product costs nothing where reading the weights takes longer.
//! Everything beyond the last value is zero.

use super::super::Quantized;
use crate::host::Level;
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
    pub(crate) group: usize,
    pub(crate) phases: usize,
    lanes: usize,
    /// Values of a chunk.
    pub(crate) chunk: usize,
    /// Bytes, steps and sums of a row, whole chunks and vectors.
    pub(crate) bytes: usize,
    pub(crate) steps: usize,
    pub(crate) sums: usize,
}

/// Rounded rows.
#[derive(Clone, Copy)]
pub(crate) struct Int8Rows<'a> {
    pub(crate) layout: Layout,
    /// `[rows, layout.bytes]`.
    pub(crate) bytes: &'a [i8],
    /// `[rows, layout.steps]`.
    pub(crate) steps: &'a [f32],
    /// `[rows, layout.sums]`: of each group of the weights, the sum of the rounded activations.
    pub(crate) sums: &'a [f32],
    /// `[layout.steps]`: the group of each lane.
    pub(crate) groups: &'a [u32],
}

impl Layout {
    pub(crate) fn new(level: Level, weight: Quantized<'_>) -> Self {
        Self::of(weight.columns(), weight.group(), weight.phases(), level.lanes())
    }

    /// For panels.
    pub(crate) fn of_words(columns: usize, group: usize, phases: usize) -> Self {
        let single = Self::of(columns, group, phases, 1);
        Self { bytes: 2 * single.bytes, ..single }
    }

    fn of(columns: usize, group: usize, phases: usize, lanes: usize) -> Self {
        let chunk = 4 * lanes * phases;
        let bytes = columns.next_multiple_of(chunk);
        Self {
            columns,
            group,
            phases,
            lanes,
            chunk,
            bytes,
            steps: bytes / (4 * phases),
            sums: (columns / group).next_multiple_of(lanes),
        }
    }

    /// The group of each lane, see [`Int8Rows::groups`].
    pub(crate) fn fill_groups(self, groups: &mut [u32]) {
        for (lane, group) in groups.iter_mut().enumerate() {
            *group = (lane * 4 * self.phases / self.group) as u32;
        }
    }

    /// Deals the numbers of a block to its phases, `EACH` to each.
    #[inline(always)]
    fn deal<const PHASES: usize, const EACH: usize>(self, rounded: &[i32; BLOCK], to: &mut [i8]) {
        for phase in 0..PHASES {
            let dealt: [i8; EACH] = std::array::from_fn(|i| rounded[PHASES * i + phase] as i8);
            to[phase * 4 * self.lanes..][..EACH].copy_from_slice(&dealt);
        }
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
        if self.lanes == 1 {
            return self.round_words(s, row, bytes, steps, sums);
        }
        let chunk = self.chunk;
        let lanes_per_block = 8 / self.phases;
        sums.fill(0.0);
        let mut largest_bits = 0;
        for (at, block) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
            let (bits, step, inverse) = measure(block, 127.0);
            largest_bits = bits.max(largest_bits);
            // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
            let rounded: [i32; BLOCK] =
                std::array::from_fn(|i| i32::from((block[i] * inverse + MAGIC).to_bits() as u8 as i8));
            sums[at * BLOCK / self.group] += step * rounded.iter().sum::<i32>() as f32;
            steps[at * lanes_per_block..(at + 1) * lanes_per_block].fill(step);
            let (start, offset) = (at * BLOCK / chunk * chunk, at * BLOCK % chunk / self.phases);
            let to = &mut bytes[start + offset..];
            match self.phases {
                1 => to[..BLOCK].copy_from_slice(&rounded.map(|y| y as i8)),
                2 => self.deal::<2, 16>(&rounded, to),
                _ => self.deal::<4, 8>(&rounded, to),
            }
        }
        steps[self.columns / (4 * self.phases)..].fill(0.0);
        let last = self.columns / chunk * chunk;
        let filled = self.columns - last;
        if filled > 0 {
            for part in bytes[last..].chunks_exact_mut(4 * self.lanes) {
                part[filled / self.phases..].fill(0);
            }
        }
        largest_bits < f32::INFINITY.to_bits()
    }

    /// [`Layout::round_row`] for panels.
    #[inline(always)]
    fn round_words<S: Bytes>(
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
        for ((block, [first, second]), steps) in blocks.zip(steps.chunks_exact_mut(8 / self.phases)) {
            let (bits, step, inverse) = measure(block, LARGEST);
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
            steps.fill(step);
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

/// The bits of a block's largest magnitude, the step that makes it `parts`, and the inverse of the step.
#[inline(always)]
fn measure(block: &[f32; BLOCK], parts: f32) -> (u32, f32, f32) {
    // Magnitudes compare as integers, and those of infinities and NaN are the largest.
    let bits = block.iter().fold(0, |most, x| (x.to_bits() & 0x7fff_ffff).max(most));
    let largest = f32::from_bits(bits);
    if largest < TINY { (bits, 0.0, 0.0) } else { (bits, largest / parts, parts / largest) }
}

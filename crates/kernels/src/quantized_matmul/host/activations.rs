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
use crate::host::lanes::Bytes;

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
        _: S,
        row: &[f32],
        bytes: &mut [i8],
        steps: &mut [f32],
        sums: &mut [f32],
    ) -> bool {
        if self.lanes == 1 {
            return self.round_words(row, bytes, steps, sums);
        }
        let chunk = self.chunk;
        let lanes_per_block = 8 / self.phases;
        sums.fill(0.0);
        let mut largest_bits = 0;
        for (at, block) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
            // Magnitudes compare as integers, and those of infinities and NaN are the largest.
            let bits = block.iter().fold(0, |most, x| (x.to_bits() & 0x7fff_ffff).max(most));
            largest_bits = bits.max(largest_bits);
            let largest = f32::from_bits(bits);
            let (step, inverse) =
                if largest < TINY { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) };
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
    fn round_words(self, row: &[f32], bytes: &mut [i8], steps: &mut [f32], sums: &mut [f32]) -> bool {
        let words = 8 / self.phases;
        sums.fill(0.0);
        let mut largest_bits = 0;
        let blocks = row.as_chunks::<BLOCK>().0.iter().zip(bytes.chunks_exact_mut(2 * BLOCK));
        for (at, (block, to)) in blocks.enumerate() {
            // Magnitudes compare as integers, and those of infinities and NaN are the largest.
            let bits = block.iter().fold(0, |most, x| (x.to_bits() & 0x7fff_ffff).max(most));
            largest_bits = bits.max(largest_bits);
            let largest = f32::from_bits(bits);
            let (step, inverse) =
                if largest < TINY { (0.0, 0.0) } else { (largest / LARGEST, LARGEST / largest) };
            // Adding 1.5 * 2^23 leaves the nearest integer in the low bits. No number is halfway between two of `hi`.
            let whole: [f32; BLOCK] = std::array::from_fn(|i| (block[i] * inverse + MAGIC) - MAGIC);
            let hi: [f32; BLOCK] = std::array::from_fn(|i| (whole[i] * (1.0 / RADIX) + MAGIC) - MAGIC);
            let integer = |x: f32| i32::from((x + MAGIC).to_bits() as u16 as i16);
            let sum: i32 = whole.iter().map(|&x| integer(x)).sum();
            sums[at * BLOCK / self.group] += step * sum as f32;
            steps[at * words..(at + 1) * words].fill(step);
            let (first, second) = to.split_at_mut(BLOCK);
            self.deal_words(&std::array::from_fn(|i| integer(hi[i])), first);
            self.deal_words(&std::array::from_fn(|i| integer(whole[i] - RADIX * hi[i])), second);
        }
        largest_bits < f32::INFINITY.to_bits()
    }

    /// Deals the numbers of a block to the phases of each word.
    #[inline(always)]
    fn deal_words(self, numbers: &[i32; BLOCK], to: &mut [i8]) {
        match self.phases {
            1 => to.copy_from_slice(&numbers.map(|y| y as i8)),
            2 => deal::<2>(numbers, to),
            _ => deal::<4>(numbers, to),
        }
    }
}

#[inline(always)]
fn deal<const PHASES: usize>(numbers: &[i32; BLOCK], to: &mut [i8]) {
    let dealt: [i8; BLOCK] = std::array::from_fn(|at| {
        let (word, phase, byte) = (at / (4 * PHASES), at % (4 * PHASES) / 4, at % 4);
        numbers[word * 4 * PHASES + byte * PHASES + phase] as i8
    });
    to.copy_from_slice(&dealt);
}

//! Activations rounded to int8 in blocks of 32, laid out as the dot products read them.
//!
//! A chunk is what one vector of packed weights covers: `4 * lanes * phases` values. Value `i` of a chunk stands at
//! `i % phases * 4 * lanes + i / phases`, so that phase `p` of the weight bytes meets the activations in its order. Lane `l` of
//! all chunks together then belongs to block `l * phases / 8`; `steps` holds the block's step `d` once for each lane.
//! Everything beyond the last value is zero.

use super::super::Quantized;
use crate::host::Level;
use crate::host::lanes::Bytes;

/// Values that share one step.
pub(crate) const BLOCK: usize = 32;

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
        let (columns, group, phases, lanes) =
            (weight.columns(), weight.group(), weight.phases(), level.lanes());
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
            let mut rounded = [0_i8; BLOCK];
            let mut sum = 0;
            for (x, y) in block.iter().zip(&mut rounded) {
                // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
                *y = (x * inverse + 12_582_912.0).to_bits() as u8 as i8;
            }
            for y in rounded {
                sum += i32::from(y);
            }
            sums[at * BLOCK / self.group] += step * sum as f32;
            steps[at * lanes_per_block..(at + 1) * lanes_per_block].fill(step);
            let (start, offset) = (at * BLOCK / chunk * chunk, at * BLOCK % chunk / self.phases);
            let to = &mut bytes[start + offset..];
            match self.phases {
                1 => to[..BLOCK].copy_from_slice(&rounded),
                2 => {
                    for phase in 0..2 {
                        let to = &mut to[phase * 4 * self.lanes..][..16];
                        for (i, y) in to.iter_mut().enumerate() {
                            *y = rounded[2 * i + phase];
                        }
                    }
                }
                _ => {
                    for phase in 0..4 {
                        let to = &mut to[phase * 4 * self.lanes..][..8];
                        for (i, y) in to.iter_mut().enumerate() {
                            *y = rounded[4 * i + phase];
                        }
                    }
                }
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
}

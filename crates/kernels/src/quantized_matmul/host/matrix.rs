//! Many rows of int8 activations times a tile of weights, unpacked once.
//!
//! Lanes are output features here. A panel is `2 * LANES` rows of weights, turned so that one vector holds four
//! consecutive numbers (in the order of the activations' layout) of each of `LANES` rows; it is made once and used for all
//! rows of activations, `MR` of them at a time with all sums in registers.
#![allow(unsafe_code)]

use super::super::Quantized;
use super::activations::{BLOCK, Int8Rows};
use crate::host::element::each_float;
use crate::host::lanes::{Body, Bytes, MAX_LANES, dispatch};
use crate::host::{Level, scratch};
use crate::linear::host::TILE;
use std::ops::Range;

/// `out[m, c] = x[rows[m]] . W[first + c]` for [`TILE`] columns `c`.
pub(crate) fn tile(
    level: Level,
    weight: Quantized<'_>,
    x: &Int8Rows<'_>,
    rows: Range<usize>,
    first: usize,
    out: &mut [f32],
) {
    assert!(first + TILE <= weight.rows() && x.layout.columns == weight.columns());
    assert!(rows.end * x.layout.bytes <= x.bytes.len() && x.layout.phases == weight.phases());
    assert!(out.len() >= rows.len() * TILE);
    let width = 2 * level.lanes();
    let groups = weight.groups();
    // 3, 5 and 6 bits are spread to bytes first, in rows padded to whole vectors.
    let spread = if weight.phases() == 1 && weight.scheme.bits() != 8 { x.layout.bytes } else { 0 };
    scratch::with_i8((weight.columns() + spread) * width, |bytes| {
        let (panel, spread) = bytes.split_at_mut(weight.columns() * width);
        scratch::with_f32(2 * groups * width, |factors| {
            for column in (first..first + TILE).step_by(width) {
                turn(level, weight, column, panel, spread);
                dispatch(level, TurnFactors { weight, column, factors });
                let panel = Panel { bytes: panel, factors, groups };
                let (rows, out) = (rows.clone(), &mut out[column - first..]);
                match (weight.phases(), weight.scheme.bits()) {
                    (4, _) => dispatch(level, Times::<4, false> { panel, x, rows, out }),
                    (2, _) => dispatch(level, Times::<2, false> { panel, x, rows, out }),
                    (_, 8) => dispatch(level, Times::<1, true> { panel, x, rows, out }),
                    _ => dispatch(level, Times::<1, false> { panel, x, rows, out }),
                }
            }
        });
    });
}

/// Turns the rows of a panel, spreading them to bytes first where their numbers cross bytes.
fn turn(level: Level, weight: Quantized<'_>, column: usize, panel: &mut [i8], spread: &mut [i8]) {
    let (from, row_bytes) = (packed(weight, column), weight.row_bytes());
    match weight.scheme.bits() {
        2 => dispatch(level, Turn::<2, 4> { from, row_bytes, panel }),
        4 => dispatch(level, Turn::<4, 2> { from, row_bytes, panel }),
        8 => dispatch(level, Turn::<8, 1> { from, row_bytes, panel }),
        bits => {
            match bits {
                3 => dispatch(level, Spread::<3> { weight, column, to: spread }),
                5 => dispatch(level, Spread::<5> { weight, column, to: spread }),
                _ => dispatch(level, Spread::<6> { weight, column, to: spread }),
            }
            let row_bytes = spread.len() / (2 * level.lanes());
            dispatch(level, Turn::<8, 1> { from: bytes_of(spread), row_bytes, panel });
        }
    }
}

/// The packed rows from `column` on.
fn packed(weight: Quantized<'_>, column: usize) -> &[u8] {
    let words = &weight.packed[column * weight.row_words()..];
    // SAFETY: any bytes are valid.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 4) }
}

fn bytes_of(signed: &[i8]) -> &[u8] {
    // SAFETY: one size, any bits are valid.
    unsafe { std::slice::from_raw_parts(signed.as_ptr().cast(), signed.len()) }
}

/// Turns `2 * LANES` rows. For each block: phases, quads of a phase, two vectors.
struct Turn<'a, const BITS: u32, const PHASES: usize> {
    from: &'a [u8],
    row_bytes: usize,
    panel: &'a mut [i8],
}

impl<const BITS: u32, const PHASES: usize> Body for Turn<'_, BITS, PHASES> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let Self { from, row_bytes, panel } = self;
        let columns = panel.len() / (2 * S::LANES);
        assert!(from.len() >= 2 * S::LANES * row_bytes && columns * BITS as usize <= 8 * row_bytes);
        let words = columns * BITS as usize / 32;
        for half in 0..2 {
            let from = &from[half * S::LANES * row_bytes..];
            let mut word = 0;
            // SAFETY: `LANES` rows hold `words` words (above); the panel, `columns` bytes for each row, all that come of them.
            unsafe {
                while word + S::LANES <= words {
                    let mut rows = [s.splat(0.0); MAX_LANES];
                    for (i, row) in rows.iter_mut().enumerate().take(S::LANES) {
                        *row = s.as_floats(s.load_bytes(from.as_ptr().add(i * row_bytes + 4 * word)));
                    }
                    s.transpose(&mut rows);
                    for (i, row) in rows.iter().enumerate().take(S::LANES) {
                        put_word::<S, BITS, PHASES>(s, s.as_bytes(*row), word + i, half, panel);
                    }
                    word += S::LANES;
                }
                while word < words {
                    let bytes = s.load_strided(from.as_ptr().add(4 * word), row_bytes);
                    put_word::<S, BITS, PHASES>(s, bytes, word, half, panel);
                    word += 1;
                }
            }
        }
    }
}

/// Stores the phases of word `word` of `LANES` rows where [`Panel`] expects them.
#[inline(always)]
unsafe fn put_word<S: Bytes, const BITS: u32, const PHASES: usize>(
    s: S,
    bytes: S::I,
    word: usize,
    half: usize,
    panel: &mut [i8],
) {
    let quads = 8 / PHASES;
    let (block, quad) = (word / quads, word % quads);
    for phase in 0..PHASES {
        let to = ((block * PHASES + phase) * quads + quad) * 2 + half;
        // SAFETY: the caller's promise.
        unsafe {
            let to = panel.as_mut_ptr().add(to * 4 * S::LANES);
            s.store_bytes(to.cast(), s.phase::<BITS>(bytes, phase));
        }
    }
}

/// Spreads `2 * LANES` rows of 3-, 5- or 6-bit numbers to bytes.
struct Spread<'a, const BITS: u32> {
    weight: Quantized<'a>,
    column: usize,
    to: &'a mut [i8],
}

impl<const BITS: u32> Body for Spread<'_, BITS> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let vector = 4 * S::LANES;
        let chunk_bytes = vector * BITS as usize / 8;
        let row_bytes = self.weight.row_bytes();
        let stride = self.to.len() / (2 * S::LANES);
        for (row, to) in self.to.chunks_exact_mut(stride).enumerate() {
            let from = &packed(self.weight, self.column + row)[..row_bytes];
            for (to, from) in to.chunks_exact_mut(vector).zip(from.chunks(chunk_bytes)) {
                // SAFETY: chunks of both sides; the last of the row may be shorter.
                unsafe {
                    s.store_bytes(to.as_mut_ptr().cast(), s.load_odd::<BITS>(from.as_ptr(), from.len()));
                }
            }
        }
    }
}

/// Scales and biases of `2 * LANES` rows as `[groups, 2, 2 * LANES]`.
struct TurnFactors<'a> {
    weight: Quantized<'a>,
    column: usize,
    factors: &'a mut [f32],
}

impl Body for TurnFactors<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let Self { weight, column, factors } = self;
        let (width, groups) = (2 * S::LANES, weight.groups());
        for (kind, values) in [weight.scales, weight.biases].into_iter().enumerate() {
            for half in 0..2 {
                for group in (0..groups).step_by(S::LANES) {
                    let count = S::LANES.min(groups - group);
                    let mut rows = [s.splat(0.0); MAX_LANES];
                    for (i, row) in rows.iter_mut().enumerate().take(S::LANES) {
                        let at = (column + half * S::LANES + i) * groups + group;
                        // SAFETY: the row holds `count` more groups (`tile` checked the rows).
                        *row = each_float!(values, values => unsafe { s.load_some(values.as_ptr().add(at), count) });
                    }
                    s.transpose(&mut rows);
                    for (i, row) in rows.iter().enumerate().take(count) {
                        let to =
                            &mut factors[((group + i) * 2 + kind) * width + half * S::LANES..][..S::LANES];
                        // SAFETY: the slice holds a vector.
                        unsafe { s.store(to.as_mut_ptr(), *row) };
                    }
                }
            }
        }
    }
}

/// Unpacked rows of weights with their scales and biases.
#[derive(Clone, Copy)]
struct Panel<'a> {
    bytes: &'a [i8],
    factors: &'a [f32],
    groups: usize,
}

/// All rows of activations times a panel.
struct Times<'a, const PHASES: usize, const WIDE: bool> {
    panel: Panel<'a>,
    x: &'a Int8Rows<'a>,
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl<const PHASES: usize, const WIDE: bool> Body for Times<'_, PHASES, WIDE> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let Self { panel, x, rows, out } = self;
        assert!(x.layout.chunk == 4 * S::LANES * PHASES, "rows laid out for another level");
        let mut row = rows.start;
        while row < rows.end {
            let out = &mut out[(row - rows.start) * TILE..];
            let left = rows.end - row;
            // Two vectors of sums for each row, in integers and in floats, and some registers for operands.
            // SAFETY: the rows exist (`tile`), and the layout is that of these lanes.
            row += unsafe {
                if S::TILE >= 24 && left >= 6 {
                    panel.block::<S, PHASES, WIDE, 6>(s, x, row, out)
                } else if S::TILE >= 24 && left >= 4 {
                    panel.block::<S, PHASES, WIDE, 4>(s, x, row, out)
                } else if left >= 2 {
                    panel.block::<S, PHASES, WIDE, 2>(s, x, row, out)
                } else {
                    panel.block::<S, PHASES, WIDE, 1>(s, x, row, out)
                }
            };
        }
    }
}

impl Panel<'_> {
    /// Multiplies `MR` rows of activations and returns `MR`.
    #[inline(always)]
    unsafe fn block<S: Bytes, const PHASES: usize, const WIDE: bool, const MR: usize>(
        &self,
        s: S,
        x: &Int8Rows<'_>,
        row: usize,
        out: &mut [f32],
    ) -> usize {
        let layout = x.layout;
        let vector = 4 * S::LANES;
        let (chunk, quads, width) = (layout.chunk, 8 / PHASES, 2 * S::LANES);
        let blocks_per_group = layout.group / BLOCK;
        let mut totals = [[s.splat(0.0); 2]; MR];
        let mut panel: *const u8 = self.bytes.as_ptr().cast();
        // SAFETY: panel, factors and rows were sized for the layout.
        unsafe {
            let bytes = x.bytes.as_ptr().add(row * layout.bytes);
            let steps = x.steps.as_ptr().add(row * layout.steps);
            let sums = x.sums.as_ptr().add(row * layout.sums);
            for group in 0..self.groups {
                let factors = self.factors.as_ptr().add(group * 2 * width);
                let scales = [s.load(factors), s.load(factors.add(S::LANES))];
                for inner in 0..blocks_per_group {
                    let block = group * blocks_per_group + inner;
                    let start = block * BLOCK / chunk * chunk + block * BLOCK % chunk / PHASES;
                    let mut dots = [[s.zeros(); 2]; MR];
                    for phase in 0..PHASES {
                        for quad in 0..quads {
                            let weights = [s.load_bytes(panel), s.load_bytes(panel.add(vector))];
                            panel = panel.add(2 * vector);
                            let from = bytes.add(start + phase * vector + 4 * quad);
                            for (m, dots) in dots.iter_mut().enumerate() {
                                let four = s.splat_four(from.add(m * layout.bytes));
                                dots[0] = s.dot::<WIDE>(dots[0], weights[0], four);
                                dots[1] = s.dot::<WIDE>(dots[1], weights[1], four);
                            }
                        }
                    }
                    for m in 0..MR {
                        let step = s.splat(*steps.add(m * layout.steps + block * quads));
                        for half in 0..2 {
                            let dot = s.mul(s.to_floats(dots[m][half]), step);
                            totals[m][half] = s.fma(dot, scales[half], totals[m][half]);
                        }
                    }
                }
                let factors = factors.add(width);
                let biases = [s.load(factors), s.load(factors.add(S::LANES))];
                for (m, totals) in totals.iter_mut().enumerate() {
                    let sum = s.splat(*sums.add(m * layout.sums + group));
                    totals[0] = s.fma(biases[0], sum, totals[0]);
                    totals[1] = s.fma(biases[1], sum, totals[1]);
                }
            }
            for (m, totals) in totals.into_iter().enumerate() {
                let out = &mut out[m * TILE..][..width];
                s.store(out.as_mut_ptr(), totals[0]);
                s.store(out.as_mut_ptr().add(S::LANES), totals[1]);
            }
        }
        MR
    }
}

//! Rows of rounded activations, two bytes a number, times panels of weights. Lanes are output features, so a product needs no sum across lanes, and
//! a group's scales and biases are vectors as they lie.
//!
//! A panel is multiplied by up to four rows at a time with all sums in registers; numbers are unpacked as they are read.
#![allow(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "indices run over several arrays of registers")]

use super::super::panels::{HALVES, Panels, phases};
use super::activations::{BLOCK, RADIX, RoundedRows};
use crate::host::Level;
use crate::host::element::{Floats, each_float};
use crate::host::lanes::{Body, Bytes, Lane, dispatch};
use crate::matmul::host::dot::FloatRows;
use std::ops::Range;

/// Vectors of four numbers a lane in a block.
const QUADS: usize = BLOCK / 4;

/// Bytes from the weights at hand to those fetched meanwhile.
const AHEAD: usize = 12288;

/// The same for scales and biases, in values.
const AHEAD_FACTORS: usize = 1536;

/// `out[m, c] = x[rows[m]] . W[columns[c]]`, `out` with `stride` floats a row. Columns start at a panel, and rows of `out` have
/// room for whole ones.
pub(crate) fn strip(
    level: Level,
    weight: Panels<'_>,
    x: &RoundedRows<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    stride: usize,
    out: &mut [f32],
) {
    assert!(x.layout == weight.layout() && rows.end * x.layout.bytes <= x.bytes.len());
    run(level, Strip::<_, 0> { weight, x, rows, columns, stride, out });
}

/// [`strip`] in float32: `x` as it is, each weight `scale * n + bias` with one rounding.
pub(crate) fn float_strip(
    level: Level,
    weight: Panels<'_>,
    x: &FloatRows<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    stride: usize,
    out: &mut [f32],
) {
    assert!(x.columns == weight.columns() && rows.end * FloatRows::stride(x.columns) <= x.values.len());
    run(level, Strip::<_, 0> { weight, x, rows, columns, stride, out });
}

/// Rows of activations that panels are multiplied with.
trait Activations {
    /// Multiplies `MR` rows from `row` on with a panel and returns `MR`.
    ///
    /// # Safety
    /// Rows and panel exist.
    unsafe fn product<S: Bytes, const BITS: usize, const MR: usize>(
        &self,
        s: S,
        weight: Panels<'_>,
        panel: usize,
        row: usize,
        stride: usize,
        out: &mut [f32],
    ) -> usize;
}

/// Runs a strip, whose rows of activations are known to exist.
fn run<X: Activations>(level: Level, strip: Strip<'_, X, 0>) {
    let Strip { weight, rows, columns, stride, out, .. } = &strip;
    let width = HALVES * weight.lanes();
    assert!(weight.lanes() == level.lanes() && weight.count() == 1 && columns.end <= weight.rows());
    assert!(columns.start.is_multiple_of(width) && columns.len().next_multiple_of(width) <= *stride);
    assert!(out.len() >= rows.len() * stride);
    match weight.scheme().bits() {
        2 => dispatch(level, strip.of_bits::<2>()),
        3 => dispatch(level, strip.of_bits::<3>()),
        4 => dispatch(level, strip.of_bits::<4>()),
        5 => dispatch(level, strip.of_bits::<5>()),
        6 => dispatch(level, strip.of_bits::<6>()),
        _ => dispatch(level, strip.of_bits::<8>()),
    }
}

struct Strip<'a, X, const BITS: usize> {
    weight: Panels<'a>,
    x: &'a X,
    rows: Range<usize>,
    columns: Range<usize>,
    stride: usize,
    out: &'a mut [f32],
}

impl<'a, X> Strip<'a, X, 0> {
    fn of_bits<const BITS: usize>(self) -> Strip<'a, X, BITS> {
        let Self { weight, x, rows, columns, stride, out } = self;
        Strip { weight, x, rows, columns, stride, out }
    }
}

impl<X: Activations, const BITS: usize> Body for Strip<'_, X, BITS> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let Self { weight, x, rows, columns, stride, out } = self;
        let width = HALVES * S::LANES;
        let first = columns.start / width;
        for panel in first..columns.end.div_ceil(width) {
            let out = &mut out[(panel - first) * width..];
            let mut row = rows.start;
            while row < rows.end {
                let out = &mut out[(row - rows.start) * stride..];
                let left = rows.end - row;
                // Six vectors of sums for each row, four in integers, and some registers for operands.
                // SAFETY: panels and rows exist (`run` and its callers), and `out` has room for them.
                row += unsafe {
                    if S::TILE >= 24 && left >= 4 {
                        x.product::<S, BITS, 4>(s, weight, panel, row, stride, out)
                    } else if left >= 2 {
                        x.product::<S, BITS, 2>(s, weight, panel, row, stride, out)
                    } else {
                        x.product::<S, BITS, 1>(s, weight, panel, row, stride, out)
                    }
                };
            }
        }
    }
}

impl Activations for RoundedRows<'_> {
    #[inline(always)]
    unsafe fn product<S: Bytes, const BITS: usize, const MR: usize>(
        &self,
        s: S,
        weight: Panels<'_>,
        panel: usize,
        row: usize,
        stride: usize,
        out: &mut [f32],
    ) -> usize {
        let layout = self.layout;
        let vector = 4 * S::LANES;
        let (groups, blocks) = (weight.groups(), weight.columns() / BLOCK);
        let blocks_per_group = blocks / groups;
        let (radix, symmetric) = (s.splat(RADIX), s.splat(weight.symmetric_bias()));
        let mut totals = [[s.splat(0.0); HALVES]; MR];
        // SAFETY: the caller's promise: panels and rows exist.
        unsafe {
            let numbers: *const u8 = weight.words().as_ptr().cast();
            let mut block = numbers.add(panel * blocks * HALVES * BITS * vector);
            let mut quads = self.bytes.as_ptr().add(row * layout.bytes);
            let steps = self.steps.as_ptr().add(row * layout.steps);
            let sums = self.sums.as_ptr().add(row * layout.sums);
            for group in 0..groups {
                let at = (panel * groups + group) * HALVES * S::LANES;
                let scales = factors(s, weight.scales(), at);
                let biases = match weight.biases() {
                    Some(biases) => factors(s, biases, at),
                    None => scales.map(|scale| s.mul(scale, symmetric)),
                };
                for inner in 0..blocks_per_group {
                    let (mut high, mut low) = ([[s.zeros(); HALVES]; MR], [[s.zeros(); HALVES]; MR]);
                    for quad in 0..QUADS {
                        let four = [
                            numbers_of::<S, BITS>(s, block, quad),
                            numbers_of::<S, BITS>(s, block.add(BITS * vector), quad),
                        ];
                        for m in 0..MR {
                            let from = quads.add(m * layout.bytes + 4 * quad);
                            let (first, second) = (s.splat_four(from), s.splat_four(from.add(BLOCK)));
                            for p in 0..HALVES {
                                high[m][p] = dot::<S, BITS>(s, high[m][p], four[p], first);
                                low[m][p] = dot::<S, BITS>(s, low[m][p], four[p], second);
                            }
                        }
                    }
                    quads = quads.add(2 * BLOCK);
                    for line in 0..HALVES * BITS * vector / 64 {
                        s.prefetch(block.wrapping_add(AHEAD + 64 * line));
                    }
                    block = block.add(HALVES * BITS * vector);
                    let at = group * blocks_per_group + inner;
                    for m in 0..MR {
                        let step = s.splat(*steps.add(m * layout.steps + at));
                        for p in 0..HALVES {
                            let dot = s.fma(s.to_floats(high[m][p]), radix, s.to_floats(low[m][p]));
                            totals[m][p] = s.fma(dot, s.mul(scales[p], step), totals[m][p]);
                        }
                    }
                }
                for m in 0..MR {
                    let sum = s.splat(*sums.add(m * layout.sums + group));
                    for p in 0..HALVES {
                        totals[m][p] = s.fma(biases[p], sum, totals[m][p]);
                    }
                }
            }
            for (m, totals) in totals.into_iter().enumerate() {
                let out = &mut out[m * stride..][..HALVES * S::LANES];
                for (p, total) in totals.into_iter().enumerate() {
                    s.store(out.as_mut_ptr().add(p * S::LANES), total);
                }
            }
        }
        MR
    }
}

impl Activations for FloatRows<'_> {
    #[inline(always)]
    unsafe fn product<S: Bytes, const BITS: usize, const MR: usize>(
        &self,
        s: S,
        weight: Panels<'_>,
        panel: usize,
        row: usize,
        stride: usize,
        out: &mut [f32],
    ) -> usize {
        let vector = 4 * S::LANES;
        let (groups, blocks) = (weight.groups(), weight.columns() / BLOCK);
        let (phases, rows) = (phases(BITS as u32), FloatRows::stride(self.columns));
        let mut totals = [[s.splat(0.0); HALVES]; MR];
        // SAFETY: the caller's promise: panels and rows exist.
        unsafe {
            let numbers: *const u8 = weight.words().as_ptr().cast();
            let numbers = numbers.add(panel * blocks * HALVES * BITS * vector);
            let x = self.values.as_ptr().add(row * rows);
            for index in 0..blocks {
                let at = (panel * groups + index * groups / blocks) * HALVES * S::LANES;
                let scales = factors(s, weight.scales(), at);
                let biases = match weight.biases() {
                    Some(biases) => factors(s, biases, at),
                    None => scales.map(|scale| s.mul(scale, s.splat(weight.symmetric_bias()))),
                };
                let block = numbers.add(index * HALVES * BITS * vector);
                for quad in 0..QUADS {
                    for p in 0..HALVES {
                        let four = numbers_of::<S, BITS>(s, block.add(p * BITS * vector), quad);
                        for byte in 0..4 {
                            let column = quad / phases * 4 * phases + byte * phases + quad % phases;
                            let n = s.byte_to_floats(four, byte);
                            let weight = s.fma(scales[p], n, biases[p]);
                            for m in 0..MR {
                                let x = s.splat(*x.add(m * rows + index * BLOCK + column));
                                totals[m][p] = s.fma(x, weight, totals[m][p]);
                            }
                        }
                    }
                }
            }
            for (m, totals) in totals.into_iter().enumerate() {
                let out = &mut out[m * stride..][..HALVES * S::LANES];
                for (p, total) in totals.into_iter().enumerate() {
                    s.store(out.as_mut_ptr().add(p * S::LANES), total);
                }
            }
        }
        MR
    }
}

#[inline(always)]
fn dot<S: Bytes, const BITS: usize>(s: S, sums: S::I, numbers: S::I, x: S::I) -> S::I {
    if BITS == 8 { s.dot::<true>(sums, numbers, x) } else { s.dot::<false>(sums, numbers, x) }
}

/// Scales or biases of a group of a panel.
#[inline(always)]
unsafe fn factors<S: Bytes>(s: S, values: Floats<'_>, at: usize) -> [S::V; HALVES] {
    each_float!(values, values => {
        let from = values.as_ptr();
        s.prefetch(from.wrapping_add(at + AHEAD_FACTORS).cast());
        // SAFETY: the caller's promise: the group is there.
        unsafe { [Lane::load(s, from.add(at)), Lane::load(s, from.add(at + S::LANES))] }
    })
}

/// Four numbers a lane of a block: those at `quad`, see [`Panels`].
#[inline(always)]
unsafe fn numbers_of<S: Bytes, const BITS: usize>(s: S, block: *const u8, quad: usize) -> S::I {
    let vector = 4 * S::LANES;
    // SAFETY: the caller's promise: the block is there, `BITS` vectors of it.
    unsafe {
        match BITS {
            2 => s.phase::<2>(s.load_bytes(block.add(quad / 4 * vector)), quad % 4),
            4 => s.phase::<4>(s.load_bytes(block.add(quad / 2 * vector)), quad % 2),
            8 => s.load_bytes(block.add(quad * vector)),
            3 => {
                let low = s.phase::<2>(s.load_bytes(block.add(quad / 4 * vector)), quad % 4);
                s.with_bit::<2>(low, block.add(2 * vector + quad * vector / 8))
            }
            5 => {
                let low = s.phase::<4>(s.load_bytes(block.add(quad / 2 * vector)), quad % 2);
                s.with_bit::<4>(low, block.add(4 * vector + quad * vector / 8))
            }
            _ => {
                let three = block.add(quad / 4 * 3 * vector);
                let word = |word| s.load_bytes(three.add(word * vector));
                if quad % 4 < 3 {
                    s.low_six(word(quad % 4))
                } else {
                    s.high_twos([word(0), word(1), word(2)])
                }
            }
        }
    }
}

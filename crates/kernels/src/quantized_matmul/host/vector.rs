//! A few rows of int8 activations times a strip of packed rows, each weight read once.
#![allow(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "indices run over several arrays of registers")]

use super::super::Quantized;
use super::activations::Int8Rows;
use crate::host::Level;
use crate::host::element::{Floats, each_float};
use crate::host::lanes::{Body, Bytes, dispatch};
use std::ops::Range;

/// Bytes from the weights at hand to those fetched meanwhile: covers the latency of memory, and the borders of pages, where
/// the hardware's own prefetching stops.
const AHEAD: usize = 4096;

/// The same for scales and biases, in values.
const AHEAD_FACTORS: usize = 512;

/// `out[m, c] = x[rows[m]] . W[columns[c]]`, `out` with `stride` floats a row.
pub(crate) fn strip(
    level: Level,
    weight: Quantized<'_>,
    x: &Int8Rows<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    stride: usize,
    out: &mut [f32],
) {
    assert!(columns.len() <= stride && columns.end <= weight.rows() && x.layout.columns == weight.columns());
    assert!(rows.end * x.layout.bytes <= x.bytes.len() && x.layout.phases == weight.phases());
    assert!(out.len() >= rows.len() * stride);
    let mut row = rows.start;
    while row < rows.end {
        let out = &mut out[(row - rows.start) * stride..];
        let operands = Operands { weight, x, first: row, stride };
        row += match rows.end - row {
            1 => by_bits::<1, 4>(level, operands, columns.clone(), out),
            2 | 3 => by_bits::<2, 4>(level, operands, columns.clone(), out),
            _ => by_bits::<4, 2>(level, operands, columns.clone(), out),
        };
    }
}

/// Multiplies `M` rows of activations and returns `M`.
fn by_bits<const M: usize, const R: usize>(
    level: Level,
    operands: Operands<'_>,
    columns: Range<usize>,
    out: &mut [f32],
) -> usize {
    match operands.weight.scheme.bits() {
        2 => dispatch(level, Pass::<2, 4, M, R> { operands, columns, out }),
        3 => dispatch(level, Pass::<3, 1, M, R> { operands, columns, out }),
        4 => dispatch(level, Pass::<4, 2, M, R> { operands, columns, out }),
        5 => dispatch(level, Pass::<5, 1, M, R> { operands, columns, out }),
        6 => dispatch(level, Pass::<6, 1, M, R> { operands, columns, out }),
        _ => dispatch(level, Pass::<8, 1, M, R> { operands, columns, out }),
    }
    M
}

/// `M` rows of activations from the first, times rows of weights `R` at a time. The operands were checked by [`strip`].
struct Pass<'a, const BITS: u32, const PHASES: usize, const M: usize, const R: usize> {
    operands: Operands<'a>,
    columns: Range<usize>,
    out: &'a mut [f32],
}

impl<const BITS: u32, const PHASES: usize, const M: usize, const R: usize> Body
    for Pass<'_, BITS, PHASES, M, R>
{
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let Self { operands, columns, out } = self;
        assert!(operands.x.layout.chunk == 4 * S::LANES * PHASES, "rows laid out for another level");
        let mut column = columns.start;
        while column < columns.end {
            let out = &mut out[column - columns.start..];
            // SAFETY: rows and columns exist (`strip`), and the layout is that of these lanes.
            unsafe {
                if column + R <= columns.end {
                    operands.dots::<S, BITS, PHASES, M, R>(s, column, out);
                    column += R;
                } else {
                    for m in 0..M {
                        let row = Operands { first: operands.first + m, ..operands };
                        row.dots::<S, BITS, PHASES, 1, 1>(s, column, &mut out[m * operands.stride..]);
                    }
                    column += 1;
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Operands<'a> {
    weight: Quantized<'a>,
    x: &'a Int8Rows<'a>,
    /// First row of activations.
    first: usize,
    /// Floats of a row of the result.
    stride: usize,
}

impl Operands<'_> {
    /// `M` rows of activations by `R` rows of weights from `column`.
    #[inline(always)]
    unsafe fn dots<S: Bytes, const BITS: u32, const PHASES: usize, const M: usize, const R: usize>(
        &self,
        s: S,
        column: usize,
        out: &mut [f32],
    ) {
        let (groups, row_bytes) = (self.weight.groups(), self.weight.row_bytes());
        let layout = self.x.layout;
        let chunk_bytes = 4 * S::LANES * PHASES * BITS as usize / 8;
        // A window is the values whose scales fill one vector.
        let window_chunks = layout.group / (4 * PHASES);
        let mut totals = [[s.splat(0.0); M]; R];
        let mut chunk = 0;
        let mut group = 0;
        while group < groups {
            let count = (groups - group).min(S::LANES);
            let mut scales = [s.splat(0.0); R];
            for r in 0..R {
                let at = (column + r) * groups + group;
                for factors in [self.weight.scales, self.weight.biases] {
                    each_float!(factors, factors => s.prefetch(factors.as_ptr().wrapping_add(at + AHEAD_FACTORS).cast()));
                }
                // SAFETY: `count` groups are left in the row.
                let biases = unsafe {
                    scales[r] = load_floats(s, self.weight.scales, at, count);
                    load_floats(s, self.weight.biases, at, count)
                };
                for m in 0..M {
                    // SAFETY: `sums` is padded to whole vectors.
                    let sums =
                        unsafe { s.load(self.x.sums.as_ptr().add((self.first + m) * layout.sums + group)) };
                    totals[r][m] = s.fma(biases, sums, totals[r][m]);
                }
            }
            let end = (chunk + window_chunks).min(layout.bytes / (4 * S::LANES * PHASES));
            // SAFETY: chunks before the last are whole; the last reads what is left of the row.
            unsafe {
                while chunk < end && (chunk + 1) * chunk_bytes <= row_bytes {
                    self.chunk::<S, BITS, PHASES, M, R, true>(
                        s,
                        column,
                        chunk,
                        chunk_bytes,
                        &scales,
                        &mut totals,
                    );
                    chunk += 1;
                }
                if chunk < end {
                    let left = row_bytes - chunk * chunk_bytes;
                    self.chunk::<S, BITS, PHASES, M, R, false>(s, column, chunk, left, &scales, &mut totals);
                    chunk += 1;
                }
            }
            group += S::LANES;
        }
        if R == 4 {
            for m in 0..M {
                let sums = s.four_sums([totals[0][m], totals[1 % R][m], totals[2 % R][m], totals[3 % R][m]]);
                out[m * self.stride..][..4].copy_from_slice(&sums);
            }
        } else if M == 4 {
            for r in 0..R {
                let [a, b, c, d] = [totals[r][0], totals[r][1 % M], totals[r][2 % M], totals[r][3 % M]];
                let sums = s.four_sums([a, b, c, d]);
                for m in 0..M {
                    out[m * self.stride + r] = sums[m];
                }
            }
        } else {
            for m in 0..M {
                for r in 0..R {
                    out[m * self.stride + r] = s.sum(totals[r][m]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn chunk<
        S: Bytes,
        const BITS: u32,
        const PHASES: usize,
        const M: usize,
        const R: usize,
        const WHOLE: bool,
    >(
        &self,
        s: S,
        column: usize,
        chunk: usize,
        bytes: usize,
        scales: &[S::V; R],
        totals: &mut [[S::V; M]; R],
    ) {
        let layout = self.x.layout;
        let chunk_bytes = 4 * S::LANES * PHASES * BITS as usize / 8;
        // SAFETY: rows of activations are padded to whole chunks; of the weights, `bytes` are left in the row.
        unsafe {
            let packed: *const u8 = self.weight.packed.as_ptr().cast();
            let first = packed.add(column * self.weight.row_bytes());
            let lanes = chunk * S::LANES;
            let index = s.load_bytes(self.x.groups.as_ptr().add(lanes).cast());
            let mut activations = [[s.zeros(); PHASES]; M];
            let mut steps = [s.splat(0.0); M];
            for m in 0..M {
                let row = self.first + m;
                let from = self.x.bytes.as_ptr().add(row * layout.bytes + chunk * 4 * S::LANES * PHASES);
                for phase in 0..PHASES {
                    activations[m][phase] = s.load_bytes(from.add(phase * 4 * S::LANES).cast());
                }
                steps[m] = s.load(self.x.steps.as_ptr().add(row * layout.steps + lanes));
            }
            for r in 0..R {
                let from = packed.add((column + r) * self.weight.row_bytes() + chunk * chunk_bytes);
                s.prefetch(first.wrapping_add(AHEAD + (chunk * R + r) * chunk_bytes));
                let numbers: [S::I; PHASES] = numbers::<S, BITS, PHASES, WHOLE>(s, from, bytes);
                let scale = s.pick(scales[r], index);
                for m in 0..M {
                    let mut dot = s.zeros();
                    for phase in 0..PHASES {
                        dot = dot_of::<S, BITS>(s, dot, numbers[phase], activations[m][phase]);
                    }
                    totals[r][m] = s.fma(s.to_floats(dot), s.mul(scale, steps[m]), totals[r][m]);
                }
            }
        }
    }
}

/// `count` floats from `at` on, widened; the other lanes are zero.
#[inline(always)]
unsafe fn load_floats<S: Bytes>(s: S, floats: Floats<'_>, at: usize, count: usize) -> S::V {
    // SAFETY: the caller's promise: the values exist.
    each_float!(floats, values => unsafe { s.load_some(values.as_ptr().add(at), count) })
}

/// The numbers of one chunk, a vector for each phase.
#[inline(always)]
unsafe fn numbers<S: Bytes, const BITS: u32, const PHASES: usize, const WHOLE: bool>(
    s: S,
    from: *const u8,
    bytes: usize,
) -> [S::I; PHASES] {
    // SAFETY: the caller's promise: `bytes` are valid, all of the chunk if `WHOLE`.
    unsafe {
        let packed = match BITS {
            3 | 5 | 6 => s.load_odd::<BITS>(from, bytes),
            _ if WHOLE => s.load_bytes(from),
            _ => s.load_some_bytes(from, bytes),
        };
        let mut numbers = [packed; PHASES];
        if PHASES > 1 {
            for (phase, numbers) in numbers.iter_mut().enumerate() {
                *numbers = s.phase::<BITS>(packed, phase);
            }
        }
        numbers
    }
}

#[inline(always)]
fn dot_of<S: Bytes, const BITS: u32>(s: S, sums: S::I, u: S::I, x: S::I) -> S::I {
    if BITS == 8 { s.dot::<true>(sums, u, x) } else { s.dot::<false>(sums, u, x) }
}

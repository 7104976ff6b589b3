//! Host bodies of `y = x W^T`, for [`linear`](crate::linear): dot products along `K`, a few rows of either side at a time with all sums in registers.
#![allow(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "indices run over several arrays of registers")]

use crate::host::Level;
use crate::host::lanes::{Body, Bytes, Lane, MAX_LANES, dispatch};
use crate::linear::host::TILE;
use std::ops::Range;

/// Rows of weights that share one pass over the activations.
const R: usize = 4;

/// Activations as float32, rows padded with zeros to whole vectors.
#[derive(Clone, Copy)]
pub(crate) struct FloatRows<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) columns: usize,
}

impl FloatRows<'_> {
    /// Floats from one row to the next.
    pub(crate) fn stride(columns: usize) -> usize {
        columns.next_multiple_of(MAX_LANES)
    }
}

/// `out[m, c] = x[rows[m]] . weights[c]` for the whole rows of `K` values in `weights`; `out` has [`TILE`] floats a row.
pub(crate) fn tile<E: Lane>(
    level: Level,
    weights: &[E],
    x: &FloatRows<'_>,
    rows: Range<usize>,
    out: &mut [f32],
) {
    dispatch(level, Tile { weights, x, rows, out });
}

struct Tile<'a, E> {
    weights: &'a [E],
    x: &'a FloatRows<'a>,
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl<E: Lane> Body for Tile<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let Self { weights, x, rows, out } = self;
        let columns = weights.len() / x.columns;
        let stride = FloatRows::stride(x.columns);
        assert!(columns <= TILE && rows.end * stride <= x.values.len());
        assert!(out.len() + TILE >= rows.len() * TILE + columns);
        let mut column = 0;
        while column < columns {
            let wide = column + R <= columns;
            let mut row = rows.start;
            while row < rows.end {
                let left = rows.end - row;
                let out = &mut out[(row - rows.start) * TILE + column..];
                // SAFETY: the rows of weights from `column` and of activations from `row` exist.
                row += unsafe {
                    let (w, a) =
                        (weights.as_ptr().add(column * x.columns), x.values.as_ptr().add(row * stride));
                    // Sums of the block, and a vector of each weight row, stay in registers.
                    if wide && S::TILE >= 24 && left >= 4 {
                        dots::<S, E, 4, R>(s, w, a, x.columns, out)
                    } else if wide && S::TILE < 24 && left >= 2 {
                        dots::<S, E, 2, R>(s, w, a, x.columns, out)
                    } else if wide {
                        dots::<S, E, 1, R>(s, w, a, x.columns, out)
                    } else {
                        dots::<S, E, 1, 1>(s, w, a, x.columns, out)
                    }
                };
            }
            column += if wide { R } else { 1 };
        }
    }
}

/// `M` rows of activations by `W` rows of weights; returns `M`.
#[inline(always)]
unsafe fn dots<S: Bytes, E: Lane, const M: usize, const W: usize>(
    s: S,
    weights: *const E,
    x: *const f32,
    columns: usize,
    out: &mut [f32],
) -> usize {
    let stride = FloatRows::stride(columns);
    let mut totals = [[s.splat(0.0); W]; M];
    let whole = columns / S::LANES * S::LANES;
    let mut at = 0;
    // SAFETY: whole vectors lie in the row; of the last, what is left of it is read. Rows of activations are padded.
    unsafe {
        while at < whole {
            let mut w = [s.splat(0.0); W];
            for (r, w) in w.iter_mut().enumerate() {
                *w = E::load(s, weights.add(r * columns + at));
                if M == 1 {
                    // The rows after these, which lie behind them.
                    s.prefetch(weights.wrapping_add((r + W) * columns + at).cast());
                }
            }
            step::<S, M, W>(s, x.add(at), stride, &w, &mut totals);
            at += S::LANES;
        }
        if whole < columns {
            let mut w = [s.splat(0.0); W];
            for (r, w) in w.iter_mut().enumerate() {
                *w = s.load_some(weights.add(r * columns + whole), columns - whole);
            }
            step::<S, M, W>(s, x.add(whole), stride, &w, &mut totals);
        }
    }
    if M * W >= S::LANES {
        let mut rows = [s.splat(0.0); MAX_LANES];
        let mut sums = [0.0; MAX_LANES];
        for first in (0..M * W).step_by(S::LANES) {
            for (i, row) in rows.iter_mut().enumerate().take(S::LANES) {
                *row = totals[(first + i) / W % M][(first + i) % W];
            }
            // SAFETY: at most 16 sums, in whole vectors.
            unsafe { s.store(sums.as_mut_ptr().add(first), s.sums(&rows)) };
        }
        for (m, sums) in sums.chunks_exact(W).enumerate().take(M) {
            out[m * TILE..][..W].copy_from_slice(sums);
        }
    } else {
        for (m, totals) in totals.into_iter().enumerate() {
            for (r, total) in totals.into_iter().enumerate() {
                out[m * TILE + r] = s.sum(total);
            }
        }
    }
    M
}

/// Adds one vector of each row of activations times one of each row of weights.
#[inline(always)]
unsafe fn step<S: Bytes, const M: usize, const W: usize>(
    s: S,
    x: *const f32,
    stride: usize,
    weights: &[S::V; W],
    totals: &mut [[S::V; W]; M],
) {
    for m in 0..M {
        // SAFETY: the caller's promise.
        let x = unsafe { s.load(x.add(m * stride)) };
        for r in 0..W {
            totals[m][r] = s.fma(weights[r], x, totals[m][r]);
        }
    }
}

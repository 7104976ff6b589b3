//! Few rows: decode. Dense keys and values are read once, straight from their storage, for up to four rows at a time;
//! packed ones are widened a block at a time, into the first-level cache, and read from there.
#![allow(unsafe_code)]

use super::softmax::{Cap, Row};
use super::store::{DenseRows, Rows, Store, widen};
use super::task::{BLOCK, Running, Task, UNIT, Work};
use crate::host::lanes::{Body, Lane, MAX_LANES, Simd, dispatch};
use crate::host::{Level, scratch};

/// Rows that share the loads of a tile.
const TOGETHER: usize = 4;

/// A task of at most [`FEW`](super::task::FEW) rows whose widths are multiples of [`UNIT`].
pub(super) fn fold<E: Lane, K: Store, V: Store>(
    level: Level,
    work: &Work<'_, E, K, V>,
    task: &Task,
    running: &mut Running<'_>,
) {
    let rows = work.group * task.queries.len();
    let (width, stride) = (work.key_width, work.value_stride());
    let direct = K::Rows::DIRECT && V::Rows::DIRECT;
    let widened = if direct { 0 } else { BLOCK * width.max(stride) };
    scratch::with_f32(rows * width + rows * BLOCK + widened, |floats| {
        let (q, floats) = floats.split_at_mut(rows * width);
        let (scores, block) = floats.split_at_mut(rows * BLOCK);
        for (row, q) in q.chunks_exact_mut(width).enumerate() {
            work.query(level, task, row, q);
        }
        let place = (task.batch, task.head);
        let mut from = task.keys.start;
        while from < task.keys.end {
            let mut n = BLOCK.min(task.keys.end - from);
            let pieces =
                direct.then(|| (work.k.rows(place.0, place.1, from), work.v.rows(place.0, place.1, from)));
            if let Some(((keys, some), (_, others))) = pieces {
                n = n.min(some).min(others);
                dispatch(level, Dots { q, width, keys, n, scores });
            } else {
                widen(level, &work.k, place, (from, n), width, block);
                dispatch(level, Dots { q, width, keys: DenseRows::of(block, width, n), n, scores });
            }
            for row in 0..rows {
                let scores = &mut scores[row * BLOCK..][..n.next_multiple_of(UNIT)];
                if let Some(cap) = work.options.softcap {
                    dispatch(level, Cap { cap, scores });
                }
                work.mask(task, row, from, scores, 1, n);
                let visible = work.visible(task.batch, work.row(task, row).1);
                let start = visible.start.clamp(from, from + n) - from;
                let end = visible.end.clamp(from, from + n) - from;
                scores[..start].fill(f32::NEG_INFINITY);
                scores[end.max(start)..].fill(f32::NEG_INFINITY);
                let (top, total) = (&mut running.top[row], &mut running.total[row]);
                let values = &mut running.values[row * stride..][..stride];
                dispatch(level, Row { scores, top, total, values });
            }
            let out = &mut *running.values;
            if let Some((_, (values, _))) = pieces {
                dispatch(level, Sums { weights: scores, values, n, out, stride });
            } else {
                widen(level, &work.v, place, (from, n), stride, block);
                let values = DenseRows::of(block, stride, n);
                dispatch(level, Sums { weights: scores, values, n, out, stride });
            }
            from += n;
        }
    });
}

/// Dot products of all rows with `n` keys in one piece.
struct Dots<'f, K> {
    /// `[rows, width]`.
    q: &'f [f32],
    width: usize,
    keys: K,
    n: usize,
    /// `[rows, BLOCK]`.
    scores: &'f mut [f32],
}

impl<K: Rows> Body for Dots<'_, K> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { q, width, keys, n, scores } = self;
        let rows = q.len() / width;
        assert!(
            scores.len() >= rows * BLOCK && n <= BLOCK && width.is_multiple_of(S::LANES),
            "scores of {rows} rows"
        );
        for row in (0..rows).step_by(TOGETHER) {
            // SAFETY: the keys exist, `q` and `scores` hold all rows, and the width is whole vectors.
            unsafe {
                let (q, out) = (q.as_ptr().add(row * width), scores.as_mut_ptr().add(row * BLOCK));
                match rows - row {
                    1 => dot::<S, _, 1>(s, q, width, keys, n, out),
                    2 => dot::<S, _, 2>(s, q, width, keys, n, out),
                    3 => dot::<S, _, 3>(s, q, width, keys, n, out),
                    _ => dot::<S, _, 4>(s, q, width, keys, n, out),
                }
            }
        }
    }
}

/// Dot products of `R` rows with `n` keys, to rows of scores `BLOCK` apart. What lies behind score `n` is unspecified.
#[inline(always)]
unsafe fn dot<S: Simd, K: Rows, const R: usize>(
    s: S,
    q: *const f32,
    width: usize,
    keys: K,
    n: usize,
    scores: *mut f32,
) {
    // One vector's worth of sums at a time: `together` keys for each row (three rows leave some lanes unused).
    let together = S::LANES / R.next_power_of_two();
    let mut sums = [0.0_f32; MAX_LANES];
    for key in (0..n).step_by(together.max(1)) {
        // A tile that crosses the end scores the last key again.
        let position = |j: usize| (key + j).min(n - 1);
        let mut chains = [s.splat(0.0); MAX_LANES];
        for at in (0..width).step_by(S::LANES) {
            // SAFETY: rows are `width` long and positions are below `n`.
            unsafe {
                let mut row = [s.splat(0.0); R];
                for (r, row) in row.iter_mut().enumerate() {
                    *row = s.load(q.add(r * width + at));
                }
                for j in 0..together {
                    let k = keys.load(s, position(j), at);
                    for r in 0..R {
                        chains[r * together + j] = s.fma(row[r], k, chains[r * together + j]);
                    }
                }
            }
        }
        // SAFETY: `sums` holds a vector; a row of scores is a multiple of `together` long.
        unsafe {
            s.store(sums.as_mut_ptr(), s.sums(&chains));
            for r in 0..R {
                let sums = sums.as_ptr().add(r * together);
                scores.add(r * BLOCK + key).copy_from_nonoverlapping(sums, together);
            }
        }
    }
}

/// Adds `n` weighted values in one piece to all rows.
struct Sums<'f, V> {
    /// `[rows, BLOCK]`.
    weights: &'f [f32],
    values: V,
    n: usize,
    /// `[rows, stride]`.
    out: &'f mut [f32],
    /// Width of the values.
    stride: usize,
}

impl<V: Rows> Body for Sums<'_, V> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { weights, values, n, out, stride } = self;
        let rows = weights.len() / BLOCK;
        assert!(
            out.len() >= rows * stride && n <= BLOCK && stride.is_multiple_of(S::LANES),
            "values of {rows} rows"
        );
        for row in (0..rows).step_by(TOGETHER) {
            // SAFETY: the values exist, `weights` and `out` hold all rows, and the width is whole vectors.
            unsafe {
                let (p, out) = (weights.as_ptr().add(row * BLOCK), out.as_mut_ptr().add(row * stride));
                match rows - row {
                    1 => gather::<S, _, 1>(s, p, values, n, stride, out, stride),
                    2 => gather::<S, _, 2>(s, p, values, n, stride, out, stride),
                    3 => gather::<S, _, 3>(s, p, values, n, stride, out, stride),
                    _ => gather::<S, _, 4>(s, p, values, n, stride, out, stride),
                }
            }
        }
    }
}

/// Adds `sum over keys of weight * value` for `R` rows.
#[allow(clippy::too_many_arguments, reason = "one step of one loop")]
#[inline(always)]
unsafe fn gather<S: Simd, V: Rows, const R: usize>(
    s: S,
    weights: *const f32,
    values: V,
    n: usize,
    width: usize,
    out: *mut f32,
    stride: usize,
) {
    let mut at = 0;
    // SAFETY: all columns are below `width`, a multiple of a vector.
    unsafe {
        if R * 8 <= S::TILE {
            while at + 8 * S::LANES <= width {
                columns::<S, V, R, 8>(s, weights, values, n, at, out, stride);
                at += 8 * S::LANES;
            }
        }
        if R * 4 <= S::TILE {
            while at + 4 * S::LANES <= width {
                columns::<S, V, R, 4>(s, weights, values, n, at, out, stride);
                at += 4 * S::LANES;
            }
        }
        while at + 2 * S::LANES <= width {
            columns::<S, V, R, 2>(s, weights, values, n, at, out, stride);
            at += 2 * S::LANES;
        }
        if at < width {
            columns::<S, V, R, 1>(s, weights, values, n, at, out, stride);
        }
    }
}

/// `C` vectors of columns of [`gather`].
#[allow(clippy::too_many_arguments, reason = "one step of one loop")]
#[inline(always)]
unsafe fn columns<S: Simd, V: Rows, const R: usize, const C: usize>(
    s: S,
    weights: *const f32,
    values: V,
    n: usize,
    at: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promise: `n` values, columns within the rows.
    unsafe {
        let mut sums = [[s.splat(0.0); C]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = s.load(out.add(r * stride + at + c * S::LANES));
            }
        }
        for key in 0..n {
            let mut value = [s.splat(0.0); C];
            for (c, value) in value.iter_mut().enumerate() {
                *value = values.load(s, key, at + c * S::LANES);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = s.splat(*weights.add(r * BLOCK + key));
                for (sum, value) in sums.iter_mut().zip(value) {
                    *sum = s.fma(weight, value, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                s.store(out.add(r * stride + at + c * S::LANES), *sum);
            }
        }
    }
}

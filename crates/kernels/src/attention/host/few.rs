//! Few rows: decode. Keys and values are read once, straight from their storage, for up to four rows at a time.
#![allow(unsafe_code)]

use super::store::{Rows, Store};
use super::task::{BLOCK, Running, Task, UNIT, Work, rescale};
use crate::host::lanes::{Lane, MAX_LANES, Simd, math};
use crate::host::scratch;

/// Rows that share the loads of a tile.
const TOGETHER: usize = 4;

#[inline(always)]
pub(super) fn fold<S: Simd, E: Lane, K: Store, V: Store>(
    s: S,
    work: &Work<'_, E, K, V>,
    task: &Task,
    running: &mut Running<'_>,
) {
    let rows = work.group * task.queries.len();
    let width = work.key_width;
    scratch::with_f32(rows * width.next_multiple_of(UNIT) + rows * BLOCK, |floats| {
        let (q, scores) = floats.split_at_mut(rows * width.next_multiple_of(UNIT));
        let factor = s.splat(work.options.scale);
        for row in 0..rows {
            let (head, query) = work.row(task, row);
            let from = work.q.row(task.batch, head, query);
            for at in (0..width).step_by(S::LANES) {
                f32::put(s, q, row * width + at, s.mul(E::get(s, from, at), factor));
            }
        }
        let (keys, values) = (work.k.rows(task.batch, task.head), work.v.rows(task.batch, task.head));
        let stride = work.value_stride();
        for from in task.keys.clone().step_by(BLOCK) {
            let n = BLOCK.min(task.keys.end - from);
            // SAFETY: keys `from .. from + n` exist, `q`, `scores` and the running values hold all rows, and both
            // widths are whole vectors.
            unsafe {
                for row in (0..rows).step_by(TOGETHER) {
                    let (q, out) = (q.as_ptr().add(row * width), scores.as_mut_ptr().add(row * BLOCK));
                    match rows - row {
                        1 => dot::<S, _, 1>(s, q, width, keys, from, n, out),
                        2 => dot::<S, _, 2>(s, q, width, keys, from, n, out),
                        3 => dot::<S, _, 3>(s, q, width, keys, from, n, out),
                        _ => dot::<S, _, 4>(s, q, width, keys, from, n, out),
                    }
                }
            }
            for row in 0..rows {
                let scores = &mut scores[row * BLOCK..][..n.next_multiple_of(UNIT)];
                let running = (
                    &mut running.top[row],
                    &mut running.total[row],
                    &mut running.values[row * stride..][..stride],
                );
                weigh(s, work, task, row, from, n, scores, running);
            }
            // SAFETY: as above.
            unsafe {
                for row in (0..rows).step_by(TOGETHER) {
                    let p = scores.as_ptr().add(row * BLOCK);
                    let out = running.values.as_mut_ptr().add(row * stride);
                    let width = work.value_width;
                    match rows - row {
                        1 => gather::<S, _, 1>(s, p, values, from, n, width, out, stride),
                        2 => gather::<S, _, 2>(s, p, values, from, n, width, out, stride),
                        3 => gather::<S, _, 3>(s, p, values, from, n, width, out, stride),
                        _ => gather::<S, _, 4>(s, p, values, from, n, width, out, stride),
                    }
                }
            }
        }
    });
}

/// Dot products of `R` rows with keys `from .. from + n`, to rows of scores `BLOCK` apart. What lies behind score `n` is
/// unspecified.
#[inline(always)]
unsafe fn dot<S: Simd, K: Rows, const R: usize>(
    s: S,
    q: *const f32,
    width: usize,
    keys: K,
    from: usize,
    n: usize,
    scores: *mut f32,
) {
    // One vector's worth of sums at a time: `together` keys for each row (three rows leave some lanes unused).
    let together = S::LANES / R.next_power_of_two();
    let mut sums = [0.0_f32; MAX_LANES];
    for key in (0..n).step_by(together.max(1)) {
        // A tile that crosses the end scores the last key again.
        let position = |j: usize| from + (key + j).min(n - 1);
        let mut chains = [s.splat(0.0); MAX_LANES];
        for at in (0..width).step_by(S::LANES) {
            // SAFETY: rows are `width` long and positions are below `from + n`.
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

/// Turns a row of scores to weights and folds them into the running softmax.
#[allow(clippy::too_many_arguments, reason = "one step of one loop")]
#[inline(always)]
fn weigh<S: Simd, E: Lane, K: Store, V: Store>(
    s: S,
    work: &Work<'_, E, K, V>,
    task: &Task,
    row: usize,
    from: usize,
    n: usize,
    scores: &mut [f32],
    (top, total, values): (&mut f32, &mut f32, &mut [f32]),
) {
    if let Some(cap) = work.options.softcap {
        for at in (0..n).step_by(S::LANES) {
            let capped = math::tanh(s, s.mul(f32::get(s, scores, at), s.splat(1.0 / cap)));
            f32::put(s, scores, at, s.mul(capped, s.splat(cap)));
        }
    }
    work.mask(task, row, from, scores, 1, n);
    let visible = work.visible(work.row(task, row).1);
    let start = visible.start.clamp(from, from + n) - from;
    let end = visible.end.clamp(from, from + n) - from;
    scores[..start].fill(f32::NEG_INFINITY);
    scores[end.max(start)..].fill(f32::NEG_INFINITY);

    let mut highest = s.splat(*top);
    for at in (0..scores.len()).step_by(S::LANES) {
        highest = s.max(f32::get(s, scores, at), highest);
    }
    let highest = s.largest(highest);
    // While nothing is visible any reference will do: hidden scores weigh 0, NaN stays.
    let reference = s.splat(if highest == f32::NEG_INFINITY { 0.0 } else { highest });
    let mut sum = s.splat(0.0);
    for at in (0..scores.len()).step_by(S::LANES) {
        let weight = math::exp(s, s.sub(f32::get(s, scores, at), reference));
        sum = s.add(sum, weight);
        f32::put(s, scores, at, weight);
    }
    let factor = rescale(*top, highest);
    *total = *total * factor + s.sum(sum);
    *top = highest;
    if factor != 1.0 {
        for at in (0..values.len()).step_by(S::LANES) {
            f32::put(s, values, at, s.mul(f32::get(s, values, at), s.splat(factor)));
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
    from: usize,
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
                columns::<S, V, R, 8>(s, weights, values, from, n, at, out, stride);
                at += 8 * S::LANES;
            }
        }
        if R * 4 <= S::TILE {
            while at + 4 * S::LANES <= width {
                columns::<S, V, R, 4>(s, weights, values, from, n, at, out, stride);
                at += 4 * S::LANES;
            }
        }
        while at + 2 * S::LANES <= width {
            columns::<S, V, R, 2>(s, weights, values, from, n, at, out, stride);
            at += 2 * S::LANES;
        }
        if at < width {
            columns::<S, V, R, 1>(s, weights, values, from, n, at, out, stride);
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
    from: usize,
    n: usize,
    at: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promise: `n` keys from `from`, columns within the rows.
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
                *value = values.load(s, from + key, at + c * S::LANES);
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

//! Many rows: prefill. Scores are kept transposed, `[keys, rows]`, so that the softmax of each row runs in its own lane
//! and both products read their operands as they lie.
#![allow(unsafe_code)]

use super::store::{Rows, Store};
use super::task::{BLOCK, Running, Task, UNIT, Work};
use super::tile::{Product, multiply};
use crate::host::lanes::{Lane, Simd, math};
use crate::host::scratch;

#[inline(always)]
pub(super) fn fold<S: Simd, E: Lane, K: Store, V: Store>(
    s: S,
    work: &Work<'_, E, K, V>,
    task: &Task,
    running: &mut Running<'_>,
) {
    let rows = work.group * task.queries.len();
    let padded = rows.next_multiple_of(UNIT);
    let key_stride = work.key_width.next_multiple_of(UNIT);
    let stride = work.value_stride();
    let lengths = [work.key_width * padded, BLOCK * key_stride.max(stride), BLOCK * padded, 3 * padded];
    scratch::with_f32(lengths.iter().sum(), |floats| {
        let (queries, floats) = floats.split_at_mut(lengths[0]);
        let (block, floats) = floats.split_at_mut(lengths[1]);
        let (scores, floats) = floats.split_at_mut(lengths[2]);
        let (first, floats) = floats.split_at_mut(padded);
        let (end, factors) = floats.split_at_mut(padded);
        transpose_queries(work, task, rows, padded, queries);
        let (keys, values) = (work.k.rows(task.batch, task.head), work.v.rows(task.batch, task.head));
        for from in task.keys.clone().step_by(BLOCK) {
            let n = BLOCK.min(task.keys.end - from);
            widen(s, keys, from, n, work.key_width, key_stride, block);
            let product = Product {
                a: block.as_ptr(),
                a_row: key_stride,
                a_step: 1,
                b: queries.as_ptr(),
                b_row: padded,
                c: scores.as_mut_ptr(),
                c_row: padded,
                rows: n,
                columns: padded,
                depth: work.key_width,
            };
            // SAFETY: `n` widened keys, `padded` transposed queries, `n * padded` scores.
            unsafe { multiply::<S, false>(s, &product) };
            let scores = &mut scores[..n * padded];
            shape_scores(s, work, task, rows, from, scores);
            let hides = visible_ends(work, task, rows, from, n, first, end);
            weigh(s, scores, padded, hides.then_some((&*first, &*end)), running.top, running.total, factors);
            for (row, &factor) in factors[..rows].iter().enumerate().filter(|&(_, &factor)| factor != 1.0) {
                let values = &mut running.values[row * stride..][..stride];
                for at in (0..stride).step_by(S::LANES) {
                    f32::put(s, values, at, s.mul(f32::get(s, values, at), s.splat(factor)));
                }
            }
            widen(s, values, from, n, work.value_width, stride, block);
            let product = Product {
                a: scores.as_ptr(),
                a_row: 1,
                a_step: padded,
                b: block.as_ptr(),
                b_row: stride,
                c: running.values.as_mut_ptr(),
                c_row: stride,
                rows,
                columns: stride,
                depth: n,
            };
            // SAFETY: `rows` of the weights of `n` keys, `n` widened values, `rows` running values.
            unsafe { multiply::<S, true>(s, &product) };
        }
    });
}

/// Scaled queries as `[key_width, padded]`; columns behind the rows are zero.
fn transpose_queries<E: Lane, K: Store, V: Store>(
    work: &Work<'_, E, K, V>,
    task: &Task,
    rows: usize,
    padded: usize,
    to: &mut [f32],
) {
    to.fill(0.0);
    for row in 0..rows {
        let (head, query) = work.row(task, row);
        let from = work.q.row(task.batch, head, query);
        for (x, to) in from.iter().zip(to[row..].iter_mut().step_by(padded)) {
            *to = x.to_f32() * work.options.scale;
        }
    }
}

/// Rows `from .. from + n` as float32, `stride` apart, zeros behind their `width`.
#[inline(always)]
fn widen<S: Simd, R: Rows>(
    s: S,
    rows: R,
    from: usize,
    n: usize,
    width: usize,
    stride: usize,
    to: &mut [f32],
) {
    let whole = width / S::LANES * S::LANES;
    for (i, to) in to.chunks_exact_mut(stride).take(n).enumerate() {
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: position and columns are within the shape.
            f32::put(s, to, at, unsafe { rows.load(s, from + i, at) });
        }
        if whole < width {
            // SAFETY: as above.
            f32::put(s, to, whole, unsafe { rows.load_tail(s, from + i, whole) });
        }
        for at in (width.next_multiple_of(S::LANES)..stride).step_by(S::LANES) {
            f32::put(s, to, at, s.splat(0.0));
        }
    }
}

/// Soft cap and array mask.
#[inline(always)]
fn shape_scores<S: Simd, E: Lane, K: Store, V: Store>(
    s: S,
    work: &Work<'_, E, K, V>,
    task: &Task,
    rows: usize,
    from: usize,
    scores: &mut [f32],
) {
    if let Some(cap) = work.options.softcap {
        for at in (0..scores.len()).step_by(S::LANES) {
            let capped = math::tanh(s, s.mul(f32::get(s, scores, at), s.splat(1.0 / cap)));
            f32::put(s, scores, at, s.mul(capped, s.splat(cap)));
        }
    }
    if work.options.mask.is_some() {
        let padded = rows.next_multiple_of(UNIT);
        let n = scores.len() / padded;
        for row in 0..rows {
            work.mask(task, row, from, &mut scores[row..], padded, n);
        }
    }
}

/// First visible key of each row and the one past the last, relative to `from`; true when any of `n` keys is hidden.
fn visible_ends<E: Lane, K: Store, V: Store>(
    work: &Work<'_, E, K, V>,
    task: &Task,
    rows: usize,
    from: usize,
    n: usize,
    first: &mut [f32],
    end: &mut [f32],
) -> bool {
    let relative = |x: usize| x.clamp(from, from + n) - from;
    let mut hides = false;
    first.fill(0.0);
    end.fill(n as f32);
    for (row, (first, end)) in first.iter_mut().zip(end).enumerate().take(rows) {
        let visible = work.visible(work.row(task, row).1);
        let range = relative(visible.start)..relative(visible.end);
        hides |= range != (0..n);
        (*first, *end) = (range.start as f32, range.end as f32);
    }
    hides
}

/// Turns scores to weights, each row in its own lane; `factors` are what earlier sums are to be multiplied with.
#[inline(always)]
fn weigh<S: Simd>(
    s: S,
    scores: &mut [f32],
    padded: usize,
    ends: Option<(&[f32], &[f32])>,
    top: &mut [f32],
    total: &mut [f32],
    factors: &mut [f32],
) {
    let lowest = s.splat(f32::NEG_INFINITY);
    for row in (0..padded).step_by(S::LANES) {
        let before = f32::get(s, top, row);
        let mut highest = before;
        for (key, at) in (row..scores.len()).step_by(padded).enumerate() {
            let mut score = f32::get(s, scores, at);
            if let Some((first, end)) = ends {
                let key = s.splat(key as f32);
                score = s.select(s.lt(key, f32::get(s, first, row)), lowest, score);
                score = s.select(s.lt(key, f32::get(s, end, row)), score, lowest);
                f32::put(s, scores, at, score);
            }
            highest = s.max(score, highest);
        }
        // While nothing is visible any reference will do: hidden scores weigh 0, NaN stays.
        let reference = s.select(s.lt(lowest, highest), highest, s.splat(0.0));
        let mut sum = s.splat(0.0);
        for at in (row..scores.len()).step_by(padded) {
            let weight = math::exp(s, s.sub(f32::get(s, scores, at), reference));
            sum = s.add(sum, weight);
            f32::put(s, scores, at, weight);
        }
        // e^(before - highest), but 1 where the top stays, even at an infinity.
        let rises = s.lt(before, highest);
        let factor = s.select(rises, math::exp(s, s.sub(before, highest)), s.splat(1.0));
        f32::put(s, total, row, s.fma(f32::get(s, total, row), factor, sum));
        f32::put(s, top, row, highest);
        f32::put(s, factors, row, factor);
    }
}

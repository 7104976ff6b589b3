//! Many rows: prefill. Scores are kept transposed, `[keys, rows]`, so that the softmax of each row runs in its own lane
//! and both products read their operands as they lie.
//!
//! Each step of a block is a body of its own: only the widening knows the storage, so the others are compiled once for
//! each instruction set.

use super::softmax::{Cap, Lanes, Rescale};
use super::store::{Store, widen};
use super::task::{BLOCK, Running, Task, UNIT, Work};
use super::tile::Product;
use crate::host::lanes::{Lane, dispatch};
use crate::host::{Level, scratch};

pub(super) fn fold<E: Lane, K: Store, V: Store>(
    level: Level,
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
        transpose_queries(level, work, task, rows, padded, queries);
        let place = (task.batch, task.head);
        for from in task.keys.clone().step_by(BLOCK) {
            let n = BLOCK.min(task.keys.end - from);
            widen(level, &work.k, place, (from, n), key_stride, block);
            let scores = &mut scores[..n * padded];
            dispatch(
                level,
                Product {
                    a: block,
                    a_strides: (key_stride, 1),
                    b: queries,
                    b_row: padded,
                    c: scores,
                    c_row: padded,
                    rows: n,
                    columns: padded,
                    depth: work.key_width,
                    add: false,
                },
            );
            if let Some(cap) = work.options.softcap {
                dispatch(level, Cap { cap, scores });
            }
            if work.options.mask.is_some() {
                (0..rows).for_each(|row| work.mask(task, row, from, &mut scores[row..], padded, n));
            }
            let hides = visible_ends(work, task, rows, from, n, first, end);
            let ends = hides.then_some((&*first, &*end));
            dispatch(level, Lanes { scores, padded, ends, running, factors });
            dispatch(level, Rescale { factors: &factors[..rows], stride, values: running.values });
            widen(level, &work.v, place, (from, n), stride, block);
            dispatch(
                level,
                Product {
                    a: scores,
                    a_strides: (1, padded),
                    b: block,
                    b_row: stride,
                    c: running.values,
                    c_row: stride,
                    rows,
                    columns: stride,
                    depth: n,
                    add: true,
                },
            );
        }
    });
}

/// Scaled queries as `[key_width, padded]`; columns behind the rows are zero.
fn transpose_queries<E: Lane, K: Store, V: Store>(
    level: Level,
    work: &Work<'_, E, K, V>,
    task: &Task,
    rows: usize,
    padded: usize,
    to: &mut [f32],
) {
    to.fill(0.0);
    scratch::with_f32(work.key_width, |query| {
        for row in 0..rows {
            work.query(level, task, row, query);
            query.iter().zip(to[row..].iter_mut().step_by(padded)).for_each(|(x, to)| *to = *x);
        }
    });
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
        let visible = work.visible(task.batch, work.row(task, row).1);
        let range = relative(visible.start)..relative(visible.end);
        hides |= range != (0..n);
        (*first, *end) = (range.start as f32, range.end as f32);
    }
    hides
}

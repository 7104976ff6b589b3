//! One task: some rows of queries against a range of one head's keys, as a running softmax.
//!
//! Row `r` of a task is query `queries.start + r % queries.len()` of the group's head `r / queries.len()`.

use super::store::{Rows, Store};
use super::{ArrayMask, Heads, Layout, Options};
use crate::host::Level;
use crate::host::lanes::{Lane, Simd};
use std::ops::Range;

/// Keys that are scored together.
pub(super) const BLOCK: usize = 96;
/// Rows up to which keys are read straight from their storage; beyond, blocks of them are widened first.
pub(super) const FEW: usize = 16;
/// All scratch rows are this many floats or a multiple: a vector of any level.
pub(super) const UNIT: usize = 16;

/// The operands, checked, and the lengths that follow from them.
pub(super) struct Work<'a, E, K, V> {
    pub(super) q: Heads<'a, E>,
    pub(super) k: K,
    pub(super) v: V,
    pub(super) options: Options<'a, E>,
    pub(super) layout: Layout,
    /// Query heads that read one key head.
    pub(super) group: usize,
    pub(super) keys: usize,
    pub(super) key_width: usize,
    pub(super) value_width: usize,
}

/// Which part of the work.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) batch: usize,
    pub(super) head: usize,
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
}

/// The running softmax of some rows: sums are relative to `e^top`.
pub(super) struct Running<'a> {
    /// `[rows, value_stride]`: weighted values.
    pub(super) values: &'a mut [f32],
    /// Largest score.
    pub(super) top: &'a mut [f32],
    /// Sum of the weights.
    pub(super) total: &'a mut [f32],
}

impl<'a, E: Lane, K: Store, V: Store> Work<'a, E, K, V> {
    pub(super) fn new(q: Heads<'a, E>, k: K, v: V, options: Options<'a, E>, layout: Layout) -> Self {
        let [_, heads, keys, key_width] = k.shape();
        let value_width = v.shape()[3];
        let group = q.shape()[1] / heads;
        Self { q, k, v, options, layout, group, keys, key_width, value_width }
    }

    /// Floats from one row of weighted values to the next.
    pub(super) fn value_stride(&self) -> usize {
        self.value_width.next_multiple_of(UNIT)
    }

    /// Query head and query index of a task's row.
    #[inline(always)]
    pub(super) fn row(&self, task: &Task, row: usize) -> (usize, usize) {
        let queries = task.queries.len();
        (task.head * self.group + row / queries, task.queries.start + row % queries)
    }

    /// A row's query in float32, scaled.
    pub(super) fn query(&self, level: Level, task: &Task, row: usize, to: &mut [f32]) {
        let (head, query) = self.row(task, row);
        E::widen(level, self.q.row(task.batch, head, query), to);
        for x in to {
            *x *= self.options.scale;
        }
    }

    /// Keys that a query sees by position.
    #[inline(always)]
    pub(super) fn visible(&self, batch: usize, query: usize) -> Range<usize> {
        match self.options.places {
            None => self.options.span.range(query, self.q.shape()[2], self.keys),
            Some(places) => places[batch].visible(query),
        }
    }

    /// Keys that any query of a range sees.
    pub(super) fn union(&self, batch: usize, queries: &Range<usize>) -> Range<usize> {
        let (first, last) = (self.visible(batch, queries.start), self.visible(batch, queries.end - 1));
        first.start.min(last.end)..last.end
    }

    /// Applies the array mask to the scores of keys `from ..` of a row, `step` floats apart.
    pub(super) fn mask(
        &self,
        task: &Task,
        row: usize,
        from: usize,
        scores: &mut [f32],
        step: usize,
        n: usize,
    ) {
        let (head, query) = self.row(task, row);
        let start = |s: &[usize; 4]| task.batch * s[0] + head * s[1] + query * s[2] + from * s[3];
        let scores = scores.iter_mut().step_by(step).take(n).enumerate();
        match self.options.mask {
            None => {}
            Some(ArrayMask::Boolean(data, strides)) => {
                let start = start(&strides);
                scores
                    .filter(|(i, _)| data[start + i * strides[3]] == 0)
                    .for_each(|(_, x)| *x = f32::NEG_INFINITY);
            }
            Some(ArrayMask::Additive(data, strides)) => {
                let start = start(&strides);
                scores.for_each(|(i, x)| *x += data[start + i * strides[3]].to_f32());
            }
        }
    }

    /// Divides a row of weighted values by its weights, sink included, and stores it.
    #[inline(always)]
    pub(super) fn store<S: Simd>(
        &self,
        s: S,
        batch: usize,
        head: usize,
        (values, top, total): (&[f32], f32, f32),
        out: &mut [E],
    ) {
        let (mut factor, mut total) = (1.0, total);
        if let Some(sinks) = self.options.sinks {
            let sink = sinks[head].to_f32();
            let highest = if sink > top { sink } else { top };
            factor = rescale(top, highest);
            total = total * factor + rescale(sink, highest);
        }
        if total == 0.0 && !matches!(self.options.mask, Some(ArrayMask::Additive(..))) {
            if self.options.places.is_some() {
                return out.fill(E::default());
            }
            return self.mean(s, batch, head / self.group, out);
        }
        let factor = s.splat(factor / total);
        for at in (0..out.len()).step_by(S::LANES) {
            E::put(s, out, at, s.mul(f32::get(s, values, at), factor));
        }
    }

    /// The mean of a head's values: what a query gets that sees nothing.
    #[allow(unsafe_code)]
    #[inline(never)]
    fn mean<S: Simd>(&self, s: S, batch: usize, head: usize, out: &mut [E]) {
        let count = s.splat(self.keys as f32);
        for at in (0..out.len()).step_by(S::LANES) {
            let mut sum = s.splat(0.0);
            for position in 0..self.keys {
                let (row, _) = self.v.rows(batch, head, position);
                // SAFETY: `at` is within the shape; whole vectors only where one is left.
                sum = s.add(sum, unsafe {
                    if at + S::LANES <= out.len() { row.load(s, 0, at) } else { row.load_tail(s, 0, at) }
                });
            }
            E::put(s, out, at, s.div(sum, count));
        }
    }
}

/// `e^(from - to)`, 1 where both are the same infinity.
#[inline(always)]
pub(super) fn rescale(from: f32, to: f32) -> f32 {
    #[allow(clippy::float_cmp, reason = "equal means no rescaling")]
    if from == to { 1.0 } else { (from - to).exp() }
}

/// Folds a task's keys into `running`, which starts empty.
pub(super) fn fold<E: Lane, K: Store, V: Store>(
    level: Level,
    work: &Work<'_, E, K, V>,
    task: &Task,
    mut running: Running<'_>,
) {
    running.values.fill(0.0);
    running.top.fill(f32::NEG_INFINITY);
    running.total.fill(0.0);
    let rows = work.group * task.queries.len();
    if rows <= FEW && work.key_width.is_multiple_of(UNIT) && work.value_width.is_multiple_of(UNIT) {
        super::few::fold(level, work, task, &mut running);
    } else {
        super::many::fold(level, work, task, &mut running);
    }
}

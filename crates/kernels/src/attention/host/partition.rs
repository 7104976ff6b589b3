//! The cut of the work into tasks, and the merge of tasks that share queries.
#![allow(unsafe_code)]

use super::store::Store;
use super::task::{FEW, Running, Task, UNIT, Work, fold, rescale};
use crate::host::lanes::{Body, Lane, Simd, dispatch};
use crate::host::pool::{Disjoint, parallel_for, part, threads};
use crate::host::{Level, scratch};

/// Rows of a prefill task: enough to amortise the widening of keys and values, few enough for the second-level cache.
const ROWS: usize = 128;
/// Keys below which a range is not worth a task of its own.
const KEYS: usize = 64;

/// How the work is cut: `heads * blocks * splits` tasks.
struct Cut {
    /// Batch rows times key heads.
    heads: usize,
    /// Queries of one block.
    queries: usize,
    /// Blocks of queries.
    blocks: usize,
    /// Ranges of keys of one block.
    splits: usize,
}

impl Cut {
    fn new(heads: usize, group: usize, length: usize, keys: usize, threads: usize) -> Self {
        let (queries, blocks) = if group * length <= FEW {
            (length, 1)
        } else {
            // At least about four tasks a thread, if that leaves some rows in each.
            let fair = (length * heads).div_ceil(4 * threads);
            let queries = fair.clamp(FEW.div_ceil(group), (ROWS / group).max(1)).min(length);
            (queries, length.div_ceil(queries))
        };
        let units = heads * blocks;
        let wanted = if threads == 1 { 1 } else { (4 * threads).div_ceil(units) };
        let most = (keys / KEYS).max(1);
        // A count of tasks that the threads share evenly, where one is near.
        let even = (wanted..wanted + threads).find(|splits| (units * splits).is_multiple_of(threads));
        let splits = if wanted == 1 { 1 } else { even.unwrap_or(wanted).min(most) };
        Self { heads, queries, blocks, splits }
    }

    fn tasks(&self) -> usize {
        self.heads * self.blocks * self.splits
    }
}

pub(super) fn run<E: Lane, K: Store, V: Store>(level: Level, work: &Work<'_, E, K, V>, out: &mut [E]) {
    let [batch, _, length, _] = work.q.shape();
    let key_heads = work.k.shape()[1];
    let cut = Cut::new(batch * key_heads, work.group, length, work.keys, threads());
    let rows = work.group * cut.queries;
    // Per task: values of each row, then tops and totals, each padded to whole vectors.
    let size = rows * work.value_stride() + 2 * rows.next_multiple_of(UNIT);
    let out = Disjoint::new(out);
    let task = |index: usize| {
        // Later blocks see more keys under a causal mask: they go first.
        let (unit, split) = (index / cut.splits, index % cut.splits);
        let (block, unit) = (cut.blocks - 1 - unit / cut.heads, unit % cut.heads);
        let start = block * cut.queries;
        let queries = start..length.min(start + cut.queries);
        let (batch, head) = (unit / key_heads, unit % key_heads);
        let all = work.union(batch, &queries);
        let keys = part(all.len(), cut.splits, 1, split);
        let keys = all.start + keys.start..all.start + keys.end;
        Task { batch, head, queries, keys }
    };
    if cut.splits == 1 {
        parallel_for(cut.tasks(), |index| {
            let task = task(index);
            scratch::with_f32(size, |floats| {
                let running = running(work, rows, floats);
                fold(level, work, &task, running);
                dispatch(level, Finish { work, task: &task, parts: floats, size, rows, out: &out });
            });
        });
        return;
    }
    scratch::with_f32(size * cut.tasks(), |floats| {
        let parts = Disjoint::new(floats);
        parallel_for(cut.tasks(), |index| {
            // SAFETY: one range for each index.
            let floats = unsafe { parts.range(index * size..(index + 1) * size) };
            let running = running(work, rows, floats);
            fold(level, work, &task(index), running);
        });
        for (unit, parts) in floats.chunks_exact(size * cut.splits).enumerate() {
            let task = task(unit * cut.splits);
            dispatch(level, Finish { work, task: &task, parts, size, rows, out: &out });
        }
    });
}

/// A task's floats as its running softmax.
fn running<'f, E: Lane, K: Store, V: Store>(
    work: &Work<'_, E, K, V>,
    rows: usize,
    floats: &'f mut [f32],
) -> Running<'f> {
    let (values, floats) = floats.split_at_mut(rows * work.value_stride());
    let (top, total) = floats.split_at_mut(rows.next_multiple_of(UNIT));
    Running { values, top, total }
}

/// Merges the parts of a task's rows and stores them.
struct Finish<'a, 'w, E, K, V> {
    work: &'w Work<'a, E, K, V>,
    task: &'w Task,
    /// `size` floats for each range of keys, as [`running`] divides them.
    parts: &'w [f32],
    size: usize,
    /// Rows that the parts have room for.
    rows: usize,
    out: &'w Disjoint<'w, E>,
}

impl<E: Lane, K: Store, V: Store> Body for Finish<'_, '_, E, K, V> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { work, task, parts, size, rows, out } = self;
        let parts = parts.chunks_exact(size);
        let (stride, width) = (work.value_stride(), work.value_width);
        let [batch, heads, length, _] = work.q.shape();
        let strides = work.layout.strides([batch, heads, length, width]);
        let top = |part: &[f32], row: usize| part[rows * stride + row];
        let total = |part: &[f32], row: usize| part[rows * stride + rows.next_multiple_of(UNIT) + row];
        for row in 0..work.group * task.queries.len() {
            let (head, query) = work.row(task, row);
            let at = task.batch * strides[0] + head * strides[1] + query * strides[2];
            // SAFETY: each row of the result belongs to one task.
            let out = unsafe { out.range(at..at + width) };
            if parts.len() == 1 {
                let part = self.parts;
                let values = &part[row * stride..][..stride];
                work.store(s, task.batch, head, (values, top(part, row), total(part, row)), out);
                continue;
            }
            let highest = parts.clone().map(|part| top(part, row)).fold(f32::NEG_INFINITY, f32::max);
            scratch::with_f32(stride, |values| {
                values.fill(0.0);
                let mut sum = 0.0;
                for part in parts.clone() {
                    let factor = rescale(top(part, row), highest);
                    sum += total(part, row) * factor;
                    for at in (0..stride).step_by(S::LANES) {
                        let value = f32::get(s, &part[row * stride..][..stride], at);
                        f32::put(s, values, at, s.fma(value, s.splat(factor), f32::get(s, values, at)));
                    }
                }
                work.store(s, task.batch, head, (values, highest, sum), out);
            });
        }
    }
}

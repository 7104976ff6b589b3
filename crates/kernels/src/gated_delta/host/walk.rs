//! Some rows of one head's state over all steps.
//!
//! With `s` a row before the step, `S k` and `S q` of the decayed row need no second pass over it: `s . (g k)` and
//! `s . (g q) + d (k . q)`, where `g k`, `g q` and `k . q` are the same for all rows.
#![allow(unsafe_code)]

use super::{Operands, Sizes};
use crate::host::lanes::{Body, Lane, Simd, sum_over};
use crate::host::pool::Disjoint;
use std::ops::Range;

/// Rows that share loads.
pub(super) const TOGETHER: usize = 4;

/// What all rows of a head read at a step: rows of `width` floats (padded with zeros) for each step.
pub(super) struct Columns<'f> {
    width: usize,
    /// Decay, key, decayed key, decayed query: one row each.
    vectors: &'f [f32],
    /// `k . q` of each step.
    dots: &'f [f32],
}

impl Columns<'_> {
    fn width(sizes: Sizes) -> usize {
        sizes.key_width.next_multiple_of(16)
    }

    /// Floats of scratch: the columns, and `TOGETHER` rows of state.
    pub(super) fn floats(sizes: Sizes) -> usize {
        (4 * sizes.length + TOGETHER) * Self::width(sizes) + sizes.length
    }
}

/// One task.
pub(super) struct Walk<'a, 'o, E> {
    pub(super) sizes: Sizes,
    pub(super) operands: Operands<'a, E>,
    /// Batch row times value heads, plus the head.
    pub(super) head: usize,
    /// Rows of the head's state.
    pub(super) rows: Range<usize>,
    pub(super) floats: &'a mut [f32],
    pub(super) y: &'a Disjoint<'o, E>,
    pub(super) last: &'a Disjoint<'o, f32>,
}

impl<E: Lane> Body for Walk<'_, '_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { sizes, operands, head, rows, floats, y, last } = self;
        let Sizes { length, key_heads, value_heads, key_width, value_width, .. } = sizes;
        let (batch, value_head) = (head / value_heads, head % value_heads);
        let key_head = value_head / (value_heads / key_heads);
        let width = Columns::width(sizes);
        let (vectors, floats) = floats.split_at_mut(4 * length * width);
        let (dots, state) = floats.split_at_mut(length);
        // Where a step of this head stands in keys, values and numbers a head.
        let key = |t: usize| ((batch * length + t) * key_heads + key_head) * key_width;
        let number = |t: usize| (batch * length + t) * value_heads + value_head;
        let one_a_head = operands.g.len() == operands.beta.len();
        for (t, (vectors, dot)) in vectors.chunks_exact_mut(4 * width).zip(dots.iter_mut()).enumerate() {
            let (q, k) = (&operands.q[key(t)..][..key_width], &operands.k[key(t)..][..key_width]);
            let g = if one_a_head {
                &operands.g[number(t)..][..1]
            } else {
                &operands.g[number(t) * key_width..][..key_width]
            };
            *dot = columns(s, q, k, g, width, vectors);
        }
        let columns = Columns { width, vectors, dots };
        for first in rows.clone().step_by(TOGETHER) {
            let count = TOGETHER.min(rows.end - first);
            let at = (head * value_width + first) * key_width;
            for (i, row) in state.chunks_exact_mut(width).enumerate() {
                row.fill(0.0);
                // Rows that are missing from the last group walk along as zeros.
                if i < count {
                    row[..key_width].copy_from_slice(&operands.state[at + i * key_width..][..key_width]);
                }
            }
            for t in 0..length {
                let place = number(t) * value_width + first;
                // SAFETY: each row of each head belongs to one task.
                let y = unsafe { y.range(place..place + count) };
                if operands.mask.is_some_and(|mask| mask[batch * length + t] == 0) {
                    y.fill(E::default());
                    continue;
                }
                let mut v = [0.0; TOGETHER];
                v.iter_mut().zip(&operands.v[place..place + count]).for_each(|(to, v)| *to = v.to_f32());
                let out = step(s, &columns, t, v, operands.beta[number(t)], state);
                y.iter_mut().zip(out).for_each(|(y, out)| *y = E::from_f32(out));
            }
            // SAFETY: as above.
            let last = unsafe { last.range(at..at + count * key_width) };
            for (last, row) in last.chunks_exact_mut(key_width).zip(state.chunks_exact(width)) {
                last.copy_from_slice(&row[..key_width]);
            }
        }
    }
}

/// Fills one step's vectors; returns `k . q`.
#[inline(always)]
fn columns<S: Simd, E: Lane>(s: S, q: &[E], k: &[E], g: &[f32], width: usize, to: &mut [f32]) -> f32 {
    to.fill(0.0);
    for at in (0..q.len()).step_by(S::LANES) {
        let g = if let [g] = g { s.splat(*g) } else { f32::get(s, g, at) };
        let (q, k) = (E::get(s, q, at), E::get(s, k, at));
        for (i, x) in [g, k, s.mul(g, k), s.mul(g, q)].into_iter().enumerate() {
            f32::put(s, &mut to[i * width..(i + 1) * width], at, x);
        }
    }
    sum_over(s, q.len(), |at, sum| s.fma(E::get(s, q, at), E::get(s, k, at), sum))
}

/// One step of `TOGETHER` rows.
#[inline(always)]
fn step<S: Simd>(
    s: S,
    columns: &Columns<'_>,
    t: usize,
    v: [f32; TOGETHER],
    beta: f32,
    state: &mut [f32],
) -> [f32; TOGETHER] {
    let width = columns.width;
    let vectors = &columns.vectors[4 * t * width..4 * (t + 1) * width];
    assert!(state.len() >= TOGETHER * width && vectors.len() == 4 * width, "scratch of {width} columns");
    let (vectors, rows) = (vectors.as_ptr(), state.as_mut_ptr());
    // SAFETY: the lengths were just asserted; widths are whole vectors of any level.
    unsafe {
        let (mut memory, mut read) = ([s.splat(0.0); TOGETHER], [s.splat(0.0); TOGETHER]);
        for at in (0..width).step_by(S::LANES) {
            let (k, q) = (s.load(vectors.add(2 * width + at)), s.load(vectors.add(3 * width + at)));
            for r in 0..TOGETHER {
                let row = s.load(rows.add(r * width + at));
                memory[r] = s.fma(row, k, memory[r]);
                read[r] = s.fma(row, q, read[r]);
            }
        }
        let mut delta = [0.0; TOGETHER];
        let mut out = [0.0; TOGETHER];
        for r in 0..TOGETHER {
            delta[r] = beta * (v[r] - s.sum(memory[r]));
            out[r] = s.sum(read[r]) + delta[r] * columns.dots[t];
        }
        for at in (0..width).step_by(S::LANES) {
            let (g, k) = (s.load(vectors.add(at)), s.load(vectors.add(width + at)));
            for (r, &delta) in delta.iter().enumerate() {
                let row = rows.add(r * width + at);
                s.store(row, s.fma(s.load(row), g, s.mul(s.splat(delta), k)));
            }
        }
        out
    }
}

//! Rows of the input as the products read them: normed, and float32 or rounded.

use super::{Call, Norm, Rows};
use crate::host::element::each_float;
use crate::host::lanes::{Body, Bytes, Lane, dispatch, sum_over};
use crate::host::pool::{self, Disjoint};
use crate::host::{Level, scratch};
use crate::matmul::host::dot::FloatRows;
use crate::quantized_matmul::host::activations::{Layout, RoundedRows};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows that one task prepares.
const BATCH: usize = 8;

/// Prepared rows, in the order of their places.
pub(super) enum Prepared<'a> {
    Float(FloatRows<'a>),
    Rounded(RoundedRows<'a>),
}

/// Prepares rows and hands them to `body`; rows that do not survive rounding come as float32.
pub(super) fn with_rows<T: Lane>(
    level: Level,
    call: &Call<'_, T>,
    rows: &Rows,
    layout: Option<Layout>,
    places: Range<usize>,
    body: impl FnOnce(&Prepared<'_>),
) {
    let source = Source { level, call, rows, places };
    match layout {
        Some(layout) => source.rounded(layout, body),
        None => source.float(body),
    }
}

struct Source<'a, T> {
    level: Level,
    call: &'a Call<'a, T>,
    rows: &'a Rows,
    places: Range<usize>,
}

impl<T: Lane> Source<'_, T> {
    fn float(&self, body: impl FnOnce(&Prepared<'_>)) {
        let columns = self.call.columns();
        let stride = FloatRows::stride(columns);
        scratch::with_f32(self.places.len() * stride, |values| {
            let out = Disjoint::new(values);
            self.each_batch(|batch| {
                for row in batch {
                    // SAFETY: each row is prepared by one task.
                    #[allow(unsafe_code)]
                    let out = unsafe { out.range(row * stride..(row + 1) * stride) };
                    dispatch(self.level, self.widen(row, out));
                }
            });
            body(&Prepared::Float(FloatRows { values, columns }));
        });
    }

    fn rounded(&self, layout: Layout, body: impl FnOnce(&Prepared<'_>)) {
        let count = self.places.len();
        let (width, steps, sums) = (layout.bytes, layout.steps, layout.sums);
        let finite = AtomicBool::new(true);
        scratch::with_i8(count * width, |bytes| {
            scratch::with_f32(count * (steps + sums), |floats| {
                let (all_steps, all_sums) = floats.split_at_mut(count * steps);
                let (to_bytes, to_steps, to_sums) =
                    (Disjoint::new(bytes), Disjoint::new(all_steps), Disjoint::new(all_sums));
                self.each_batch(|batch| {
                    let stride = FloatRows::stride(layout.columns);
                    scratch::with_f32(stride, |floats| {
                        for row in batch {
                            // SAFETY: each row is prepared by one task.
                            #[allow(unsafe_code)]
                            let (bytes, steps, sums) = unsafe {
                                (
                                    to_bytes.range(row * width..(row + 1) * width),
                                    to_steps.range(row * steps..(row + 1) * steps),
                                    to_sums.range(row * sums..(row + 1) * sums),
                                )
                            };
                            dispatch(self.level, self.widen(row, floats));
                            let row = &floats[..layout.columns];
                            if !dispatch(self.level, Round { layout, row, bytes, steps, sums }) {
                                finite.store(false, Ordering::Relaxed);
                            }
                        }
                    });
                });
                if finite.into_inner() {
                    let (steps, sums) = (&*all_steps, &*all_sums);
                    body(&Prepared::Rounded(RoundedRows { layout, bytes, steps, sums }));
                } else {
                    self.float(body);
                }
            });
        });
    }

    /// Runs `body` for ranges of rows, on all cores when there are many.
    fn each_batch(&self, body: impl Fn(Range<usize>) + Sync) {
        let count = self.places.len();
        if count <= BATCH {
            body(0..count);
        } else {
            pool::parallel_for(count.div_ceil(BATCH), |batch| {
                body(batch * BATCH..((batch + 1) * BATCH).min(count));
            });
        }
    }

    fn widen<'b>(&'b self, row: usize, out: &'b mut [f32]) -> Widen<'b, T> {
        let output = self.rows.output(self.places.start + row);
        let input = self.call.routes.map_or(output, |routes| routes[output].row as usize);
        let columns = self.call.columns();
        Widen { row: &self.call.x[input * columns..(input + 1) * columns], norm: self.call.norm, out }
    }
}

/// One row to float32, normed, padded with zeros.
struct Widen<'a, T> {
    row: &'a [T],
    norm: Option<Norm<'a>>,
    out: &'a mut [f32],
}

impl<T: Lane> Body for Widen<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let Self { row, norm, out } = self;
        for at in (0..out.len()).step_by(S::LANES) {
            let x = if at < row.len() { T::get(s, row, at) } else { s.splat(0.0) };
            f32::put(s, out, at, x);
        }
        let Some(norm) = norm else { return };
        let square = sum_over(s, row.len(), |at, sum| {
            let x = f32::get(s, out, at);
            s.fma(x, x, sum)
        });
        let factor = s.splat(1.0 / (square / row.len() as f32 + norm.eps).sqrt());
        for at in (0..row.len()).step_by(S::LANES) {
            let x = s.mul(f32::get(s, out, at), factor);
            let x = match norm.weight {
                Some(weight) => {
                    let weight = each_float!(weight, weight => Lane::get(s, weight, at));
                    s.mul(x, s.add(weight, s.splat(norm.shift)))
                }
                None => x,
            };
            f32::put(s, out, at, x);
        }
    }
}

struct Round<'a> {
    layout: Layout,
    row: &'a [f32],
    bytes: &'a mut [i8],
    steps: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Body for Round<'_> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) -> bool {
        self.layout.round_row(s, self.row, self.bytes, self.steps, self.sums)
    }
}

//! Host form: rows are prepared once (norm, rounding), then tiles of output features are computed and finished by all cores.
//!
//! A task is a run of tiles of one matrix (or gated pair) for one range of rows. What a tile computes depends on its
//! indices only, so results do not depend on the number of threads.

mod call;
mod finish;
mod prepare;
mod strip;

pub use call::{Call, Finish, Linear, Matrix, Norm, Route};

use super::Arithmetic;
use crate::Error;
use crate::host::lanes::{Lane, dispatch};
use crate::host::pool::{self, Disjoint};
use crate::host::{Level, scratch};
use crate::quantized_matmul::host::activations::Layout;
use finish::FinishRow;
use prepare::{Prepared, with_rows};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// Output features that a body computes at a time.
pub(crate) const TILE: usize = 32;

/// Rows that are prepared and multiplied at a time: bounds the scratch, and keeps the rows in the second-level cache.
const ROWS: usize = 512;

/// Products below this many multiplications are not worth waking another thread for.
const ALONE: usize = 1 << 16;

/// Computes a call with the best instructions of the machine.
///
/// # Errors
/// [`Error::Shape`] when operands do not fit each other, [`Error::Unsupported`] for a gated pair of two schemes.
pub fn run<T: Lane>(call: &Call<'_, T>, outputs: &mut [&mut [T]]) -> Result<(), Error> {
    run_at(Level::best(), call, outputs)
}

/// Computes a call with the instructions of `level`, which must be one of [`Level::available`].
///
/// # Errors
/// As [`run`].
pub fn run_at<T: Lane>(level: Level, call: &Call<'_, T>, outputs: &mut [&mut [T]]) -> Result<(), Error> {
    call.check(outputs.iter().map(|output| output.len()))?;
    let layout = |linear: &Linear<'_>| match (linear.matrix, call.arithmetic) {
        (Matrix::Panels(matrix), Arithmetic::Integer) => Some(matrix.layout()),
        _ => None,
    };
    let rows = Rows::new(call);
    let outputs: SmallVec<[Disjoint<'_, T>; 4]> = outputs.iter_mut().map(|out| Disjoint::new(out)).collect();
    if let Finish::Gate(_) = call.finish {
        let layouts = (layout(&call.linears[0]), layout(&call.linears[1]));
        if layouts.0 != layouts.1 {
            let what = "a gated pair of two quantization schemes".to_owned();
            return Err(Error::Unsupported { kernel: "linear", what });
        }
        multiply(level, call, &rows, layouts.0, 0..1, &outputs);
        return Ok(());
    }
    // Matrices that read the same form of the rows share it.
    let mut first = 0;
    while first < call.linears.len() {
        let form = layout(&call.linears[first]);
        let same = call.linears[first..].iter().take_while(|linear| layout(linear) == form).count();
        multiply(level, call, &rows, form, first..first + same, &outputs);
        first += same;
    }
    Ok(())
}

/// The order in which rows are worked on: as they come, or by expert.
struct Rows {
    /// Output rows sorted by expert; empty without routes.
    order: Vec<u32>,
    count: usize,
}

impl Rows {
    fn new<T>(call: &Call<'_, T>) -> Self {
        let mut order = Vec::new();
        if let Some(routes) = call.routes {
            order.extend(0..routes.len() as u32);
            order.sort_by_key(|&row| routes[row as usize].expert);
        }
        Self { order, count: call.output_rows() }
    }

    /// The output row of a place in the order.
    fn output(&self, place: usize) -> usize {
        self.order.get(place).map_or(place, |&row| row as usize)
    }

    /// Cuts places into spans of one expert and at most `most` rows.
    fn spans(&self, places: Range<usize>, most: usize, routes: Option<&[Route]>) -> SmallVec<[Span; 8]> {
        let mut spans: SmallVec<[Span; 8]> = smallvec![];
        for place in places {
            let expert = routes.map_or(0, |routes| routes[self.output(place)].expert as usize);
            match spans.last_mut() {
                Some(span) if span.expert == expert && span.places.len() < most => span.places.end += 1,
                _ => spans.push(Span { expert, places: place..place + 1 }),
            }
        }
        spans
    }
}

#[derive(Clone)]
struct Span {
    expert: usize,
    places: Range<usize>,
}

/// Multiplies all rows with the matrices `linears` (for a gate, `0..1` stands for the pair).
fn multiply<T: Lane>(
    level: Level,
    call: &Call<'_, T>,
    rows: &Rows,
    layout: Option<Layout>,
    linears: Range<usize>,
    outputs: &[Disjoint<'_, T>],
) {
    for start in (0..rows.count).step_by(ROWS) {
        let places = start..rows.count.min(start + ROWS);
        with_rows(level, call, rows, layout, places.clone(), |prepared| {
            spread(level, call, rows, &linears, &places, prepared, outputs);
        });
    }
}

/// Cuts the work on prepared rows into tasks and runs them.
fn spread<T: Lane>(
    level: Level,
    call: &Call<'_, T>,
    rows: &Rows,
    linears: &Range<usize>,
    places: &Range<usize>,
    prepared: &Prepared<'_>,
    outputs: &[Disjoint<'_, T>],
) {
    let width = |linear: usize| call.linears[linear].matrix.rows();
    let tiles = |linear: usize| width(linear).div_ceil(TILE);
    let features: usize = linears.clone().map(tiles).sum();
    let threads = pool::threads();
    // Narrow matrices on wide machines: rows are cut as well.
    let pieces = (2 * threads).div_ceil(features).min(places.len().div_ceil(2 * TILE));
    let spans = rows.spans(places.clone(), places.len().div_ceil(pieces), call.routes);
    // Streamed matrices go in few long runs: at the start of each, memory is waited for.
    let streamed = strip::is_streamed(prepared, places.len());
    let (each, most) = if streamed { (2, 64) } else { (4, 16) };
    let per_task = (features * spans.len()).div_ceil(each * threads).clamp(1, most);
    let tasks_of = |linear: usize| tiles(linear).div_ceil(per_task);
    let tasks_per_span: usize = linears.clone().map(tasks_of).sum();
    let task = |index: usize| {
        let span = &spans[index / tasks_per_span];
        let (mut linear, mut part) = (linears.start, index % tasks_per_span);
        while part >= tasks_of(linear) {
            part -= tasks_of(linear);
            linear += 1;
        }
        let work = Work { level, call, rows, prepared, span, start: places.start };
        let columns = part * per_task * TILE..((part + 1) * per_task * TILE).min(width(linear));
        let step = if strip::is_streamed(prepared, span.places.len()) { per_task * TILE } else { TILE };
        for first in columns.clone().step_by(step) {
            work.strip(linear, first..columns.end.min(first + step), step, &outputs[linear]);
        }
    };
    let count = spans.len() * tasks_per_span;
    if places.len() * features * TILE * call.columns() < ALONE {
        (0..count).for_each(task);
    } else {
        pool::parallel_for(count, task);
    }
}

/// What the tiles of a task share.
struct Work<'a, T> {
    level: Level,
    call: &'a Call<'a, T>,
    rows: &'a Rows,
    prepared: &'a Prepared<'a>,
    span: &'a Span,
    /// Place of the first prepared row.
    start: usize,
}

impl<T: Lane> Work<'_, T> {
    /// Output features `columns` of all rows, computed in buffers with `stride` floats a row.
    fn strip(&self, linear: usize, columns: Range<usize>, stride: usize, output: &Disjoint<'_, T>) {
        let width = self.call.linears[linear].matrix.rows();
        let count = self.span.places.len();
        let gated = matches!(self.call.finish, Finish::Gate(_));
        scratch::with_f32(count * stride * if gated { 2 } else { 1 }, |products| {
            let (first, second) = products.split_at_mut(count * stride);
            self.product(linear, columns.clone(), stride, first);
            if gated {
                self.product(linear + 1, columns.clone(), stride, second);
            }
            for (at, first) in first.chunks_exact_mut(stride).enumerate() {
                let row = self.rows.output(self.span.places.start + at);
                let range = row * width + columns.start..row * width + columns.end;
                let second = gated.then(|| &second[at * stride..][..columns.len()]);
                // SAFETY: each output row and strip belongs to one task.
                #[allow(unsafe_code)]
                let out = unsafe { output.range(range.clone()) };
                let first = &first[..columns.len()];
                dispatch(self.level, FinishRow { finish: self.call.finish, first, second, range, out });
            }
        });
    }

    /// Product and bias of one strip, `[rows, stride]`.
    fn product(&self, linear: usize, columns: Range<usize>, stride: usize, out: &mut [f32]) {
        let Linear { matrix, bias } = self.call.linears[linear];
        let rows = self.span.places.start - self.start..self.span.places.end - self.start;
        let bias = bias.map(|bias| {
            let first = self.span.expert * matrix.rows();
            bias.slice(first + columns.start..first + columns.end)
        });
        let matrix = match matrix {
            Matrix::Plain(matrix) => Matrix::Plain(matrix.matrix(self.span.expert)),
            Matrix::Quantized(matrix) => Matrix::Quantized(matrix.matrix(self.span.expert)),
            Matrix::Panels(matrix) => Matrix::Panels(matrix.matrix(self.span.expert)),
        };
        strip::multiply(self.level, matrix, bias, self.prepared, rows, columns, stride, out);
    }
}

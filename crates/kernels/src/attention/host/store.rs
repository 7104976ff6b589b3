//! How keys and values lie in memory, seen as rows of float32 lanes.
#![allow(unsafe_code)]

use crate::host::Level;
use crate::host::heads::Heads;
use crate::host::lanes::{Body, Lane, Simd, dispatch};
use std::marker::PhantomData;

/// Keys or values `[B, H, S, D]` in some storage.
pub(crate) trait Store: Copy + Sync {
    /// The rows of one head.
    type Rows: Rows;

    /// `[B, H, S, D]`.
    fn shape(&self) -> [usize; 4];

    /// Rows of a batch and head from a position on, all within the shape, and how many of them lie in one piece: at least
    /// one. The rest is found by asking again.
    fn rows(&self, batch: usize, head: usize, position: usize) -> (Self::Rows, usize);
}

/// Rows of `D` values in one piece.
pub(crate) trait Rows: Copy {
    /// Whether reading a row again and again costs little: dense rows are read in place, others widened first.
    const DIRECT: bool;

    /// Values `at .. at + LANES` of a row.
    ///
    /// # Safety
    /// The row exists and holds that many values from `at`, a multiple of `LANES`.
    unsafe fn load<S: Simd>(self, s: S, position: usize, at: usize) -> S::V;

    /// Values `at ..` of a row with fewer than `LANES` left; zeros behind them.
    ///
    /// # Safety
    /// The row exists and `at` is within it.
    unsafe fn load_tail<S: Simd>(self, s: S, position: usize, at: usize) -> S::V;
}

/// Values as they are.
#[derive(Clone, Copy)]
pub(crate) struct Dense<'a, E>(pub(crate) Heads<'a, E>);

/// Where a head's rows start, and how far apart they are.
#[derive(Clone, Copy)]
pub(crate) struct DenseRows<'a, E> {
    start: *const E,
    stride: usize,
    width: usize,
    data: PhantomData<&'a [E]>,
}

impl<'a, E: Lane> Store for Dense<'a, E> {
    type Rows = DenseRows<'a, E>;

    fn shape(&self) -> [usize; 4] {
        self.0.shape()
    }

    #[inline]
    fn rows(&self, batch: usize, head: usize, position: usize) -> (DenseRows<'a, E>, usize) {
        let [_, _, length, width] = self.0.shape();
        let start = self.0.row(batch, head, position).as_ptr();
        let rows = DenseRows { start, stride: self.0.position_stride(), width, data: PhantomData };
        (rows, length - position)
    }
}

impl<'f> DenseRows<'f, f32> {
    /// `n` rows of `width` floats, one after the other.
    pub(super) fn of(rows: &'f [f32], width: usize, n: usize) -> Self {
        assert!(n * width <= rows.len(), "{n} rows of {width}");
        Self { start: rows.as_ptr(), stride: width, width, data: PhantomData }
    }
}

impl<E: Lane> Rows for DenseRows<'_, E> {
    const DIRECT: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, position: usize, at: usize) -> S::V {
        // SAFETY: the caller's promise; `Heads` proved that the shape's rows lie within the data.
        unsafe { E::load(s, self.start.add(position * self.stride + at)) }
    }

    #[inline(always)]
    unsafe fn load_tail<S: Simd>(self, s: S, position: usize, at: usize) -> S::V {
        // SAFETY: as above; the slice ends with the row.
        let row = unsafe { std::slice::from_raw_parts(self.start.add(position * self.stride), self.width) };
        E::get(s, row, at)
    }
}

/// Positions `from .. from + n` of a batch and head as float32 rows, `stride` apart, zeros behind their `width`.
pub(super) fn widen<T: Store>(
    level: Level,
    store: &T,
    (batch, head): (usize, usize),
    (from, n): (usize, usize),
    stride: usize,
    to: &mut [f32],
) {
    let width = store.shape()[3];
    let mut done = 0;
    while done < n {
        let (rows, together) = store.rows(batch, head, from + done);
        let together = together.min(n - done);
        let to = &mut to[done * stride..][..together * stride];
        dispatch(level, Widen { rows, width, stride, to });
        done += together;
    }
}

/// As many rows as there is room for, `stride` apart.
struct Widen<'f, R> {
    rows: R,
    width: usize,
    stride: usize,
    to: &'f mut [f32],
}

impl<R: Rows> Body for Widen<'_, R> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, width, stride, to } = self;
        let whole = width / S::LANES * S::LANES;
        for (i, to) in to.chunks_exact_mut(stride).enumerate() {
            for at in (0..whole).step_by(S::LANES) {
                // SAFETY: the rows lie in one piece, and columns are within the shape.
                f32::put(s, to, at, unsafe { rows.load(s, i, at) });
            }
            if whole < width {
                // SAFETY: as above.
                f32::put(s, to, whole, unsafe { rows.load_tail(s, i, whole) });
            }
            for at in (width.next_multiple_of(S::LANES)..stride).step_by(S::LANES) {
                f32::put(s, to, at, s.splat(0.0));
            }
        }
    }
}

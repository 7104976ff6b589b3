//! How keys and values lie in memory, seen as rows of float32 lanes.
#![allow(unsafe_code)]

use crate::host::heads::Heads;
use crate::host::lanes::{Body, Lane, Simd};
use std::marker::PhantomData;

/// Keys or values `[B, H, S, D]` in some storage.
pub(crate) trait Store: Copy + Sync {
    /// The rows of one head.
    type Rows: Rows;

    /// `[B, H, S, D]`.
    fn shape(&self) -> [usize; 4];

    /// Rows of a batch and head within the shape.
    fn rows(&self, batch: usize, head: usize) -> Self::Rows;
}

/// `S` rows of `D` values.
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
    fn rows(&self, batch: usize, head: usize) -> DenseRows<'a, E> {
        let [_, _, length, width] = self.0.shape();
        let start = if length == 0 { &[] } else { self.0.row(batch, head, 0) };
        DenseRows { start: start.as_ptr(), stride: self.0.position_stride(), width, data: PhantomData }
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

/// Rows `from .. from + n` as float32, `stride` apart, zeros behind their `width`.
pub(super) struct Widen<'f, R> {
    pub(super) rows: R,
    pub(super) from: usize,
    pub(super) n: usize,
    pub(super) width: usize,
    pub(super) stride: usize,
    pub(super) to: &'f mut [f32],
}

impl<R: Rows> Body for Widen<'_, R> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, from, n, width, stride, to } = self;
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
}

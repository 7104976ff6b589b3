//! How keys and values lie in memory, seen as rows of float32 lanes.
#![allow(unsafe_code)]

use crate::host::heads::Heads;
use crate::host::lanes::{Lane, Simd};

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
pub(crate) struct DenseRows<E> {
    start: *const E,
    stride: usize,
    width: usize,
}

impl<E: Lane> Store for Dense<'_, E> {
    type Rows = DenseRows<E>;

    fn shape(&self) -> [usize; 4] {
        self.0.shape()
    }

    #[inline]
    fn rows(&self, batch: usize, head: usize) -> DenseRows<E> {
        let [_, _, length, width] = self.0.shape();
        let start = if length == 0 { &[] } else { self.0.row(batch, head, 0) };
        DenseRows { start: start.as_ptr(), stride: self.0.position_stride(), width }
    }
}

impl<E: Lane> Rows for DenseRows<E> {
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

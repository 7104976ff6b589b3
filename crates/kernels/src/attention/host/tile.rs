//! A small matrix product in registers: `c (+)= a b` on float32 scratch.
#![allow(unsafe_code)]

use crate::host::heads::extent;
use crate::host::lanes::{Body, Simd};

/// Rows of a tile.
const ROWS: usize = 6;

/// One product; strides in floats.
pub(super) struct Product<'f> {
    /// `[rows, depth]`.
    pub(super) a: &'f [f32],
    /// From one row of `a` to the next, and from one step of the depth to the next.
    pub(super) a_strides: (usize, usize),
    /// `[depth, columns]`, rows `b_row` apart.
    pub(super) b: &'f [f32],
    pub(super) b_row: usize,
    /// `[rows, columns]`, rows `c_row` apart.
    pub(super) c: &'f mut [f32],
    pub(super) c_row: usize,
    pub(super) rows: usize,
    /// A multiple of the lanes.
    pub(super) columns: usize,
    pub(super) depth: usize,
    /// Whether `c` counts, or is overwritten.
    pub(super) add: bool,
}

impl Body for Product<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { a, a_strides, b, b_row, c, c_row, rows, columns, depth, add } = self;
        let held = |shape: [usize; 2], strides: [usize; 2], x: &[f32]| {
            extent(&shape, &strides).is_some_and(|n| n <= x.len())
        };
        assert!(columns.is_multiple_of(S::LANES), "columns must be whole vectors");
        assert!(held([rows, depth], [a_strides.0, a_strides.1], a), "a is too short");
        assert!(
            held([depth, columns], [b_row, 1], b) && held([rows, columns], [c_row, 1], c),
            "b or c is too short"
        );
        let c = c.as_mut_ptr();
        let p = &Pointers {
            a: a.as_ptr(),
            a_row: a_strides.0,
            a_step: a_strides.1,
            b: b.as_ptr(),
            b_row,
            c,
            c_row,
            rows,
            depth,
        };
        // SAFETY: just asserted.
        unsafe { if add { multiply::<S, true>(s, p, columns) } else { multiply::<S, false>(s, p, columns) } }
    }
}

struct Pointers {
    a: *const f32,
    a_row: usize,
    a_step: usize,
    b: *const f32,
    b_row: usize,
    c: *mut f32,
    c_row: usize,
    rows: usize,
    depth: usize,
}

/// All columns, a panel at a time.
#[inline(always)]
unsafe fn multiply<S: Simd, const ADD: bool>(s: S, p: &Pointers, columns: usize) {
    let widest = S::TILE / ROWS;
    let mut column = 0;
    while column < columns {
        let left = (columns - column) / S::LANES;
        // SAFETY: the caller's promise, for a part of the columns.
        unsafe {
            column += S::LANES
                * match left.min(widest) {
                    4.. => panel::<S, ADD, 4>(s, p, column),
                    3 => panel::<S, ADD, 3>(s, p, column),
                    2 => panel::<S, ADD, 2>(s, p, column),
                    _ => panel::<S, ADD, 1>(s, p, column),
                };
        }
    }
}

/// All rows of `C` vectors of columns; returns `C`.
#[inline(always)]
unsafe fn panel<S: Simd, const ADD: bool, const C: usize>(s: S, p: &Pointers, column: usize) -> usize {
    let mut row = 0;
    // SAFETY: the caller's promise, for a part of the rows.
    unsafe {
        while row + ROWS <= p.rows {
            tile::<S, ADD, ROWS, C>(s, p, row, column);
            row += ROWS;
        }
        while row + 2 <= p.rows {
            tile::<S, ADD, 2, C>(s, p, row, column);
            row += 2;
        }
        if row < p.rows {
            tile::<S, ADD, 1, C>(s, p, row, column);
        }
    }
    C
}

#[inline(always)]
unsafe fn tile<S: Simd, const ADD: bool, const R: usize, const C: usize>(
    s: S,
    p: &Pointers,
    row: usize,
    column: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let c = p.c.add(row * p.c_row + column);
        let mut sums = [[s.splat(0.0); C]; R];
        if ADD {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = s.load(c.add(r * p.c_row + i * S::LANES));
                }
            }
        }
        let mut a = p.a.add(row * p.a_row);
        let mut b = p.b.add(column);
        for _ in 0..p.depth {
            let mut vectors = [s.splat(0.0); C];
            for (i, vector) in vectors.iter_mut().enumerate() {
                *vector = s.load(b.add(i * S::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let factor = s.splat(*a.add(r * p.a_row));
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = s.fma(factor, vector, *sum);
                }
            }
            a = a.wrapping_add(p.a_step);
            b = b.wrapping_add(p.b_row);
        }
        for (r, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                s.store(c.add(r * p.c_row + i * S::LANES), *sum);
            }
        }
    }
}

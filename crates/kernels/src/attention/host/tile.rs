//! A small matrix product in registers: `c (+)= a b` on float32 scratch.
#![allow(unsafe_code)]

use crate::host::lanes::Simd;

/// Rows of a tile.
const ROWS: usize = 6;

/// Operands of one product; strides in floats.
#[derive(Clone, Copy)]
pub(super) struct Product {
    /// `[rows, depth]` at `a_row` and `a_step`.
    pub(super) a: *const f32,
    pub(super) a_row: usize,
    pub(super) a_step: usize,
    /// `[depth, columns]`, rows `b_row` apart.
    pub(super) b: *const f32,
    pub(super) b_row: usize,
    /// `[rows, columns]`, rows `c_row` apart.
    pub(super) c: *mut f32,
    pub(super) c_row: usize,
    pub(super) rows: usize,
    /// A multiple of the lanes.
    pub(super) columns: usize,
    pub(super) depth: usize,
}

/// Adds the product to `c` when `ADD`, else overwrites it.
///
/// # Safety
/// All three operands hold what their sizes and strides say.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd, const ADD: bool>(s: S, p: &Product) {
    let widest = S::TILE / ROWS;
    let mut column = 0;
    while column < p.columns {
        let left = (p.columns - column) / S::LANES;
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
unsafe fn panel<S: Simd, const ADD: bool, const C: usize>(s: S, p: &Product, column: usize) -> usize {
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
    p: &Product,
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

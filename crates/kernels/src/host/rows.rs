//! Row-wise kernels: operands as rows, and the cut of rows into pieces for the pool.

use super::pool::{Disjoint, parallel_for};
use crate::Error;
use std::ops::Range;

/// Elements of one piece of work: large enough to pay for handing it to another thread (some microseconds).
pub(crate) const PIECE: usize = 16 * 1024;

/// Rows of `width` contiguous values, `stride` elements apart.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a, E> {
    data: &'a [E],
    count: usize,
    width: usize,
    stride: usize,
}

impl<'a, E> Rows<'a, E> {
    /// Takes `count` rows.
    ///
    /// # Errors
    /// [`Error::Shape`] when a row would end past the data.
    pub fn new(
        kernel: &'static str,
        operand: &'static str,
        data: &'a [E],
        count: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self, Error> {
        let needed = super::heads::extent(&[count, width], &[stride, 1]);
        if needed.is_none_or(|needed| needed > data.len()) {
            return Err(Error::Shape {
                kernel,
                operand,
                expected: format!("data for {count} rows of {width} at stride {stride}"),
                got: format!("{} elements", data.len()),
            });
        }
        Ok(Self { data, count, width, stride })
    }

    /// Contiguous data as rows of `width`.
    ///
    /// # Errors
    /// [`Error::Shape`] when the data is not a whole number of rows.
    pub fn contiguous(
        kernel: &'static str,
        operand: &'static str,
        data: &'a [E],
        width: usize,
    ) -> Result<Self, Error> {
        if width == 0 || !data.len().is_multiple_of(width) {
            return Err(Error::Shape {
                kernel,
                operand,
                expected: format!("a whole number of rows of {width}"),
                got: format!("{} elements", data.len()),
            });
        }
        Ok(Self { data, count: data.len() / width, width, stride: width })
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row.
    #[inline]
    pub fn row(&self, index: usize) -> &'a [E] {
        &self.data[index * self.stride..][..self.width]
    }
}

/// [`Error::Shape`] unless `got == expected`.
pub(crate) fn expect(
    kernel: &'static str,
    operand: &'static str,
    unit: &str,
    expected: usize,
    got: usize,
) -> Result<(), Error> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { kernel, operand, expected: format!("{expected} {unit}"), got: format!("{got}") })
}

/// Runs `body(rows, out rows)` over pieces of `count` rows; `out` holds `width` values of each.
pub(crate) fn for_rows<T: Send>(
    count: usize,
    width: usize,
    out: &mut [T],
    body: impl Fn(Range<usize>, &mut [T]) + Sync,
) {
    for_row_pairs(count, width, 0, out, &mut [] as &mut [()], |rows, out, _| body(rows, out));
}

/// As [`for_rows`] with two outputs, of `a_width` and `b_width` values a row.
#[allow(unsafe_code)]
pub(crate) fn for_row_pairs<A: Send, B: Send>(
    count: usize,
    a_width: usize,
    b_width: usize,
    a: &mut [A],
    b: &mut [B],
    body: impl Fn(Range<usize>, &mut [A], &mut [B]) + Sync,
) {
    assert!(a.len() == count * a_width && b.len() == count * b_width, "outputs of {count} rows");
    let piece = PIECE.div_ceil(a_width.max(b_width).max(1));
    let (a, b) = (Disjoint::new(a), Disjoint::new(b));
    parallel_for(count.div_ceil(piece), |index| {
        let rows = index * piece..count.min((index + 1) * piece);
        // SAFETY: each index has rows of its own.
        let (a, b) = unsafe {
            (
                a.range(rows.start * a_width..rows.end * a_width),
                b.range(rows.start * b_width..rows.end * b_width),
            )
        };
        body(rows, a, b);
    });
}

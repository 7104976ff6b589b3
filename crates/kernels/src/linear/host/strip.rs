//! One strip of products: the body that fits the matrix and the form of the rows.

use super::prepare::Prepared;
use super::{Matrix, TILE};
use crate::host::element::{Floats, each_float};
use crate::host::lanes::{Body, Bytes, Lane, dispatch};
use crate::host::{Level, scratch};
use crate::matmul::host::dot as plain;
use crate::quantized_matmul::host::{dequantize, panels};
use std::ops::Range;

/// Rows up to which panels are read as fast as memory gives them: wide strips read it in order.
const FEW: usize = 4;

/// True when a strip of any width can be computed at once; others are as wide as a [`TILE`].
pub(super) fn is_streamed(prepared: &Prepared<'_>, rows: usize) -> bool {
    matches!(prepared, Prepared::Rounded(_)) && rows <= FEW
}

/// `out[m, c] = rows[m] . matrix[columns[c]] + bias[c]`, `out` with `stride` floats a row.
pub(super) fn multiply(
    level: Level,
    matrix: Matrix<'_>,
    bias: Option<Floats<'_>>,
    prepared: &Prepared<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    stride: usize,
    out: &mut [f32],
) {
    debug_assert!(stride == TILE || is_streamed(prepared, rows.len()), "only streamed strips are wide");
    let width = columns.len();
    match (matrix, prepared) {
        (Matrix::Quantized(weight), Prepared::Float(x)) => {
            // Few at a time where they are used once.
            let step = if rows.len() > 4 { TILE } else { 4 };
            scratch::with_f32(step * x.columns, |values| {
                for first in columns.clone().step_by(step) {
                    let values = &mut values[..(columns.end - first).min(step) * x.columns];
                    dequantize::rows(level, weight, first, values);
                    plain::tile(level, values, x, rows.clone(), &mut out[first - columns.start..]);
                }
            });
        }
        (Matrix::Plain(weight), Prepared::Float(x)) => each_float!(weight.values(), values => {
            let values = &values[columns.start * x.columns..columns.end * x.columns];
            plain::tile(level, values, x, rows, out);
        }),
        (Matrix::Panels(weight), Prepared::Rounded(x)) => {
            panels::strip(level, weight, x, rows, columns, stride, out);
        }
        (Matrix::Panels(weight), Prepared::Float(x)) => {
            panels::float_strip(level, weight, x, rows, columns, stride, out);
        }
        (_, Prepared::Rounded(_)) => unreachable!("only panels have a layout"),
    }
    if let Some(bias) = bias {
        dispatch(level, AddBias { bias, width, stride, out });
    }
}

struct AddBias<'a> {
    bias: Floats<'a>,
    width: usize,
    stride: usize,
    out: &'a mut [f32],
}

impl Body for AddBias<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        for row in self.out.chunks_exact_mut(self.stride) {
            for at in (0..self.width).step_by(S::LANES) {
                let bias = each_float!(self.bias, bias => Lane::get(s, bias, at));
                let sum = s.add(f32::get(s, row, at), bias);
                f32::put(s, &mut row[..self.width], at, sum);
            }
        }
    }
}

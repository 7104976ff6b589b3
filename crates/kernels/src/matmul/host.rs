//! `y = x W` with `W [K, N]`: the sum of the rows of `W`, each times a column of `x`.
//!
//! `K` is cut into parts that all cores work on; a part widens each of its rows once and adds it to the sums of every row of
//! `x`. Sums of parts are added in order, so results depend on the number of threads, but not on which did what.

pub(crate) mod dot;

use super::Plain;
use crate::Error;
use crate::host::element::{Element, each_float};
use crate::host::lanes::{Body, Bytes, Lane, dispatch};
use crate::host::pool::{self, parallel_chunks};
use crate::host::{Level, scratch};
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::host::dequantize;

/// Rows of `x` that are worked on together: bounds the sums.
const TOGETHER: usize = 16;

/// A matrix `[K, N]` by rows.
#[derive(Debug, Clone, Copy)]
pub enum Matrix<'a> {
    /// As it is.
    Plain(Plain<'a>),
    /// Affine-quantized along its rows.
    Quantized(Quantized<'a>),
}

impl Matrix<'_> {
    /// `[K, N]`.
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Plain(matrix) => [matrix.rows(), matrix.columns()],
            Self::Quantized(matrix) => [matrix.rows(), matrix.columns()],
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Plain(matrix) => matrix.count(),
            Self::Quantized(matrix) => matrix.count(),
        }
    }

    fn widen(&self, level: Level, row: usize, to: &mut [f32]) {
        match *self {
            Self::Plain(matrix) => each_float!(matrix.values(), values => {
                Element::widen(level, &values[row * to.len()..][..to.len()], to);
            }),
            Self::Quantized(matrix) => dequantize::rows(level, matrix, row, to),
        }
    }
}

/// `out = x W`, `[M, N]` of `x` `[M, K]`.
///
/// # Errors
/// [`Error::Shape`] when operands or result do not fit, or for a stack of matrices.
pub fn matmul<T: Lane>(level: Level, x: &[T], weight: Matrix<'_>, out: &mut [T]) -> Result<(), Error> {
    let [inner, width] = weight.shape();
    let rows = x.len() / inner;
    let expect = |operand, got: usize, expected: usize| {
        if got == expected {
            return Ok(());
        }
        let (expected, got) = (format!("{expected} values"), format!("{got} values"));
        Err(Error::Shape { kernel: "matmul", operand, expected, got })
    };
    expect("weight", weight.count(), 1)?;
    expect("x", x.len(), rows * inner)?;
    expect("out", out.len(), rows * width)?;
    let parts = pool::threads().min(inner);
    for (x, out) in x.chunks(TOGETHER * inner).zip(out.chunks_mut(TOGETHER * width)) {
        scratch::with_f32(parts * out.len(), |sums| {
            let size = out.len();
            parallel_chunks(sums, size, |part, sums| {
                sums.fill(0.0);
                scratch::with_f32(width, |row| {
                    for k in pool::part(inner, parts, 1, part) {
                        weight.widen(level, k, row);
                        for (x, sums) in x.chunks_exact(inner).zip(sums.chunks_exact_mut(width)) {
                            dispatch(level, AddTimes { factor: x[k].to_f32(), row, sums });
                        }
                    }
                });
            });
            let (first, others) = sums.split_at_mut(size);
            others
                .chunks_exact(size)
                .for_each(|other| dispatch(level, AddTimes { factor: 1.0, row: other, sums: first }));
            T::narrow(level, first, out);
        });
    }
    Ok(())
}

/// `sums += factor * row`.
struct AddTimes<'a> {
    factor: f32,
    row: &'a [f32],
    sums: &'a mut [f32],
}

impl Body for AddTimes<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        let factor = s.splat(self.factor);
        for at in (0..self.row.len()).step_by(S::LANES) {
            let sum = s.fma(f32::get(s, self.row, at), factor, f32::get(s, self.sums, at));
            f32::put(s, self.sums, at, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::element::Floats;
    use crate::host::testing::{Random, close, ulp, wide};
    use half::{bf16, f16};
    use strata_contracts::QuantScheme;

    fn check<T: Lane>(level: Level, matrix: Matrix<'_>, values: &[f64], rows: usize) {
        let [inner, width] = matrix.shape();
        let x: Vec<T> = Random::new(5).vec(rows * inner, 2.0);
        let mut out = vec![T::default(); rows * width];
        matmul(level, &x, matrix, &mut out).unwrap();
        let x = wide(&x);
        let term = |i: usize, k: usize| x[i / width * inner + k] * values[k * width + i % width];
        let expected: Vec<f64> = (0..rows * width).map(|i| (0..inner).map(|k| term(i, k)).sum()).collect();
        let what = format!("{level:?} {} {rows}x{inner}x{width}", T::DTYPE);
        // Two units of the result's type, relative to the terms: they may cancel.
        let size = |i: usize| (0..inner).map(|k| term(i, k).abs()).sum::<f64>();
        close(&what, &out, &expected, |i| 2.0 * ulp::<T>() * expected[i].abs() + 4e-7 * size(i));
    }

    #[test]
    fn plain_products_equal_the_reference_at_every_size() {
        for level in Level::available() {
            for (rows, inner, width) in [(1, 1, 1), (1, 37, 45), (3, 64, 33), (16, 5, 17), (35, 19, 70)] {
                let weight: Vec<bf16> = Random::new(1).vec(inner * width, 1.0);
                let plain = Plain::new(Floats::Bf16(&weight), inner, width).unwrap();
                check::<f32>(level, Matrix::Plain(plain), &wide(&weight), rows);
                check::<f16>(level, Matrix::Plain(plain), &wide(&weight), rows);
                let weight: Vec<f32> = Random::new(2).vec(inner * width, 1.0);
                let plain = Plain::new(Floats::F32(&weight), inner, width).unwrap();
                check::<bf16>(level, Matrix::Plain(plain), &wide(&weight), rows);
            }
        }
    }

    #[test]
    fn quantized_products_equal_the_reference_in_every_width() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let (inner, width) = (21, 96);
            let scheme = QuantScheme::affine(bits, 32).unwrap();
            let mut random = Random::new(u64::from(bits));
            let numbers: Vec<u64> = (0..inner * width).map(|_| random.bits() >> (64 - bits)).collect();
            let scales: Vec<f32> = random.vec(inner * 3, 0.1);
            let biases: Vec<f32> = random.vec(inner * 3, 1.0);
            let mut packed = vec![0_u32; inner * scheme.packed_columns(width).unwrap()];
            for (i, &n) in numbers.iter().enumerate() {
                let (row, at) = (i / width, i % width * bits as usize);
                let (word, shift) = (row * width * bits as usize / 32 + at / 32, at % 32);
                packed[word] |= (n << shift) as u32;
                if shift + bits as usize > 32 {
                    packed[word + 1] |= (n >> (32 - shift)) as u32;
                }
            }
            let value = |(i, &n): (usize, &u64)| {
                let group = i / 32;
                f64::from(scales[group]) * n as f64 + f64::from(biases[group])
            };
            let values: Vec<f64> = numbers.iter().enumerate().map(value).collect();
            let (scales, biases) = (Floats::F32(&scales), Floats::F32(&biases));
            let matrix = Quantized::new(&packed, scales, biases, scheme, inner, width).unwrap();
            for level in Level::available() {
                check::<f32>(level, Matrix::Quantized(matrix), &values, 1);
                check::<f16>(level, Matrix::Quantized(matrix), &values, 18);
            }
        }
    }

    #[test]
    fn nan_and_infinity_propagate_and_misfits_are_refused() {
        let weight = [1.0_f32, 0.0, 2.0, 3.0];
        let plain = Matrix::Plain(Plain::new(Floats::F32(&weight), 2, 2).unwrap());
        for level in Level::available() {
            let mut out = [0.0_f32; 4];
            matmul(level, &[f32::NAN, 1.0, f32::INFINITY, 1.0], plain, &mut out).unwrap();
            assert!(out[0].is_nan() && out[1].is_nan() && out[2] == f32::INFINITY && out[3].is_nan());
            assert!(matmul(level, &[1.0_f32; 3], plain, &mut out).is_err());
            assert!(matmul(level, &[1.0_f32; 4], plain, &mut out[..3]).is_err());
        }
    }
}

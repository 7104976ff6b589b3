//! Root-mean-square normalisation on the CPU.

use super::Overflow;
use crate::Error;
use crate::host::Level;
use crate::host::lanes::{Body, Lane, Simd, dispatch, sum_over};
use crate::host::rows::{Rows, expect, for_rows};
use strata_contracts::Dtype;

/// Normalises each row of `x` into `out` (contiguous).
///
/// # Errors
/// [`Error::Shape`] when weight or result do not fit.
pub fn rms_norm<E: Lane>(
    level: Level,
    x: Rows<'_, E>,
    weight: Option<&[E]>,
    eps: f32,
    out: &mut [E],
) -> Result<(), Error> {
    check("rms_norm", x.count(), x.width(), weight, out.len())?;
    for_rows(x.count(), x.width(), out, |rows, out| {
        for (row, out) in rows.zip(out.chunks_exact_mut(x.width())) {
            dispatch(level, Normalize { x: x.row(row), weight, eps, out });
        }
    });
    Ok(())
}

/// Adds each row of `residual` to the normalised row of `x`, into `out` (contiguous).
///
/// # Errors
/// [`Error::Shape`] when operands or result do not fit.
pub fn rms_norm_onto<E: Lane>(
    level: Level,
    residual: Rows<'_, E>,
    x: Rows<'_, E>,
    weight: Option<&[E]>,
    eps: f32,
    overflow: Overflow,
    out: &mut [E],
) -> Result<(), Error> {
    const KERNEL: &str = "rms_norm_onto";
    let (count, width) = (x.count(), x.width());
    check(KERNEL, count, width, weight, out.len())?;
    expect(KERNEL, "residual", "rows", count, residual.count())?;
    expect(KERNEL, "residual", "values in a row", width, residual.width())?;
    let clip = overflow == Overflow::Clip && E::DTYPE == Dtype::Float16;
    let limit = if clip { half::f16::MAX.to_f32() } else { f32::INFINITY };
    for_rows(count, width, out, |rows, out| {
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            let (x, residual) = (x.row(row), residual.row(row));
            dispatch(level, Onto { residual, x, weight, eps, limit, out });
        }
    });
    Ok(())
}

fn check<E>(
    kernel: &'static str,
    count: usize,
    width: usize,
    weight: Option<&[E]>,
    out: usize,
) -> Result<(), Error> {
    if let Some(weight) = weight {
        expect(kernel, "weight", "elements", width, weight.len())?;
    }
    expect(kernel, "out", "elements", count * width, out)
}

/// One row.
pub(crate) struct Normalize<'a, E> {
    pub(crate) x: &'a [E],
    pub(crate) weight: Option<&'a [E]>,
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [E],
}

impl<E: Lane> Body for Normalize<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(inverse_root_mean_square(s, self.x, self.eps));
        for at in (0..self.x.len()).step_by(S::LANES) {
            let mut y = s.mul(E::get(s, self.x, at), factor);
            if let Some(weight) = self.weight {
                y = s.mul(y, E::get(s, weight, at));
            }
            E::put(s, self.out, at, y);
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
pub(crate) fn inverse_root_mean_square<S: Simd, E: Lane>(s: S, x: &[E], eps: f32) -> f32 {
    let squares = sum_over(s, x.len(), |at, sum| {
        let x = E::get(s, x, at);
        s.fma(x, x, sum)
    });
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

/// One row: `clamp(residual + normalised x)`.
struct Onto<'a, E> {
    residual: &'a [E],
    x: &'a [E],
    weight: Option<&'a [E]>,
    eps: f32,
    limit: f32,
    out: &'a mut [E],
}

impl<E: Lane> Body for Onto<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(inverse_root_mean_square(s, self.x, self.eps));
        let (low, high) = (s.splat(-self.limit), s.splat(self.limit));
        for at in (0..self.x.len()).step_by(S::LANES) {
            let mut y = s.mul(E::get(s, self.x, at), factor);
            if let Some(weight) = self.weight {
                y = s.mul(y, E::get(s, weight, at));
            }
            let sum = s.add(E::get(s, self.residual, at), y);
            E::put(s, self.out, at, s.max(low, s.min(high, sum)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, close, ulp, wide};
    use half::{bf16, f16};

    fn expected<E: Lane>(x: &[E], weight: Option<&[E]>, eps: f32) -> Vec<f64> {
        let x = wide(x);
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        let weight = weight.map_or(vec![1.0; x.len()], wide);
        x.iter().zip(weight).map(|(x, w)| x * factor * w).collect()
    }

    fn check_type<E: Lane>() {
        for level in Level::available() {
            for width in (1..70).chain([576, 640, 2049]) {
                let mut random = Random::new(width as u64);
                let count = 3;
                let data: Vec<E> = random.vec(count * (width + 2), 4.0);
                let residual: Vec<E> = random.vec(count * width, 4.0);
                let weight: Vec<E> = random.vec(width, 2.0);
                let x = Rows::new("test", "x", &data, count, width, width + 2).unwrap();
                let residual = Rows::contiguous("test", "residual", &residual, width).unwrap();
                for weight in [None, Some(&weight[..])] {
                    let mut out = vec![E::default(); count * width];
                    rms_norm(level, x, weight, 1e-5, &mut out).unwrap();
                    let what = format!("{level:?} {} {width} {}", E::DTYPE, weight.is_some());
                    for (i, out) in out.chunks(width).enumerate() {
                        let expected = expected(x.row(i), weight, 1e-5);
                        close(&what, out, &expected, |j| 2.0 * ulp::<E>() * expected[j].abs());
                    }
                    rms_norm_onto(level, residual, x, weight, 1e-5, Overflow::Infinite, &mut out).unwrap();
                    for (i, out) in out.chunks(width).enumerate() {
                        let normed = expected(x.row(i), weight, 1e-5);
                        let residual = wide(residual.row(i));
                        let expected: Vec<f64> = normed.iter().zip(&residual).map(|(y, r)| y + r).collect();
                        // Terms may cancel: the error is relative to them, not to their sum.
                        close(&what, out, &expected, |j| {
                            2.0 * ulp::<E>() * (normed[j].abs() + residual[j].abs())
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_every_width_equal_the_reference_in_every_type() {
        check_type::<f32>();
        check_type::<f16>();
        check_type::<bf16>();
    }

    #[test]
    fn many_rows_are_cut_into_pieces() {
        let (count, width) = (301, 192);
        let x: Vec<f32> = Random::new(1).vec(count * width, 1.0);
        let rows = Rows::contiguous("test", "x", &x, width).unwrap();
        let mut out = vec![0.0; x.len()];
        rms_norm(Level::best(), rows, None, 1e-6, &mut out).unwrap();
        for (i, out) in out.chunks(width).enumerate() {
            let expected = expected(rows.row(i), None, 1e-6);
            close("pieces", out, &expected, |j| 2.0 * ulp::<f32>() * expected[j].abs());
        }
    }

    #[test]
    fn b14_a_sum_beyond_float16_is_clipped_and_the_others_are_not() {
        fn sums<E: Lane>(overflow: Overflow) -> Vec<f32> {
            // Three numbers of one size are normed to 1, -1 and 1.
            let x = [2.0, -2.0, 2.0].map(E::from_f32);
            let weight = [10000.0, 10000.0, 1.0].map(E::from_f32);
            let residual = [60000.0, -60000.0, 2.0].map(E::from_f32);
            let rows = |x| Rows::contiguous("test", "x", x, 3).unwrap();
            let mut out = [E::default(); 3];
            for level in Level::available() {
                rms_norm_onto(level, rows(&residual), rows(&x), Some(&weight), 0.0, overflow, &mut out)
                    .unwrap();
            }
            out.iter().map(|x| x.to_f32()).collect()
        }
        assert_eq!(sums::<f16>(Overflow::Clip), [65504.0, -65504.0, 3.0]);
        assert_eq!(sums::<f16>(Overflow::Infinite), [f32::INFINITY, f32::NEG_INFINITY, 3.0]);
        assert_eq!(sums::<f32>(Overflow::Clip), [70000.0, -70000.0, 3.0]);
        assert_eq!(sums::<bf16>(Overflow::Clip), [69632.0, -69632.0, 3.0]);
    }

    #[test]
    fn nan_and_infinity_make_their_row_nan_or_zero_and_leave_others() {
        let x = [1.0, f32::NAN, 2.0, 3.0, f32::INFINITY, 1.0, 1.0, 1.0, 1.0];
        let rows = Rows::contiguous("test", "x", &x, 3).unwrap();
        for level in Level::available() {
            let mut out = [0.0; 9];
            rms_norm(level, rows, None, 0.0, &mut out).unwrap();
            assert!(out[..3].iter().all(|x| x.is_nan()));
            assert!(out[3] == 0.0 && out[4].is_nan() && out[5] == 0.0);
            assert_eq!(out[6..], [1.0; 3]);
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused_by_name() {
        let x = [0.0_f32; 6];
        let rows = Rows::contiguous("test", "x", &x, 3).unwrap();
        let error = rms_norm(Level::best(), rows, Some(&x[..2]), 1e-6, &mut [0.0; 6]).unwrap_err();
        assert_eq!(error.to_string(), "[rms_norm] weight needs 3 elements but has 2");
        let error = rms_norm(Level::best(), rows, None, 1e-6, &mut [0.0; 5]).unwrap_err();
        assert_eq!(error.to_string(), "[rms_norm] out needs 6 elements but has 5");
        assert!(Rows::contiguous("test", "x", &x, 4).is_err());
        assert!(Rows::new("test", "x", &x, 2, 3, 4).is_err());
    }
}

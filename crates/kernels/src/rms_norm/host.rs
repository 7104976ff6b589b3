//! Root-mean-square normalisation on the CPU.

use super::Overflow;
use crate::Error;
use crate::host::Level;
use crate::host::lanes::{Body, Lane, Simd, dispatch, sum_over};
use crate::host::rows::{Rows, expect, for_row_pairs, for_rows};
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

/// Stores `x + residual` in `sum` and its normalised rows in `out`.
///
/// # Errors
/// [`Error::Shape`] when operands or results do not fit.
#[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
pub fn add_rms_norm<E: Lane>(
    level: Level,
    x: Rows<'_, E>,
    residual: Rows<'_, E>,
    weight: Option<&[E]>,
    eps: f32,
    overflow: Overflow,
    sum: &mut [E],
    out: &mut [E],
) -> Result<(), Error> {
    const KERNEL: &str = "add_rms_norm";
    let (count, width) = (x.count(), x.width());
    check(KERNEL, count, width, weight, out.len())?;
    expect(KERNEL, "sum", "elements", count * width, sum.len())?;
    expect(KERNEL, "residual", "rows", count, residual.count())?;
    expect(KERNEL, "residual", "values in a row", width, residual.width())?;
    let clip = overflow == Overflow::Clip && E::DTYPE == Dtype::Float16;
    let limit = if clip { half::f16::MAX.to_f32() } else { f32::INFINITY };
    for_row_pairs(count, width, width, sum, out, |rows, sum, out| {
        let results = sum.chunks_exact_mut(width).zip(out.chunks_exact_mut(width));
        for (row, (sum, out)) in rows.zip(results) {
            dispatch(level, Add { a: x.row(row), b: residual.row(row), limit, sum });
            dispatch(level, Normalize { x: sum, weight, eps, out });
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

/// `sum = clamp(a + b)`.
struct Add<'a, E> {
    a: &'a [E],
    b: &'a [E],
    limit: f32,
    sum: &'a mut [E],
}

impl<E: Lane> Body for Add<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for at in (0..self.a.len()).step_by(S::LANES) {
            let sum = s.add(E::get(s, self.a, at), E::get(s, self.b, at));
            E::put(s, self.sum, at, s.max(s.splat(-self.limit), s.min(s.splat(self.limit), sum)));
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
                    let mut sum = out.clone();
                    add_rms_norm(level, x, residual, weight, 1e-5, Overflow::Infinite, &mut sum, &mut out)
                        .unwrap();
                    for (i, (sum, out)) in sum.chunks(width).zip(out.chunks(width)).enumerate() {
                        for (j, got) in sum.iter().enumerate() {
                            assert_eq!(*got, E::from_f32(x.row(i)[j].to_f32() + residual.row(i)[j].to_f32()));
                        }
                        let expected = expected(sum, weight, 1e-5);
                        close(&what, out, &expected, |j| 2.0 * ulp::<E>() * expected[j].abs());
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
    fn b14_a_residual_beyond_float16_is_clipped_and_the_others_are_not() {
        fn sums<E: Lane>(overflow: Overflow) -> Vec<f32> {
            let x = [E::from_f32(60000.0), E::from_f32(-60000.0), E::from_f32(2.0)];
            let y = [E::from_f32(10000.0), E::from_f32(-10000.0), E::from_f32(1.0)];
            let rows = |x| Rows::contiguous("test", "x", x, 3).unwrap();
            let (mut sum, mut out) = ([E::default(); 3], [E::default(); 3]);
            for level in Level::available() {
                add_rms_norm(level, rows(&x), rows(&y), None, 1e-6, overflow, &mut sum, &mut out).unwrap();
            }
            assert!(overflow == Overflow::Infinite || out.iter().all(|x| x.to_f32().is_finite()));
            sum.iter().map(|x| x.to_f32()).collect()
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

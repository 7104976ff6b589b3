//! Layer normalisation on the CPU.

use crate::Error;
use crate::host::Level;
use crate::host::lanes::{Body, Lane, Simd, dispatch, sum_over};
use crate::host::rows::{Rows, expect, for_rows};

/// Normalises each row of `x` into `out` (contiguous).
///
/// # Errors
/// [`Error::Shape`] when weight, bias or result do not fit.
pub fn layer_norm<E: Lane>(
    level: Level,
    x: Rows<'_, E>,
    weight: Option<&[E]>,
    bias: Option<&[E]>,
    eps: f32,
    out: &mut [E],
) -> Result<(), Error> {
    let width = x.width();
    for (name, operand) in [("weight", weight), ("bias", bias)] {
        expect("layer_norm", name, "elements", width, operand.map_or(width, <[E]>::len))?;
    }
    expect("layer_norm", "out", "elements", x.count() * width, out.len())?;
    for_rows(x.count(), width, out, |rows, out| {
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            dispatch(level, Normalize { x: x.row(row), weight, bias, eps, out });
        }
    });
    Ok(())
}

/// One row.
struct Normalize<'a, E> {
    x: &'a [E],
    weight: Option<&'a [E]>,
    bias: Option<&'a [E]>,
    eps: f32,
    out: &'a mut [E],
}

impl<E: Lane> Body for Normalize<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.x.len();
        let sum = sum_over(s, width, |at, sum| s.add(sum, E::get(s, self.x, at)));
        let mean = sum / width as f32;
        let centre = s.splat(mean);
        // Lanes behind the row's end hold 0 - mean: their squares are taken out again.
        let squares = sum_over(s, width, |at, sum| {
            let x = s.sub(E::get(s, self.x, at), centre);
            let squares = s.fma(x, x, sum);
            if at + S::LANES <= width { squares } else { s.add(sum, inside(s, x, width - at)) }
        });
        let factor = s.splat(1.0 / (squares / width as f32 + self.eps).sqrt());
        for at in (0..width).step_by(S::LANES) {
            let mut y = s.mul(s.sub(E::get(s, self.x, at), centre), factor);
            if let Some(weight) = self.weight {
                y = s.mul(y, E::get(s, weight, at));
            }
            if let Some(bias) = self.bias {
                y = s.add(y, E::get(s, bias, at));
            }
            E::put(s, self.out, at, y);
        }
    }
}

/// Squares of the first `n` lanes; zero in the others.
#[inline(always)]
fn inside<S: Simd>(s: S, x: S::V, n: usize) -> S::V {
    let mut kept = [0.0_f32; crate::host::lanes::MAX_LANES];
    f32::put(s, &mut kept[..n], 0, x);
    let x = f32::get(s, &kept, 0);
    s.mul(x, x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, close, ulp, wide};
    use half::{bf16, f16};

    fn check_type<E: Lane>() {
        for level in Level::available() {
            for width in (1..70).chain([576, 2049]) {
                let mut random = Random::new(width as u64);
                let data: Vec<E> = random.vec(2 * width, 3.0);
                let (weight, bias): (Vec<E>, Vec<E>) = (random.vec(width, 2.0), random.vec(width, 2.0));
                let x = Rows::contiguous("test", "x", &data, width).unwrap();
                for (weight, bias) in
                    [(None, None), (Some(&weight[..]), None), (Some(&weight[..]), Some(&bias[..]))]
                {
                    let mut out = vec![E::default(); 2 * width];
                    layer_norm(level, x, weight, bias, 1e-3, &mut out).unwrap();
                    for (i, out) in out.chunks(width).enumerate() {
                        let row = wide(x.row(i));
                        let mean = row.iter().sum::<f64>() / width as f64;
                        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                        let factor = 1.0 / (variance + f64::from(1e-3f32)).sqrt();
                        let w = weight.map_or(vec![1.0; width], wide);
                        let b = bias.map_or(vec![0.0; width], wide);
                        let expected: Vec<f64> =
                            (0..width).map(|j| (row[j] - mean) * factor * w[j] + b[j]).collect();
                        // Centring and the bias cancel: errors are relative to what was added up.
                        let size = row.iter().map(|x| x.abs()).sum::<f64>() / width as f64;
                        let scale = |j: usize| (row[j].abs() + size) * factor * w[j].abs() + b[j].abs();
                        close(&format!("{level:?} {width}"), out, &expected, |j| 2.0 * ulp::<E>() * scale(j));
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
    fn a_large_common_offset_does_not_cost_precision() {
        let x: Vec<f32> = (0..37).map(|i| 10_000.0 + i as f32).collect();
        let rows = Rows::contiguous("test", "x", &x, 37).unwrap();
        for level in Level::available() {
            let mut out = [0.0; 37];
            layer_norm(level, rows, None, None, 0.0, &mut out).unwrap();
            let deviation = ((37.0_f64 * 37.0 - 1.0) / 12.0).sqrt();
            for (i, &y) in out.iter().enumerate() {
                assert!((f64::from(y) - (i as f64 - 18.0) / deviation).abs() < 1e-6, "{level:?} {i}: {y}");
            }
        }
    }

    #[test]
    fn a_nan_stays_in_its_row() {
        let x = [1.0, f32::NAN, 2.0, 5.0];
        let mut out = [0.0; 4];
        layer_norm(Level::best(), Rows::contiguous("test", "x", &x, 2).unwrap(), None, None, 0.0, &mut out)
            .unwrap();
        assert!(out[0].is_nan() && out[1].is_nan());
        assert_eq!(out[2..], [-1.0, 1.0]);
    }
}

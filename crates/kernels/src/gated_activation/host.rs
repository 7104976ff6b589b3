//! Gated activations on the CPU.

use super::Activation;
use crate::Error;
use crate::host::Level;
use crate::host::lanes::{Body, Lane, Simd, dispatch, math};
use crate::host::pool::parallel_chunks;
use crate::host::rows::{PIECE, Rows, expect, for_rows};

/// `act(gate) * up` into `out` (contiguous).
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit each other.
pub fn gated_activation<E: Lane>(
    level: Level,
    activation: Activation,
    gate: Rows<'_, E>,
    up: Rows<'_, E>,
    out: &mut [E],
) -> Result<(), Error> {
    const KERNEL: &str = "gated_activation";
    let (count, width) = (gate.count(), gate.width());
    expect(KERNEL, "up", "rows", count, up.count())?;
    expect(KERNEL, "up", "values in a row", width, up.width())?;
    expect(KERNEL, "out", "elements", count * width, out.len())?;
    if count == 1 {
        // Decode: the functions cost enough to share a row.
        parallel_chunks(out, PIECE / 4, |index, out| {
            let at = index * (PIECE / 4);
            let (gate, up) = (&gate.row(0)[at..at + out.len()], &up.row(0)[at..at + out.len()]);
            dispatch(level, Gated { activation, gate, up, out });
        });
    } else {
        for_rows(count, width, out, |rows, out| {
            for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                dispatch(level, Gated { activation, gate: gate.row(row), up: up.row(row), out });
            }
        });
    }
    Ok(())
}

struct Gated<'a, E> {
    activation: Activation,
    gate: &'a [E],
    up: &'a [E],
    out: &'a mut [E],
}

impl<E: Lane> Body for Gated<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.activation {
            Activation::Silu => self.each(s, |x| math::silu(s, x)),
            Activation::GeluTanh => self.each(s, |x| math::gelu_tanh(s, x)),
            Activation::GeluErf => self.each(s, |x| math::gelu_erf(s, x)),
        }
    }
}

impl<E: Lane> Gated<'_, E> {
    #[inline(always)]
    fn each<S: Simd>(self, s: S, function: impl Fn(S::V) -> S::V) {
        for at in (0..self.gate.len()).step_by(S::LANES) {
            let y = function(E::get(s, self.gate, at));
            E::put(s, self.out, at, s.mul(y, E::get(s, self.up, at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, close, ulp, wide};
    use half::{bf16, f16};

    fn function(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                x / (1.0 + (-2.0 * u).exp())
            }
            Activation::GeluErf => x * normal(x),
        }
    }

    /// The normal distribution function, by its series (Marsaglia 2004): good to float64 for `|x| < 6`.
    fn normal(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= x * x / (2.0 * f64::from(n) + 1.0);
            sum += term;
        }
        0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
    }

    fn check_type<E: Lane>() {
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
            for level in Level::available() {
                for (count, width) in (1..40).map(|n| (2, n)).chain([(1, 9001), (70, 513)]) {
                    let mut random = Random::new(width as u64);
                    // Both halves of one projection.
                    let data: Vec<E> = random.vec(count * 2 * width, 5.0);
                    let gate = Rows::new("test", "gate", &data, count, width, 2 * width).unwrap();
                    let up = Rows::new("test", "up", &data[width..], count, width, 2 * width).unwrap();
                    let mut out = vec![E::default(); count * width];
                    gated_activation(level, activation, gate, up, &mut out).unwrap();
                    for (row, out) in out.chunks(width).enumerate() {
                        let (g, u) = (wide(gate.row(row)), wide(up.row(row)));
                        let expected: Vec<f64> =
                            g.iter().zip(&u).map(|(&g, u)| function(activation, g) * u).collect();
                        let what = format!("{activation:?} {level:?} {} {count}x{width}", E::DTYPE);
                        // Float32: the functions' own error comes on top of the last rounding (see the lanes' tests).
                        let units = if E::DTYPE == strata_contracts::Dtype::Float32 { 6.0 } else { 2.0 };
                        close(&what, out, &expected, |i| units * ulp::<E>() * expected[i].abs());
                    }
                }
            }
        }
    }

    #[test]
    fn activations_of_every_length_equal_the_reference_in_every_type() {
        check_type::<f32>();
        check_type::<f16>();
        check_type::<bf16>();
    }

    #[test]
    fn nan_and_infinity_propagate() {
        let (gate, up) = ([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0], [1.0, 2.0, 1.0, f32::NAN]);
        let rows = |x| Rows::contiguous("test", "x", x, 4).unwrap();
        for level in Level::available() {
            for activation in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
                let mut out = [0.0; 4];
                gated_activation(level, activation, rows(&gate), rows(&up), &mut out).unwrap();
                // At minus infinity the formula is infinity times zero.
                assert!(out[0].is_nan() && out[1] == f32::INFINITY && out[2].is_nan() && out[3].is_nan());
            }
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused_by_name() {
        let x = [0.0_f32; 12];
        let rows = |width| Rows::contiguous("test", "x", &x, width).unwrap();
        let run = |a, b, out: usize| {
            let out = &mut vec![0.0; out];
            gated_activation(Level::best(), Activation::Silu, rows(a), rows(b), out).unwrap_err().to_string()
        };
        assert_eq!(run(4, 6, 12), "[gated_activation] up needs 3 rows but has 2");
        assert_eq!(run(4, 4, 11), "[gated_activation] out needs 12 elements but has 11");
    }
}

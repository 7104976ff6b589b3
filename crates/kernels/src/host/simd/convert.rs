//! Slices of half-precision floats to float32 and back, one vector at a time.

use super::Level;
use crate::host::lanes::{Body, Bytes, Lane, dispatch};

/// Widens exactly. Both slices have one length.
pub fn widen<E: Lane>(level: Level, from: &[E], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    dispatch(level, Convert(from, to));
}

/// Rounds to nearest, ties to even; NaN stays NaN, overflow becomes infinity. Both slices have one length.
pub fn narrow<E: Lane>(level: Level, from: &[f32], to: &mut [E]) {
    assert_eq!(from.len(), to.len());
    dispatch(level, Convert(from, to));
}

struct Convert<'a, A, B>(&'a [A], &'a mut [B]);

impl<A: Lane, B: Lane> Body for Convert<'_, A, B> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        for at in (0..self.0.len()).step_by(S::LANES) {
            B::put(s, self.1, at, A::get(s, self.0, at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// Values at the borders of the half types, at a length that leaves a tail.
    fn samples() -> Vec<f32> {
        let mut values = vec![
            0.0,
            -0.0,
            1.0,
            -1.5,
            65504.0,
            65520.0,
            1e-8,
            6e-8,
            3.3895314e38,
            3.4e38,
            f32::from_bits(0x3f80_8000),
            f32::from_bits(0x3f81_8000),
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::from_bits(0x7f80_0001),
            f32::MIN_POSITIVE,
        ];
        values.extend((0..50).map(|i| (i as f32 * 0.731).sin() * 10f32.powi(i % 9 - 4)));
        values
    }

    #[test]
    fn slices_convert_as_single_values_do_at_every_level() {
        let values = samples();
        for level in Level::available() {
            let mut halves = vec![f16::ZERO; values.len()];
            narrow(level, &values, &mut halves);
            let mut brains = vec![bf16::ZERO; values.len()];
            narrow(level, &values, &mut brains);
            let (mut wide_h, mut wide_b) = (vec![0.0; values.len()], vec![0.0; values.len()]);
            widen(level, &halves, &mut wide_h);
            widen(level, &brains, &mut wide_b);
            for (i, &value) in values.iter().enumerate() {
                if value.is_nan() {
                    assert!(
                        halves[i].is_nan() && brains[i].is_nan() && wide_h[i].is_nan() && wide_b[i].is_nan()
                    );
                    continue;
                }
                assert_eq!(halves[i], f16::from_f32(value), "{level:?} {value}");
                assert_eq!(brains[i], bf16::from_f32(value), "{level:?} {value}");
                assert_eq!(wide_h[i].to_bits(), halves[i].to_f32().to_bits());
                assert_eq!(wide_b[i].to_bits(), brains[i].to_f32().to_bits());
            }
        }
    }
}

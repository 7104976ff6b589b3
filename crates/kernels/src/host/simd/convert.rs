//! Slices of half-precision floats to float32 and back, one vector at a time.
#![allow(unsafe_code)]

use super::Level;

/// Exact widening to float32.
pub mod widen {
    use super::Level;

    /// Widens float16.
    pub fn f16(level: Level, from: &[half::f16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len());
        match level {
            // SAFETY: the level is only handed out where its features exist.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => unsafe { super::x86::widen_f16(from, to) },
            _ => from.iter().zip(to).for_each(|(x, y)| *y = x.to_f32()),
        }
    }

    /// Widens bfloat16.
    pub fn bf16(_: Level, from: &[half::bf16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len());
        // A shift: the compiler vectorises it at any level.
        from.iter().zip(to).for_each(|(x, y)| *y = f32::from_bits(u32::from(x.to_bits()) << 16));
    }
}

/// Rounding to nearest, ties to even.
pub mod narrow {
    use super::Level;

    /// Rounds to float16.
    pub fn f16(level: Level, from: &[f32], to: &mut [half::f16]) {
        assert_eq!(from.len(), to.len());
        match level {
            // SAFETY: the level is only handed out where its features exist.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => unsafe { super::x86::narrow_f16(from, to) },
            _ => from.iter().zip(to).for_each(|(x, y)| *y = half::f16::from_f32(*x)),
        }
    }

    /// Rounds to bfloat16.
    pub fn bf16(_: Level, from: &[f32], to: &mut [half::bf16]) {
        assert_eq!(from.len(), to.len());
        from.iter().zip(to).for_each(|(x, y)| {
            let bits = x.to_bits();
            // Add half a unit in the last place, less one when the kept part is even: ties go to even.
            let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
            let quiet = (bits >> 16) as u16 | 0x40;
            *y = half::bf16::from_bits(if x.is_nan() { quiet } else { rounded });
        });
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
        _mm256_loadu_ps, _mm256_storeu_ps,
    };

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn widen_f16(from: &[half::f16], to: &mut [f32]) {
        let (from_vectors, from_tail) = from.as_chunks::<8>();
        let (to_vectors, to_tail) = to.as_chunks_mut::<8>();
        for (x, y) in from_vectors.iter().zip(to_vectors) {
            // SAFETY: both chunks hold eight elements.
            unsafe { _mm256_storeu_ps(y.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast()))) };
        }
        from_tail.iter().zip(to_tail).for_each(|(x, y)| *y = x.to_f32());
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn narrow_f16(from: &[f32], to: &mut [half::f16]) {
        let (from_vectors, from_tail) = from.as_chunks::<8>();
        let (to_vectors, to_tail) = to.as_chunks_mut::<8>();
        for (x, y) in from_vectors.iter().zip(to_vectors) {
            // SAFETY: both chunks hold eight elements.
            unsafe {
                let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr()));
                _mm_storeu_si128(y.as_mut_ptr().cast(), half);
            }
        }
        from_tail.iter().zip(to_tail).for_each(|(x, y)| *y = half::f16::from_f32(*x));
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
            narrow::f16(level, &values, &mut halves);
            let mut brains = vec![bf16::ZERO; values.len()];
            narrow::bf16(level, &values, &mut brains);
            let (mut wide_h, mut wide_b) = (vec![0.0; values.len()], vec![0.0; values.len()]);
            widen::f16(level, &halves, &mut wide_h);
            widen::bf16(level, &brains, &mut wide_b);
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

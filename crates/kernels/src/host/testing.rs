//! What the tests of host kernels share: numbers that repeat, and units of precision.

use super::lanes::Lane;
use strata_contracts::Dtype;

/// A small generator (SplitMix64, Steele et al. 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `-1 .. 1`.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `n` values of `-size .. size`, rounded to the type.
    pub(crate) fn vec<E: Lane>(&mut self, n: usize, size: f32) -> Vec<E> {
        (0..n).map(|_| E::from_f32(self.unit() * size)).collect()
    }
}

/// One unit in the last place of 1.
pub(crate) fn ulp<E: Lane>() -> f64 {
    match E::DTYPE {
        Dtype::Float16 => 2f64.powi(-10),
        Dtype::Bfloat16 => 2f64.powi(-7),
        _ => 2f64.powi(-23),
    }
}

/// Asserts `|got - expected| <= bound(i)` for each value, or half the smallest float16; NaN must meet NaN.
pub(crate) fn close<E: Lane>(what: &str, got: &[E], expected: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let floor = if E::DTYPE == Dtype::Float16 { 2f64.powi(-25) } else { 0.0 };
    for (i, (got, &expected)) in got.iter().zip(expected).enumerate() {
        let got = f64::from(got.to_f32());
        let ok = (got.is_nan() && expected.is_nan())
            || got == expected
            || (got - expected).abs() <= bound(i) + floor;
        assert!(ok, "{what}: value {i} is {got}, not {expected} within {}", bound(i));
    }
}

/// The slice in float64.
pub(crate) fn wide<E: Lane>(x: &[E]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.to_f32())).collect()
}

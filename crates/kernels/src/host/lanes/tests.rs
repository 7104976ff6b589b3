//! Lanes against plain Rust arithmetic and float64 functions, at every level of the machine.

use super::*;

/// A lane-wise function as a body: writes `f(s, x)` for each `x`.
macro_rules! map {
    ($level:expr, $x:expr, |$s:ident, $v:ident| $f:expr) => {{
        struct Map<'a>(&'a [f32], &'a mut [f32]);
        impl Body for Map<'_> {
            type Out = ();
            #[inline(always)]
            fn run<S: Simd>(self, $s: S) {
                let mut at = 0;
                while at < self.0.len() {
                    let $v = f32::get($s, self.0, at);
                    f32::put($s, self.1, at, $f);
                    at += S::LANES;
                }
            }
        }
        let mut out = vec![0.0; $x.len()];
        dispatch($level, Map(&$x, &mut out));
        out
    }};
}

/// Distance in units in the last place of the expected value (at least the smallest subnormal's).
fn ulps(got: f32, expected: f64) -> f64 {
    if f64::from(got) == expected || (got.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    let nearest = expected as f32;
    if nearest.is_infinite() || got.is_infinite() {
        return if nearest == got { 0.0 } else { f64::INFINITY };
    }
    let exponent = expected.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() as i32;
    (f64::from(got) - expected).abs() / 2f64.powi(exponent - 23)
}

fn grid(low: f32, high: f32, steps: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..=steps).map(|i| low + (high - low) * (i as f32 / steps as f32)).collect();
    x.extend([0.0, -0.0, f32::NAN, 1e-30, -1e-30, 1e-42]);
    x
}

fn check(name: &str, level: Level, x: &[f32], got: &[f32], expected: impl Fn(f64) -> f64, bound: f64) {
    let mut worst = (0.0, 0.0);
    for (&x, &got) in x.iter().zip(got) {
        let error = ulps(got, expected(f64::from(x)));
        if error > worst.0 || error.is_nan() {
            worst = (error, x);
        }
    }
    assert!(worst.0 <= bound, "{name} {level:?}: {} ulp at {}", worst.0, worst.1);
}

#[test]
fn exponential_is_within_a_unit_and_saturates() {
    for level in Level::available() {
        let x = grid(-87.0, 88.7, 200_003);
        check("exp", level, &x, &map!(level, x, |s, v| math::exp(s, v)), f64::exp, 1.2);
        // Subnormal results lose their relative accuracy, not their absolute one.
        let x = grid(-110.0, -87.0, 1001);
        check("exp", level, &x, &map!(level, x, |s, v| math::exp(s, v)), f64::exp, 1.2);
        let x = [f32::INFINITY, f32::NEG_INFINITY, 100.0, -200.0];
        assert_eq!(map!(level, x, |s, v| math::exp(s, v)), [f32::INFINITY, 0.0, f32::INFINITY, 0.0]);
    }
}

#[test]
fn activations_are_within_a_few_units_on_both_tails() {
    let gelu = |x: f64| x * 0.5 * erfc(-x / std::f64::consts::SQRT_2);
    let gelu_tanh = |x: f64| {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        x / (1.0 + (-2.0 * u).exp())
    };
    for level in Level::available() {
        let x = grid(-85.0, 90.0, 100_003);
        check(
            "sigmoid",
            level,
            &x,
            &map!(level, x, |s, v| math::sigmoid(s, v)),
            |x| 1.0 / (1.0 + (-x).exp()),
            3.0,
        );
        check("silu", level, &x, &map!(level, x, |s, v| math::silu(s, v)), |x| x / (1.0 + (-x).exp()), 3.0);
        let x = grid(-12.0, 12.0, 100_003);
        check("tanh", level, &x, &map!(level, x, |s, v| math::tanh(s, v)), f64::tanh, 2.0);
        check("gelu_erf", level, &x, &map!(level, x, |s, v| math::gelu_erf(s, v)), gelu, 6.0);
        // Below about -9.9 the exponential is subnormal.
        let x = grid(-9.5, 12.0, 100_003);
        check("gelu_tanh", level, &x, &map!(level, x, |s, v| math::gelu_tanh(s, v)), gelu_tanh, 6.0);
        for x in [f32::INFINITY, 1e30, 200.0] {
            let x = [x];
            assert_eq!(map!(level, x, |s, v| math::gelu_erf(s, v)), x);
            assert_eq!(map!(level, x, |s, v| math::gelu_tanh(s, v)), x);
            assert_eq!(map!(level, x, |s, v| math::silu(s, v)), x);
        }
    }
}

#[test]
fn sine_and_cosine_hold_up_to_their_limit() {
    for level in Level::available() {
        for (low, high) in [(-10.0, 10.0), (-math::SIN_COS_LIMIT, math::SIN_COS_LIMIT), (0.0, 5000.0)] {
            let x = grid(low, high, 100_003);
            let sin = map!(level, x, |s, v| math::sin_cos(s, v).0);
            let cos = map!(level, x, |s, v| math::sin_cos(s, v).1);
            for (i, &x) in x.iter().enumerate().filter(|(_, x)| !x.is_nan()) {
                let (a, b) = f64::from(x).sin_cos();
                let error = (f64::from(sin[i]) - a).abs().max((f64::from(cos[i]) - b).abs());
                assert!(error < 1.2e-7, "{level:?} sin_cos({x}): {error}");
            }
        }
        let x = [f32::NAN, f32::INFINITY];
        assert!(map!(level, x, |s, v| math::sin_cos(s, v).0).iter().all(|x| x.is_nan()));
    }
}

#[test]
fn tails_load_zeros_and_drop_what_does_not_fit() {
    struct Tail<'a, E>(&'a [E], &'a mut [E]);
    impl<E: Lane> Body for Tail<'_, E> {
        type Out = f32;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> f32 {
            let mut at = 0;
            let mut total = 0.0;
            while at < self.0.len() {
                let x = E::get(s, self.0, at);
                total += s.sum(x);
                E::put(s, self.1, at, s.add(x, x));
                at += S::LANES;
            }
            total
        }
    }
    fn case<E: Lane>(level: Level, length: usize) {
        let x: Vec<E> = (0..length).map(|i| E::from_f32(i as f32 - 3.0)).collect();
        let mut y = vec![E::default(); length];
        let total = dispatch(level, Tail(&x, &mut y));
        assert_eq!(total, x.iter().map(|x| x.to_f32()).sum::<f32>(), "{level:?} {length}");
        assert!(y.iter().zip(&x).all(|(y, x)| y.to_f32() == 2.0 * x.to_f32()), "{level:?} {length}");
    }
    for level in Level::available() {
        for length in 0..40 {
            case::<f32>(level, length);
            case::<f16>(level, length);
            case::<bf16>(level, length);
        }
    }
}

#[test]
fn half_types_round_as_their_scalars_do() {
    struct Round<'a, E>(&'a [f32], &'a mut [E]);
    impl<E: Lane> Body for Round<'_, E> {
        type Out = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let mut at = 0;
            while at < self.0.len() {
                E::put(s, self.1, at, f32::get(s, self.0, at));
                at += S::LANES;
            }
        }
    }
    let mut x =
        vec![65504.0, 65519.9, 65520.0, 1e-8, 3e-8, 6e-8, 3.3895e38, 3.4e38, f32::INFINITY, -0.0, f32::NAN];
    x.push(f32::from_bits(0x7f80_0001));
    x.extend((0..4000).map(|i| f32::from_bits(0x3f80_0000 + i * 0x0801)));
    for level in Level::available() {
        let (mut a, mut b) = (vec![f16::ZERO; x.len()], vec![bf16::ZERO; x.len()]);
        dispatch(level, Round(&x, &mut a));
        dispatch(level, Round(&x, &mut b));
        for (i, &x) in x.iter().enumerate() {
            if x.is_nan() {
                assert!(a[i].is_nan() && b[i].is_nan(), "{level:?}");
            } else {
                assert_eq!((a[i], b[i]), (f16::from_f32(x), bf16::from_f32(x)), "{level:?} {x}");
            }
        }
    }
}

#[test]
fn sums_and_unpacked_values_land_in_their_lanes() {
    struct Sums<'a>(&'a [f32], &'a mut [f32]);
    impl Body for Sums<'_> {
        type Out = usize;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> usize {
            let mut rows = [s.splat(0.0); MAX_LANES];
            for (i, row) in rows.iter_mut().enumerate().take(S::LANES) {
                *row = f32::get(s, self.0, i * S::LANES);
            }
            f32::put(s, self.1, 0, s.sums(&rows));
            S::LANES
        }
    }
    struct Unpack<'a, const BITS: u32>(&'a [u32], &'a mut [f32]);
    impl<const BITS: u32> Body for Unpack<'_, BITS> {
        type Out = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for at in (0..64).step_by(S::LANES) {
                // SAFETY: the row holds 64 values.
                f32::put(s, self.1, at, unsafe { s.unpack::<BITS>(self.0.as_ptr(), at) });
            }
        }
    }
    fn unpack<const BITS: u32>(level: Level) {
        let words: Vec<u32> = (0..2 * BITS).map(|i| (i + 1).wrapping_mul(0x9e37_79b9)).collect();
        let mut out = [0.0; 64];
        dispatch(level, Unpack::<BITS>(&words, &mut out));
        for (i, &got) in out.iter().enumerate() {
            let bit = i * BITS as usize;
            let expected = words[bit / 32] >> (bit % 32) & ((1 << BITS) - 1);
            assert_eq!(got, expected as f32, "{level:?} {BITS} bits, value {i}");
        }
    }
    struct Choose<'a>([u32; 4], &'a mut [f32]);
    impl Body for Choose<'_> {
        type Out = usize;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> usize {
            let table = std::array::from_fn(|i| 10.0 * i as f32);
            f32::put(s, self.1, 0, s.choose(&table, self.0));
            S::LANES
        }
    }
    let x: Vec<f32> = (0..256).map(|i| (i * i % 101) as f32).collect();
    for level in Level::available() {
        let mut out = [0.0; MAX_LANES];
        let bits = [0x9e37_79b9_u32, 0xdead_beef, 0x0f1e_2d3c, 0x1234_5678];
        let lanes = dispatch(level, Choose(bits, &mut out));
        for (i, got) in out.iter().enumerate().take(lanes) {
            let number: u32 = (0..4).map(|j| (bits[j] >> i & 1) << j).sum();
            assert_eq!(*got, 10.0 * number as f32, "{level:?} lane {i}");
        }
        let lanes = dispatch(level, Sums(&x, &mut out));
        for i in 0..lanes {
            assert_eq!(out[i], x[i * lanes..(i + 1) * lanes].iter().sum::<f32>(), "{level:?} {i}");
        }
        unpack::<2>(level);
        unpack::<4>(level);
        unpack::<8>(level);
    }
}

/// Complementary error function in float64: a series near zero, a continued fraction elsewhere.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    let scale = (-x * x).exp() / std::f64::consts::PI.sqrt();
    if x < 2.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= 2.0 * x * x / (2.0 * f64::from(n) + 1.0);
            sum += term;
        }
        return 1.0 - 2.0 * scale * sum;
    }
    let mut fraction = 0.0;
    for n in (1..=200).rev() {
        fraction = f64::from(n) / 2.0 / (x + fraction);
    }
    scale / (x + fraction)
}

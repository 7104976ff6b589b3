//! Elementary functions on lanes, within a few units in the last place of float32 (bounds in `tests.rs`); NaN gives NaN.
//!
//! Polynomial coefficients of exp, tanh, sin and cos are those of Cephes (S. L. Moshier, `single/*.c`); that of the scaled
//! complementary error function was interpolated at Chebyshev nodes for this file.

use super::Simd;

/// `c[0] * x^(n-1) + ... + c[n-1]`.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::V, c: [f32; N]) -> S::V {
    let mut y = s.splat(c[0]);
    for &c in &c[1..] {
        y = s.fma(y, x, s.splat(c));
    }
    y
}

/// `e^x`; infinite above 88.73, gradually 0 below -87.3.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts so that the product with n is exact.
    let x = s.max(s.splat(-105.0), s.min(s.splat(89.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fnma(n, s.splat(-2.121_944_4e-4), s.fnma(n, s.splat(0.693_359_4), x));
    let p = polynomial(s, r, [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5]);
    s.scale(s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0)), n)
}

/// `1 / (1 + e^-x)`, with full relative accuracy on both sides.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    let e = exp(s, s.sub(zero, s.abs(x)));
    let numerator = s.select(s.lt(x, zero), e, s.splat(1.0));
    s.div(numerator, s.add(s.splat(1.0), e))
}

/// Hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.abs(x);
    let square = s.mul(x, x);
    let p =
        polynomial(s, square, [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 0.133_314_42, -0.333_332_8]);
    let near = s.fma(s.mul(a, square), p, a);
    let e = exp(s, s.add(a, a));
    let far = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    s.copysign(s.select(s.lt(a, s.splat(0.625)), near, far), x)
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(x, sigmoid(s, x))
}

/// `x * Phi(x)` by the tanh approximation: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    // (1 + tanh(u)) / 2 = sigmoid(w) with w = 2 u = x (a + b x^2). The exponential turns an absolute error of w into a
    // relative one, so w carries its rounding errors along; beyond 15 sigmoid is 0 or 1 in float32.
    let bounded = s.max(s.splat(-15.0), s.min(s.splat(15.0), x));
    let (a, b) = (s.splat(1.595_769_2), s.splat(0.071_354_814));
    let (a_error, b_error) = (s.splat(-4.534_068e-8), s.splat(2.398_832_4e-9));
    let square = s.mul(bounded, bounded);
    let square_error = s.fma(bounded, bounded, s.sub(s.splat(0.0), square));
    // Sum and its error whichever term is larger (Knuth's two-sum); they cross at |x| = 4.7.
    let product = s.mul(b, square);
    let product_error = s.fma(b, square, s.sub(s.splat(0.0), product));
    let inner = s.add(product, a);
    let added = s.sub(inner, product);
    let sum_error = s.add(s.sub(product, s.sub(inner, added)), s.sub(a, added));
    let inner_error = s.add(sum_error, product_error);
    let inner_error = s.fma(b_error, square, s.fma(b, square_error, s.add(inner_error, a_error)));
    let w = s.mul(bounded, inner);
    let error = s.fma(bounded, inner_error, s.fma(bounded, inner, s.sub(s.splat(0.0), w)));
    let y = sigmoid(s, w);
    // Derivative of sigmoid: y (1 - y).
    s.mul(x, s.fma(y, s.mul(error, s.sub(s.splat(1.0), y)), y))
}

/// `x * Phi(x)` with the normal distribution function: `x / 2 * (1 + erf(x / sqrt 2))`.
#[inline(always)]
pub(crate) fn gelu_erf<S: Simd>(s: S, x: S::V) -> S::V {
    // With z = |x| / sqrt 2: Phi(-|x|) = e^(-z^2) * erfcx(z) / 2 and erfcx(z) = P((z - 2) / (z + 2)) / (1 + 2 z).
    // Beyond 15 the tail is 0 in float32; the bound keeps z finite.
    let one = s.splat(1.0);
    let a = s.min(s.splat(15.0), s.abs(x));
    let z = s.mul(a, s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let t = s.div(s.sub(z, s.splat(2.0)), s.add(z, s.splat(2.0)));
    let p = polynomial(
        s,
        t,
        [
            -4.158_970_8e-4,
            -1.246_796_9e-3,
            1.331_685_5e-3,
            8.652_288e-3,
            -8.066_704e-3,
            -5.421_196_3e-2,
            0.164_056_3,
            -0.166_030_53,
            -9.276_402e-2,
            1.276_978_4,
        ],
    );
    let scaled = s.div(p, s.add(one, s.add(z, z)));
    // e^(-a^2 / 2) with the rounding error of a^2 put back.
    let square = s.mul(a, a);
    let error = s.fma(a, a, s.sub(s.splat(0.0), square));
    let half = s.splat(0.5);
    let gauss = s.mul(exp(s, s.mul(s.splat(-0.5), square)), s.fnma(half, error, one));
    let tail = s.mul(half, s.mul(gauss, scaled));
    let phi = s.select(s.lt(x, s.splat(0.0)), tail, s.sub(one, tail));
    s.mul(x, phi)
}

/// Sine and cosine; for `|x|` up to [`SIN_COS_LIMIT`] within two units in the last place of 1.
#[inline(always)]
pub(crate) fn sin_cos<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    // x = n pi/2 + r. pi/2 in three parts; the first product cancels exactly (both are multiples of 2^-23 and the
    // difference is below 1), the others are below its rounding.
    let n = s.round(s.mul(x, s.splat(std::f32::consts::FRAC_2_PI)));
    let r = s.fnma(n, s.splat(1.570_796_4), x);
    let r = s.fnma(n, s.splat(-4.371_139e-8), r);
    let r = s.fnma(n, s.splat(-1.715_124_5e-15), r);
    let z = s.mul(r, r);
    let sin = polynomial(s, z, [-1.951_529_6e-4, 8.332_161e-3, -0.166_666_55]);
    let sin = s.fma(s.mul(sin, z), r, r);
    let cos = polynomial(s, z, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
    let cos = s.fma(s.mul(cos, z), z, s.fnma(s.splat(0.5), z, s.splat(1.0)));
    // Quadrant n mod 4, as -2 ..= 2: odd ones swap sine and cosine; then the signs.
    let q = s.fnma(s.splat(4.0), s.round(s.mul(n, s.splat(0.25))), n);
    let size = s.abs(q);
    let odd = s.lt(s.abs(s.sub(size, s.splat(1.0))), s.splat(0.5));
    let (a, b) = (s.select(odd, cos, sin), s.select(odd, sin, cos));
    // Sine is negated for q = -1, +-2; cosine for q = 1, +-2.
    let opposite = s.lt(s.splat(1.5), size);
    let flip_sin =
        s.select(opposite, s.splat(-1.0), s.select(s.lt(q, s.splat(-0.5)), s.splat(-1.0), s.splat(1.0)));
    let flip_cos =
        s.select(opposite, s.splat(-1.0), s.select(s.lt(s.splat(0.5), q), s.splat(-1.0), s.splat(1.0)));
    (s.mul(a, flip_sin), s.mul(b, flip_cos))
}

/// Largest argument of [`sin_cos`]: beyond it the quadrant is no longer found exactly.
pub(crate) const SIN_COS_LIMIT: f32 = 200_000.0;

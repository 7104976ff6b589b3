//! Elementwise operations, broadcasting, promotion of types.

use crate::support::{array, bools, close, floats, i32s, numbers};
use half::{bf16, f16};
use strata_tensor::{Array, Dtype, Result, ops};

/// Error function by its series, good to 1e-12 for |x| ≤ 2 (Abramowitz and Stegun 7.1.5).
fn erf(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn operations_of_one_array() {
    type Unary = (fn(&Array) -> Result<Array>, fn(f64) -> f64);
    let any: [Unary; 17] = [
        (Array::abs, f64::abs),
        (Array::ceil, f64::ceil),
        (Array::cos, f64::cos),
        (Array::erf, erf),
        (Array::exp, f64::exp),
        (Array::expm1, f64::exp_m1),
        (Array::floor, f64::floor),
        (Array::negative, |x| -x),
        (Array::reciprocal, |x| 1.0 / x),
        (Array::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Array::sign, f64::signum),
        (Array::sin, f64::sin),
        (Array::square, |x| x * x),
        (Array::tanh, f64::tanh),
        (|x| x.round(1), |x| (x * 10.0).round_ties_even() / 10.0),
        (|x| x.add_number(0.25), |x| x + 0.25),
        (|x| x.multiply_number(-3.0), |x| x * -3.0),
    ];
    let positive: [Unary; 4] = [
        (Array::log, f64::ln),
        (Array::log1p, f64::ln_1p),
        (Array::sqrt, f64::sqrt),
        (Array::rsqrt, |x| 1.0 / x.sqrt()),
    ];
    let x = array([5, 7, 3]);
    let check = |x: &Array, operations: &[Unary]| {
        for (mlx, rust) in operations {
            let expected: Vec<f64> = floats(x).iter().map(|&x| rust(f64::from(x))).collect();
            close(&mlx(x).unwrap(), [5, 7, 3], &expected, 2e-6);
        }
    };
    check(&x, &any);
    check(&x.abs().unwrap(), &positive);
}

#[test]
fn operations_of_two_arrays_broadcast() {
    type Binary = (fn(&Array, &Array) -> Result<Array>, fn(f64, f64) -> f64);
    let all: [Binary; 10] = [
        (Array::add, |a, b| a + b),
        (Array::subtract, |a, b| a - b),
        (Array::multiply, |a, b| a * b),
        (Array::divide, |a, b| a / b),
        (Array::floor_divide, |a, b| (a / b).floor()),
        (Array::remainder, |a, b| a - b * (a / b).floor()),
        (Array::maximum, f64::max),
        (Array::minimum, f64::min),
        (Array::logaddexp, |a, b| (a.exp() + b.exp()).ln()),
        (|a, b| a.abs()?.power(b), |a, b| a.abs().powf(b)),
    ];
    let (a, b) = (array([3, 1, 5]), array([4, 1]).add_number(0.1).unwrap());
    let (x, y) = (floats(&a), floats(&b));
    for (mlx, rust) in all {
        let mut expected = Vec::new();
        for i in 0..3 {
            for b in &y {
                expected.extend((0..5).map(|k| rust(f64::from(x[i * 5 + k]), f64::from(*b))));
            }
        }
        close(&mlx(&a, &b).unwrap(), [3, 4, 5], &expected, 4e-6);
    }
}

#[test]
fn comparisons_and_logic_give_bools() {
    let (a, b) = (i32s(&[1, 2, 3, 0], [4]), i32s(&[2, 2, 1, 0], [4]));
    let of = |r: Result<Array>| bools(&r.unwrap());
    assert_eq!(of(a.equal(&b)), [false, true, false, true]);
    assert_eq!(of(a.not_equal(&b)), [true, false, true, false]);
    assert_eq!(of(a.less(&b)), [true, false, false, false]);
    assert_eq!(of(a.less_equal(&b)), [true, true, false, true]);
    assert_eq!(of(a.greater(&b)), [false, false, true, false]);
    assert_eq!(of(a.greater_equal(&b)), [false, true, true, true]);
    let zero = i32s(&[0, 1, 0, 0], [4]);
    assert_eq!(of(a.logical_and(&zero)), [false, true, false, false]);
    assert_eq!(of(a.logical_or(&zero)), [true, true, true, false]);
    assert_eq!(of(a.logical_not()), [false, false, false, true]);
    let odd = Array::from_slice(&[1.0, f32::NAN, f32::INFINITY, -2.0], [4]).unwrap();
    assert_eq!(of(odd.isnan()), [false, true, false, false]);
    assert_eq!(of(odd.isfinite()), [true, false, false, true]);
}

#[test]
fn bits_of_integers() {
    let (a, b) = (i32s(&[12, 10, -1], [3]), i32s(&[10, 3, 4], [3]));
    let of = |r: Result<Array>| r.unwrap().to_vec::<i32>().unwrap();
    assert_eq!(of(a.bitwise_and(&b)), [8, 2, 4]);
    assert_eq!(of(a.bitwise_or(&b)), [14, 11, -1]);
    assert_eq!(of(a.bitwise_xor(&b)), [6, 9, -5]);
    assert_eq!(of(a.left_shift(&i32s(&[1, 2, 3], [3]))), [24, 40, -8]);
    assert_eq!(of(a.right_shift(&i32s(&[1, 2, 3], [3]))), [6, 2, -1]);
}

#[test]
fn where_and_clip_choose() {
    let x = array([3, 5]);
    let positive = x.greater(&Array::from_f32(0.0)).unwrap();
    let chosen = ops::where_(&positive, &x, &Array::from_f32(9.0)).unwrap();
    let expected: Vec<f64> = numbers(15).iter().map(|&x| if x > 0.0 { f64::from(x) } else { 9.0 }).collect();
    close(&chosen, [3, 5], &expected, 0.0);
    let (low, high) = (Array::from_f32(-0.5), Array::from_f32(0.75));
    let clipped: Vec<f64> = numbers(15).iter().map(|&x| f64::from(x).clamp(-0.5, 0.75)).collect();
    close(&x.clip(Some(&low), Some(&high)).unwrap(), [3, 5], &clipped, 0.0);
    let one_side: Vec<f64> = numbers(15).iter().map(|&x| f64::from(x).min(0.75)).collect();
    close(&x.clip(None, Some(&high)).unwrap(), [3, 5], &one_side, 0.0);
}

#[test]
fn types_promote_as_mlx_does() {
    use Dtype::{Bfloat16, Bool, Float16, Float32, Int32, Int64, Uint8, Uint32};
    for (a, b, expected) in [
        (Float16, Float32, Float32),
        (Float16, Bfloat16, Float32),
        (Bfloat16, Bfloat16, Bfloat16),
        (Int32, Float16, Float16),
        (Uint8, Int32, Int32),
        (Uint32, Int32, Int64),
        (Bool, Uint8, Uint8),
    ] {
        let sum = ops::ones([2], a).unwrap().add(&ops::ones([2], b).unwrap()).unwrap();
        assert_eq!(sum.dtype(), expected, "{a} + {b}");
        assert_eq!(floats(&sum.astype(Float32).unwrap())[0], 2.0);
    }
    let half = ops::ones([2], Float16).unwrap();
    assert_eq!(half.multiply_number(0.1).unwrap().dtype(), Float16);
    assert_eq!(ops::ones([2], Int32).unwrap().divide(&Array::from_i32(4)).unwrap().dtype(), Float32);
}

#[test]
fn conversions_round_to_nearest_even() {
    let x = numbers(77);
    let a = Array::from_slice(&x, [7, 11]).unwrap();
    let halves: Vec<f16> = a.astype(Dtype::Float16).unwrap().to_vec().unwrap();
    assert_eq!(halves, x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>());
    let brains: Vec<bf16> = a.astype(Dtype::Bfloat16).unwrap().to_vec().unwrap();
    assert_eq!(brains, x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>());
    let whole: Vec<i32> = a.astype(Dtype::Int32).unwrap().to_vec().unwrap();
    assert_eq!(whole, x.iter().map(|&x| x as i32).collect::<Vec<_>>());
}

#[test]
fn a_view_reads_the_same_bytes_as_another_type() {
    let x = array([3, 4]);
    let bits: Vec<u32> = x.view(Dtype::Uint32).unwrap().to_vec().unwrap();
    assert_eq!(bits, numbers(12).iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    assert_eq!(x.view(Dtype::Uint8).unwrap().shape(), [3, 16]);
    assert!(ops::zeros([3, 3], Dtype::Uint8).unwrap().view(Dtype::Float32).is_err());
}

//! The node in MLX's graph against the composition of MLX's operations, in float32 so that both round alike.

use crate::linear::{Activation, Arithmetic, Finish, Input, Linear, Norm, Packed, Weight, linear, reference};
use strata_contracts::{Dtype, QuantScheme};
use strata_tensor::ops::{self, Quantized};
use strata_tensor::{Array, Shape};

/// Values in -1 .. 1 that repeat late.
fn values(shape: impl Into<Shape>, seed: f64) -> Array {
    let shape = shape.into();
    let count = shape.elements().unwrap();
    let values: Vec<f32> =
        (0..count).map(|i| ((i as f64 * 0.37 + seed).sin() * 917.0).fract() as f32).collect();
    Array::from_slice(&values, shape).unwrap()
}

fn quantized(shape: impl Into<Shape>, seed: f64, bits: u32, group: u32) -> Quantized {
    ops::quantize(&values(shape, seed), QuantScheme::affine(bits, group).unwrap()).unwrap()
}

fn map<'a>(weight: &'a Quantized, bias: Option<&'a Array>) -> Linear<'a> {
    Linear { weight: Weight::Quantized(weight), bias }
}

/// Compares outputs within a part of the largest value of each.
fn check(
    input: Input<'_>,
    linears: &[Linear<'_>],
    finish: Finish<'_>,
    arithmetic: Arithmetic,
    tolerance: f32,
) {
    let got = linear(input, linears, finish, arithmetic).unwrap();
    let expected = reference::linear(input, linears, finish).unwrap();
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(&expected) {
        close(got, expected, tolerance);
    }
}

#[track_caller]
fn close(got: &Array, expected: &Array, tolerance: f32) {
    assert_eq!((got.shape(), got.dtype()), (expected.shape(), expected.dtype()));
    let wide = |x: &Array| x.astype(Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
    let (got, expected) = (wide(got), wide(expected));
    let largest = expected.iter().fold(0_f32, |most, x| most.max(x.abs()));
    for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert!((got - expected).abs() <= tolerance * largest, "at {at}: {got} for {expected} of {largest}");
    }
}

#[test]
fn a_packed_weight_that_does_not_fit_is_refused() {
    let packed = Packed::new(&quantized([37, 96], 0.5, 4, 32)).unwrap();
    let maps = [Linear { weight: Weight::Packed(&packed), bias: None }];
    for columns in [64, 128, 33] {
        let x = values([2, columns], 0.1);
        let error =
            linear(Input::new(&x), &maps, Finish::Store, Arithmetic::Integer).unwrap_err().to_string();
        assert!(error.contains("does not fit x of shape"), "{error}");
    }
    let experts = Array::from_slice(&[0_u32, 0], [2, 1]).unwrap();
    let x = values([2, 96], 0.1);
    let input = Input { experts: Some(&experts), ..Input::new(&x) };
    let stack = Packed::new(&quantized([2, 37, 96], 0.5, 4, 32)).unwrap();
    let maps = [Linear { weight: Weight::Packed(&stack), bias: None }];
    let error = linear(Input::new(&x), &maps, Finish::Store, Arithmetic::Integer).unwrap_err().to_string();
    assert!(error.contains("does not fit x of shape"), "{error}");
    let bias = values([3, 37], 0.2);
    let maps = [Linear { weight: Weight::Packed(&stack), bias: Some(&bias) }];
    let error = linear(input, &maps, Finish::Store, Arithmetic::Integer).unwrap_err().to_string();
    assert!(error.contains("needs [2, 37]"), "{error}");
}

#[test]
fn every_scheme_agrees_with_mlx() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let w = quantized([37, 256], 0.5, bits, group);
            for rows in [1, 11] {
                let x = values([2, rows, 256], 0.1);
                check(Input::new(&x), &[map(&w, None)], Finish::Store, Arithmetic::Float, 2e-6);
                let packed = Packed::new(&w).unwrap();
                let packed = Linear { weight: Weight::Packed(&packed), bias: None };
                let got = linear(Input::new(&x), &[packed], Finish::Store, Arithmetic::Float).unwrap();
                let expected =
                    linear(Input::new(&x), &[map(&w, None)], Finish::Store, Arithmetic::Float).unwrap();
                // Two orders of float32 sums.
                close(&got[0], &expected[0], 2e-6);
                let got = linear(Input::new(&x), &[packed], Finish::Store, Arithmetic::Integer).unwrap();
                close(&got[0], &expected[0], 1e-4);
            }
        }
    }
}

#[test]
fn symmetric_matrices_are_read_without_biases_to_the_same_bits() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for dtype in [Dtype::Float16, Dtype::Float32] {
            let mut w = quantized([37, 96], 0.5, bits, 32);
            w.scales = w.scales.astype(dtype).unwrap();
            w.biases = Some(w.scales.multiply_number(-((1 << (bits - 1)) as f32)).unwrap());
            let packed = Packed::new(&w).unwrap();
            assert!(packed.biases.is_none(), "{bits} bits");
            // The same with a bias that is off in a row of another panel.
            let mut biases =
                w.biases.as_ref().unwrap().astype(Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
            biases[36 * 3] += 1.0;
            let off = Array::from_slice(&biases, [37, 3]).unwrap().astype(dtype).unwrap();
            let off = Packed::new(&Quantized { biases: Some(off), ..w.clone() }).unwrap();
            assert!(off.biases.is_some());
            for rows in [1, 3, 40] {
                let x = values([rows, 96], 0.1);
                for arithmetic in [Arithmetic::Integer, Arithmetic::Float] {
                    let run = |packed: &Packed| {
                        let packed = Linear { weight: Weight::Packed(packed), bias: None };
                        let y = linear(Input::new(&x), &[packed], Finish::Store, arithmetic).unwrap();
                        y[0].slice_axis(1, 0, 36).unwrap().to_vec::<f32>().unwrap()
                    };
                    assert_eq!(run(&packed), run(&off), "{bits} bits, {dtype}, {rows} rows, {arithmetic:?}");
                }
            }
        }
    }
}

#[test]
fn half_types_agree_with_mlx() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        let cast = |x: Array| x.astype(dtype).unwrap();
        let w = ops::quantize(&cast(values([40, 96], 0.5)), QuantScheme::affine(4, 32).unwrap()).unwrap();
        let plain = cast(values([24, 96], 0.7));
        let x = cast(values([3, 96], 0.2));
        let linears = [map(&w, None), Linear { weight: Weight::Plain(&plain), bias: None }];
        // MLX sums in the half type there; its own error is most of the difference.
        check(Input::new(&x), &linears, Finish::Store, Arithmetic::Float, 0.06);
    }
}

#[test]
fn norm_bias_residual_and_gate_agree_with_mlx() {
    let (w, up) = (quantized([45, 64], 0.5, 4, 32), quantized([45, 64], 0.9, 4, 32));
    let plain = values([45, 64], 0.3);
    let (bias, weight) = (values([45], 0.6), values([64], 0.8));
    let (x, residual) = (values([2, 5, 64], 0.1), values([2, 5, 45], 0.4));
    for shift in [0.0, 1.0] {
        let norm = Some(Norm { weight: Some(&weight), shift, eps: 1e-5 });
        let input = Input { norm, ..Input::new(&x) };
        check(input, &[map(&w, Some(&bias))], Finish::Add(&residual), Arithmetic::Float, 1e-5);
        check(input, &[map(&w, Some(&bias))], Finish::SoftCap(1.5), Arithmetic::Float, 1e-5);
        let linears = [map(&w, None), map(&up, Some(&bias))];
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
            check(input, &linears, Finish::Gate(activation), Arithmetic::Float, 1e-5);
        }
        let linears =
            [Linear { weight: Weight::Plain(&plain), bias: Some(&bias) }, map(&w, None), map(&up, None)];
        check(input, &linears, Finish::Store, Arithmetic::Float, 1e-5);
    }
}

#[test]
fn experts_agree_with_mlx() {
    let (w, bias) = (quantized([6, 33, 64], 0.5, 4, 32), values([6, 33], 0.2));
    let plain = values([6, 33, 64], 0.9);
    let chosen: Vec<u32> = (0..30).map(|i| i * 5 % 6).collect();
    let experts = Array::from_slice(&chosen, [2, 5, 3]).unwrap();
    for x in [values([2, 5, 64], 0.1), values([2, 5, 3, 64], 0.1)] {
        let input = Input { experts: Some(&experts), ..Input::new(&x) };
        let linears = [map(&w, Some(&bias)), Linear { weight: Weight::Plain(&plain), bias: None }];
        check(input, &linears, Finish::Store, Arithmetic::Float, 1e-5);
        let packed = Packed::new(&w).unwrap();
        let packed = Linear { weight: Weight::Packed(&packed), bias: Some(&bias) };
        let expected = linear(input, &linears[..1], Finish::Store, Arithmetic::Float).unwrap();
        for (arithmetic, tolerance) in [(Arithmetic::Float, 2e-6), (Arithmetic::Integer, 1e-4)] {
            let got = linear(input, &[packed], Finish::Store, arithmetic).unwrap();
            close(&got[0], &expected[0], tolerance);
        }
        check(input, &[linears[0], linears[0]], Finish::Gate(Activation::Silu), Arithmetic::Float, 1e-5);
    }
}

#[test]
fn views_that_are_not_contiguous_are_read_right() {
    let w = quantized([16, 64], 0.5, 8, 32);
    let x = values([3, 4, 64], 0.1).slice_axis(1, 3, 4).unwrap();
    check(Input::new(&x), &[map(&w, None)], Finish::Store, Arithmetic::Float, 1e-5);
    let turned = values([64, 5], 0.3).transpose(&[1, 0]).unwrap();
    check(Input::new(&turned), &[map(&w, None)], Finish::Store, Arithmetic::Float, 1e-5);
}

#[test]
fn operands_that_do_not_fit_are_refused_when_the_graph_is_built() {
    let w = quantized([16, 64], 0.5, 4, 32);
    let (x, narrow) = (values([3, 64], 0.1), values([3, 32], 0.1));
    let refuse = |input, linears: &[Linear<'_>], finish| {
        linear(input, linears, finish, Arithmetic::Integer).unwrap_err().to_string()
    };
    let text = refuse(Input::new(&narrow), &[map(&w, None)], Finish::Store);
    assert!(text.contains("does not fit x of shape [3, 32]"), "{text}");
    let text = refuse(Input::new(&x), &[map(&w, None)], Finish::Add(&x));
    assert!(text.contains("residual"), "{text}");
    let text = refuse(Input::new(&x), &[map(&w, None)], Finish::Gate(Activation::Silu));
    assert!(text.contains("two weights"), "{text}");
    let text = refuse(Input::new(&x), &[map(&w, Some(&x))], Finish::Store);
    assert!(text.contains("bias"), "{text}");
    let text = refuse(Input { experts: Some(&x), ..Input::new(&x) }, &[map(&w, None)], Finish::Store);
    assert!(text.contains("experts"), "{text}");
}

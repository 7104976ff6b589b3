//! Quantized matrices: every scheme there is, unpacked by plain Rust.

use crate::support::{array, close, floats, numbers, product};
use strata_contracts::{QuantMode, QuantScheme};
use strata_tensor::ops::{Quantized, dequantize, gather_qmm, quantize, quantized_matmul};
use strata_tensor::{Array, Dtype};

fn schemes() -> Vec<QuantScheme> {
    let affine = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group)));
    let affine = affine.map(|(bits, group)| QuantScheme::affine(bits, group).unwrap());
    affine.chain(fp_schemes()).collect()
}

fn fp_schemes() -> Vec<QuantScheme> {
    [(QuantMode::Mxfp4, 4, 32), (QuantMode::Mxfp8, 8, 32), (QuantMode::Nvfp4, 4, 16)]
        .map(|(mode, bits, group)| QuantScheme::new(mode, bits, group).unwrap())
        .to_vec()
}

/// The packed codes of a row, `bits` each, the first in the lowest bits.
fn codes(words: &[u32], bits: u32) -> Vec<u32> {
    let bit = |i: u32| words[i as usize / 32] >> (i % 32) & 1;
    (0..words.len() as u32 * 32 / bits).map(|n| (0..bits).map(|b| bit(n * bits + b) << b).sum()).collect()
}

/// Sign, `exponent` bits biased by `bias`, the rest mantissa: e2m1 and e4m3 of the OCP formats.
fn small_float(code: u32, exponent_bits: u32, mantissa_bits: u32, bias: i32) -> f64 {
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let exponent = (code >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let sign = if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let value = if exponent == 0 {
        mantissa * 2f64.powi(1 - bias)
    } else {
        (1.0 + mantissa) * 2f64.powi(exponent - bias)
    };
    sign * value
}

/// The matrix that the parts stand for.
fn unpacked(q: &Quantized) -> Vec<f64> {
    let group = q.scheme.group_size() as usize;
    let codes = codes(&q.weight.to_vec::<u32>().unwrap(), q.scheme.bits());
    let biases = q.biases.as_ref().map(floats);
    let scale = |n: usize| match q.scheme.mode() {
        QuantMode::Affine => f64::from(floats(&q.scales)[n]),
        QuantMode::Nvfp4 => small_float(q.scales.to_vec::<u8>().unwrap()[n].into(), 4, 3, 7),
        _ => 2f64.powi(i32::from(q.scales.to_vec::<u8>().unwrap()[n]) - 127),
    };
    let scales: Vec<f64> = (0..codes.len() / group).map(scale).collect();
    codes
        .iter()
        .enumerate()
        .map(|(i, &code)| {
            let value = match q.scheme.mode() {
                QuantMode::Affine => f64::from(code),
                QuantMode::Mxfp8 => small_float(code, 4, 3, 7),
                _ => small_float(code, 2, 1, 1),
            };
            scales[i / group] * value + biases.as_ref().map_or(0.0, |b| f64::from(b[i / group]))
        })
        .collect()
}

#[test]
fn every_scheme_unpacks_as_its_format_says_and_stays_near_the_original() {
    let w = array([3, 256]);
    for scheme in schemes() {
        let q = quantize(&w, scheme).unwrap();
        assert_eq!(q.weight.shape(), [3, 8 * scheme.bits() as i32]);
        assert_eq!(q.scales.shape(), [3, 256 / scheme.group_size() as i32]);
        assert_eq!(q.biases.is_some(), scheme.has_biases());
        let expected = unpacked(&q);
        close(&dequantize(&q, Some(Dtype::Float32)).unwrap(), [3, 256], &expected, 1e-6);
        // Half a step of the range 4, and what one scale for all costs.
        let step = if scheme.has_biases() { 4.0 / f64::from((1 << scheme.bits()) - 1) } else { 0.75 };
        for (value, original) in expected.iter().zip(numbers(768)) {
            assert!((value - f64::from(original)).abs() <= step, "{scheme:?}: {value} for {original}");
        }
    }
}

#[test]
fn products_with_quantized_matrices_are_products_with_what_they_stand_for() {
    let (w, x) = (array([7, 128]), array([5, 128]));
    for scheme in schemes() {
        let q = quantize(&w, scheme).unwrap();
        let values: Vec<f32> = unpacked(&q).iter().map(|&v| v as f32).collect();
        let turned: Vec<f32> = (0..values.len()).map(|i| values[i % 7 * 128 + i / 7]).collect();
        let expected = product(&numbers(640), &turned, [5, 128, 7]);
        close(&quantized_matmul(&x, &q, true).unwrap(), [5, 7], &expected, 1e-4);
        let y = array([5, 7]);
        let expected = product(&numbers(35), &values, [5, 7, 128]);
        close(&quantized_matmul(&y, &q, false).unwrap(), [5, 128], &expected, 1e-4);
    }
}

#[test]
fn gather_qmm_chooses_among_quantized_matrices() {
    let (w, x) = (array([4, 7, 64]), array([2, 1, 64]));
    let left = Array::from_slice(&[0u32, 1, 0], [3]).unwrap();
    let right = Array::from_slice(&[1u32, 2, 3], [3]).unwrap();
    let schemes = fp_schemes().into_iter().chain([QuantScheme::affine(4, 64).unwrap()]);
    for scheme in schemes {
        let q = quantize(&w, scheme).unwrap();
        let values: Vec<f32> = unpacked(&q).iter().map(|&v| v as f32).collect();
        let expected: Vec<f64> = [(0, 1), (1, 2), (0, 3)]
            .iter()
            .flat_map(|&(l, r)| {
                let turned: Vec<f32> = (0..448).map(|i| values[r * 448 + i % 7 * 64 + i / 7]).collect();
                product(&numbers(128)[l * 64..][..64], &turned, [1, 64, 7])
            })
            .collect();
        for sorted in [false, true] {
            let found = gather_qmm(&x, &q, Some(&left), Some(&right), true, sorted).unwrap();
            close(&found, [3, 1, 7], &expected, 1e-4);
        }
    }
}

#[test]
fn rows_that_are_no_whole_number_of_groups_are_refused() {
    for scheme in schemes() {
        assert!(quantize(&array([3, 257]), scheme).unwrap_err().to_string().starts_with("quantize: "));
    }
    let q = quantize(&array([7, 128]), QuantScheme::affine(4, 64).unwrap()).unwrap();
    assert!(quantized_matmul(&array([5, 64]), &q, true).is_err());
    let lying = Quantized { scales: array([7, 1]), ..q };
    assert!(dequantize(&lying, None).is_err());
}

//! Products of matrices, and convolution.

use crate::support::{array, close, floats, numbers, product};
use strata_tensor::{Array, Dtype, ops};

#[test]
fn products_broadcast_their_leading_dimensions() {
    let (a, b) = (array([2, 1, 3, 5]), array([4, 5, 7]));
    let (av, bv) = (numbers(30), numbers(140));
    let mut expected = Vec::new();
    for i in 0..2 {
        for j in 0..4 {
            expected.extend(product(&av[i * 15..][..15], &bv[j * 35..][..35], [3, 5, 7]));
        }
    }
    close(&a.matmul(&b).unwrap(), [2, 4, 3, 7], &expected, 2e-6);
    let row = array([5]).matmul(&b).unwrap();
    close(&row.slice_axis(0, 0, 1).unwrap(), [1, 7], &product(&numbers(5), &bv[..35], [1, 5, 7]), 2e-6);
}

#[test]
fn half_types_accumulate_well_enough() {
    for (dtype, tolerance) in [(Dtype::Float16, 4e-3), (Dtype::Bfloat16, 4e-2)] {
        let (a, b) = (array([3, 33]).astype(dtype).unwrap(), array([33, 5]).astype(dtype).unwrap());
        let wide = |x: &Array| floats(&x.astype(Dtype::Float32).unwrap());
        let expected = product(&wide(&a), &wide(&b), [3, 33, 5]);
        close(&a.matmul(&b).unwrap(), [3, 5], &expected, tolerance);
    }
}

#[test]
fn addmm_scales_and_adds() {
    let (a, b, c) = (array([3, 5]), array([5, 7]), array([7]));
    let sum: Vec<f64> = product(&numbers(15), &numbers(35), [3, 5, 7])
        .iter()
        .enumerate()
        .map(|(i, p)| 0.5 * p + 2.0 * f64::from(numbers(7)[i % 7]))
        .collect();
    close(&ops::addmm(&c, &a, &b, 0.5, 2.0).unwrap(), [3, 7], &sum, 2e-6);
}

#[test]
fn gather_mm_multiplies_the_chosen_matrices() {
    let (a, b) = (array([2, 3, 5]), array([4, 5, 7]));
    let left = Array::from_slice(&[0u32, 1, 1], [3]).unwrap();
    let right = Array::from_slice(&[1u32, 1, 3], [3]).unwrap();
    let (av, bv) = (numbers(30), numbers(140));
    let expected: Vec<f64> = [(0, 1), (1, 1), (1, 3)]
        .iter()
        .flat_map(|&(l, r)| product(&av[l * 15..][..15], &bv[r * 35..][..35], [3, 5, 7]))
        .collect();
    for sorted in [false, true] {
        let found = ops::gather_mm(&a, &b, Some(&left), Some(&right), sorted).unwrap();
        close(&found, [3, 3, 7], &expected, 2e-6);
    }
}

/// Convolution by its definition: input `[2, 11, c]`, weight `[o, 3, c / groups]`.
fn convolved(c: usize, o: usize, [stride, padding, dilation, groups]: [usize; 4]) -> (usize, Vec<f64>) {
    let (x, w) = (numbers(2 * 11 * c), numbers(o * 3 * c / groups));
    let length = (11 + 2 * padding - dilation * 2 - 1) / stride + 1;
    let (cg, og) = (c / groups, o / groups);
    let mut out = Vec::new();
    for n in 0..2 * length * o {
        let (batch, to, channel) = (n / (length * o), n / o % length, n % o);
        let mut sum = 0.0;
        for k in 0..3 {
            let Some(from) = (to * stride + k * dilation).checked_sub(padding).filter(|&i| i < 11) else {
                continue;
            };
            for i in 0..cg {
                let value = x[(batch * 11 + from) * c + channel / og * cg + i];
                sum += f64::from(value) * f64::from(w[(channel * 3 + k) * cg + i]);
            }
        }
        out.push(sum);
    }
    (length, out)
}

#[test]
fn conv1d_is_a_sum_over_taps_and_channels() {
    for (c, o, settings) in [
        (4, 5, [1, 0, 1, 1]),
        (4, 5, [2, 1, 1, 1]),
        (4, 6, [1, 2, 2, 2]),
        // Depthwise and causal: pad before, cut behind.
        (6, 6, [1, 2, 1, 6]),
    ] {
        let [stride, padding, dilation, groups] = settings.map(|n| n as i32);
        let weight = array([o as i32, 3, (c / settings[3]) as i32]);
        let found = ops::conv1d(&array([2, 11, c as i32]), &weight, stride, padding, dilation, groups);
        let (length, expected) = convolved(c, o, settings);
        close(&found.unwrap(), [2, length as i32, o as i32], &expected, 2e-6);
    }
}

//! Numbers to compute with, and how close results must be.

use strata_tensor::{Array, Dtype};

/// `n` numbers in [-2, 2), the same every time, no two alike nearby.
pub(crate) fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 / 1009.0 * 4.0 - 2.0).collect()
}

/// An array of [`numbers`].
pub(crate) fn array<const N: usize>(shape: [i32; N]) -> Array {
    Array::from_slice(&numbers(shape.iter().product::<i32>() as usize), shape).unwrap()
}

pub(crate) fn i32s<const N: usize>(values: &[i32], shape: [i32; N]) -> Array {
    Array::from_slice(values, shape).unwrap()
}

pub(crate) fn floats(array: &Array) -> Vec<f32> {
    array.to_vec().unwrap()
}

/// The bools of an array.
pub(crate) fn bools(array: &Array) -> Vec<bool> {
    assert_eq!(array.dtype(), Dtype::Bool);
    array.to_bytes().unwrap().iter().map(|&byte| byte != 0).collect()
}

/// `found` has this shape and these values, to `tolerance` of the larger of 1 and the value.
#[track_caller]
pub(crate) fn close<const N: usize>(found: &Array, shape: [i32; N], expected: &[f64], tolerance: f64) {
    assert_eq!(found.shape(), shape);
    let found = floats(&found.astype(Dtype::Float32).unwrap());
    assert_eq!(found.len(), expected.len());
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(found) - expected).abs();
        assert!(off <= tolerance * expected.abs().max(1.0), "at {i}: {found} instead of {expected}");
    }
}

/// `[rows, inner] × [inner, columns]` in float64.
pub(crate) fn product(a: &[f32], b: &[f32], [rows, inner, columns]: [usize; 3]) -> Vec<f64> {
    let mut out = vec![0.0; rows * columns];
    for (i, j, k) in
        (0..rows).flat_map(|i| (0..inner).flat_map(move |k| (0..columns).map(move |j| (i, j, k))))
    {
        out[i * columns + j] += f64::from(a[i * inner + k]) * f64::from(b[k * columns + j]);
    }
    out
}

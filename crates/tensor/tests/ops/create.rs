//! New arrays.

use crate::support::{array, close, floats};
use strata_tensor::{Array, Dtype, ops};

#[test]
fn filled_arrays() {
    assert_eq!(ops::zeros([2, 3], Dtype::Int8).unwrap().to_vec::<i8>().unwrap(), [0; 6]);
    assert_eq!(floats(&ops::ones([3], Dtype::Float32).unwrap()), [1.0; 3]);
    let row = Array::from_slice(&[1.0f32, 2.0], [2]).unwrap();
    assert_eq!(floats(&ops::full([3, 2], &row, Dtype::Float32).unwrap()), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    assert_eq!(ops::zeros([0, 5], Dtype::Float32).unwrap().to_vec::<f32>().unwrap(), []);
}

#[test]
fn ranges_and_triangles() {
    let range = ops::arange(1.0, 8.0, 3.0, Dtype::Int32).unwrap();
    assert_eq!(range.to_vec::<i32>().unwrap(), [1, 4, 7]);
    let tri = ops::tri(2, 4, 1, Dtype::Float32).unwrap();
    assert_eq!(floats(&tri), [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
    let x = array([2, 3, 4]);
    let masked = |keep: fn(i32, i32) -> bool| -> Vec<f64> {
        let kept = |i: i32| if keep(i / 4 % 3, i % 4) { 1.0 } else { 0.0 };
        (0..24).zip(floats(&x)).map(|(i, x)| f64::from(x) * kept(i)).collect()
    };
    close(&x.tril(0).unwrap(), [2, 3, 4], &masked(|i, j| j <= i), 0.0);
    close(&x.triu(1).unwrap(), [2, 3, 4], &masked(|i, j| j > i), 0.0);
}

#[test]
fn shapes_that_are_impossible_are_refused() {
    assert!(ops::zeros([-1, 3], Dtype::Float32).is_err());
    assert!(ops::ones([2, -3], Dtype::Float32).is_err());
    assert!(ops::tri(-1, 2, 0, Dtype::Float32).is_err());
    assert!(ops::arange(0.0, f64::NAN, 1.0, Dtype::Float32).is_err());
    assert!(ops::arange(0.0, 1e300, 1.0, Dtype::Float32).is_err());
    assert!(Array::from_slice(&[1.0f32], [-1, -1]).is_err());
    assert!(Array::from_slice(&[1.0f32; 6], [2, 2]).is_err());
    assert!(Array::from_bytes(&[0; 7], [2], Dtype::Float32).is_err());
    assert!(Array::from_bytes(&[0; 8], [i32::MAX, i32::MAX, i32::MAX], Dtype::Float32).is_err());
}

#[test]
fn host_data_come_back_as_they_went_in() {
    let bytes: Vec<u8> = (0..24).collect();
    for dtype in
        [Dtype::Uint8, Dtype::Int16, Dtype::Bfloat16, Dtype::Float32, Dtype::Float64, Dtype::Complex64]
    {
        let n = (24 / dtype.size()) as i32;
        let x = Array::from_bytes(&bytes, [n], dtype).unwrap();
        assert_eq!((x.dtype(), x.nbytes(), x.to_bytes().unwrap()), (dtype, 24, bytes.clone()));
    }
    assert_eq!(Array::scalar(7u64).item::<u64>().unwrap(), 7);
    assert!(Array::scalar(7u64).item::<i64>().is_err());
    assert!(array([2, 1]).item::<f32>().is_err());
}

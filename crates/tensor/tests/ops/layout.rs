//! Arrays that are not in row-major order in memory read back right, and views never leave their memory.

use crate::support::{array, close, floats, i32s, numbers};
use strata_tensor::{Array, Error};

fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..values.len()).map(|i| values[i % rows * columns + i / rows]).collect()
}

#[test]
fn transposed_broadcast_and_sliced_arrays_read_back_right() {
    let x = array([5, 7]);
    x.eval().unwrap();
    let t = x.transpose(&[1, 0]).unwrap();
    assert_eq!(floats(&t), transposed(&numbers(35), 5, 7));
    let rows = i32s(&[1, 2, 3], [1, 3]).broadcast_to([2, 3]).unwrap();
    assert_eq!(rows.to_vec::<i32>().unwrap(), [1, 2, 3, 1, 2, 3]);
    let columns = i32s(&[1, 2], [2, 1]).broadcast_to([2, 3]).unwrap();
    assert_eq!(columns.to_vec::<i32>().unwrap(), [1, 1, 1, 2, 2, 2]);
    let every_other = x.slice(&[1, 6], &[5, -8], &[2, -3]).unwrap();
    let values = numbers(35);
    let expected: Vec<f64> =
        [1, 3].iter().flat_map(|i| [6, 3, 0].map(|j| f64::from(values[i * 7 + j]))).collect();
    close(&every_other, [2, 3], &expected, 0.0);
    // A slice of a transposition of a slice.
    let nested = x.slice_axis(1, 2, 6).unwrap().transpose(&[1, 0]).unwrap().slice_axis(0, 1, 3).unwrap();
    let expected: Vec<f64> = (0..10).map(|n| f64::from(values[n % 5 * 7 + 3 + n / 5])).collect();
    close(&nested, [2, 5], &expected, 0.0);
    assert_eq!(nested.to_bytes().unwrap().len(), 40);
}

#[test]
fn operations_read_through_strides() {
    let x = array([5, 7]);
    let t = x.transpose(&[1, 0]).unwrap();
    let copied = Array::from_slice(&transposed(&numbers(35), 5, 7), [7, 5]).unwrap();
    let pairs = [
        (t.exp().unwrap(), copied.exp().unwrap()),
        (t.add(&t).unwrap(), copied.add(&copied).unwrap()),
        (t.sum(0, true).unwrap(), copied.sum(0, true).unwrap()),
        (t.softmax(-1, false).unwrap(), copied.softmax(-1, false).unwrap()),
        (t.sort(0).unwrap(), copied.sort(0).unwrap()),
        (t.reshape([35]).unwrap(), copied.reshape([35]).unwrap()),
        (t.matmul(&x).unwrap(), copied.matmul(&x).unwrap()),
    ];
    for (i, (strided, contiguous)) in pairs.iter().enumerate() {
        let expected: Vec<f64> = floats(contiguous).iter().map(|&v| f64::from(v)).collect();
        assert_eq!(strided.shape(), contiguous.shape());
        close(&strided.reshape([-1]).unwrap(), [expected.len() as i32], &expected, 1e-6);
        assert!(i < 7);
    }
}

#[test]
fn as_strided_gives_overlapping_windows() {
    let x = array([3, 4]);
    let windows = x.as_strided([4, 3], &[2, 1], 3).unwrap();
    let values = numbers(12);
    let expected: Vec<f64> = (0..12).map(|n| f64::from(values[3 + n / 3 * 2 + n % 3])).collect();
    close(&windows, [4, 3], &expected, 0.0);
    let backwards = x.as_strided([3], &[-2], 5).unwrap();
    close(&backwards, [3], &[5, 3, 1].map(|i: usize| f64::from(values[i])), 0.0);
}

#[test]
fn as_strided_out_of_range_is_refused() {
    let x = array([3, 4]);
    let refused = |shape: &[i32], strides: &[i64], offset| {
        let error = x.as_strided(shape, strides, offset).unwrap_err();
        assert!(matches!(error, Error::View { .. } | Error::Shape { .. } | Error::Mlx(_)), "{error}");
    };
    refused(&[13], &[1], 0);
    refused(&[4, 3], &[3, 1], 1);
    refused(&[2], &[-1], 0);
    refused(&[2], &[i64::MAX], 0);
    refused(&[2, 2], &[i64::MIN, i64::MAX], 5);
    refused(&[1], &[1], 12);
    refused(&[1], &[1], usize::MAX);
    refused(&[-1], &[1], 0);
    // One stride for two dimensions: nothing says where the second goes.
    refused(&[2, 2], &[1], 0);
    refused(&[2], &[1, 1], 0);
}

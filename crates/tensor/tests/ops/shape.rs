//! Operations that move elements and change none.

use crate::support::{array, close, floats, i32s, numbers};
use strata_tensor::{Array, Result, ops};

/// The elements of an array `shape` at `place`, for all places of `out` in row-major order.
fn moved(shape: [usize; 3], out: [usize; 3], place: impl Fn([usize; 3]) -> Option<[usize; 3]>) -> Vec<f64> {
    let values = numbers(shape.iter().product());
    let at = |[i, j, k]: [usize; 3]| f64::from(values[(i * shape[1] + j) * shape[2] + k]);
    (0..out.iter().product())
        .map(|n| [n / (out[1] * out[2]), n / out[2] % out[1], n % out[2]])
        .map(|to| place(to).map_or(0.5, &at))
        .collect()
}

const S: [usize; 3] = [2, 3, 4];

fn x() -> Array {
    array([2, 3, 4])
}

#[test]
fn orders_of_dimensions() {
    let expected = moved(S, [4, 2, 3], |[i, j, k]| Some([j, k, i]));
    close(&x().transpose(&[2, 0, 1]).unwrap(), [4, 2, 3], &expected, 0.0);
    close(&x().transpose(&[-1, 0, -2]).unwrap(), [4, 2, 3], &expected, 0.0);
    let swapped = moved(S, [4, 3, 2], |[i, j, k]| Some([k, j, i]));
    close(&x().swapaxes(0, -1).unwrap(), [4, 3, 2], &swapped, 0.0);
}

#[test]
fn new_and_gone_dimensions_keep_the_order() {
    let same = moved(S, S, Some);
    let shapes: [(Result<Array>, &[i32]); 6] = [
        (x().reshape([6, -1]), &[6, 4]),
        (x().flatten(0, 1), &[6, 4]),
        (x().unflatten(2, [2, -1]), &[2, 3, 2, 2]),
        (x().expand_dims(&[0, -1]), &[1, 2, 3, 4, 1]),
        (x().expand_dims(&[1]).and_then(|x| x.squeeze(&[1])), &[2, 3, 4]),
        (x().reshape([24]), &[24]),
    ];
    for (found, shape) in shapes {
        let found = found.unwrap();
        assert_eq!(found.shape().as_slice(), shape);
        assert_eq!(floats(&found), same.iter().map(|&v| v as f32).collect::<Vec<_>>());
    }
}

#[test]
fn repetitions() {
    let tiled = moved(S, [4, 3, 12], |[i, j, k]| Some([i % 2, j, k % 4]));
    close(&x().tile(&[2, 1, 3]).unwrap(), [4, 3, 12], &tiled, 0.0);
    let repeated = moved(S, [2, 6, 4], |[i, j, k]| Some([i, j / 2, k]));
    close(&x().repeat(2, 1).unwrap(), [2, 6, 4], &repeated, 0.0);
    let rolled = moved(S, S, |[i, j, k]| Some([i, (j + 3 - 1) % 3, k]));
    close(&x().roll(1, 1).unwrap(), [2, 3, 4], &rolled, 0.0);
    let row = i32s(&[7, 8], [2, 1]).broadcast_to([3, 2, 2]).unwrap();
    assert_eq!(row.to_vec::<i32>().unwrap(), [7, 7, 8, 8, 7, 7, 8, 8, 7, 7, 8, 8]);
}

#[test]
fn padding_puts_the_value_around() {
    let padded = x().pad(&[2, 1], &[1, 0], &[0, 2], &Array::from_f32(0.5)).unwrap();
    let expected = moved(S, [2, 5, 5], |[i, j, k]| (j < 3 && k >= 1).then(|| [i, j, k.wrapping_sub(1)]));
    close(&padded, [2, 5, 5], &expected, 0.0);
}

#[test]
fn splitting_and_joining_are_opposites() {
    let parts = x().split(2, 2).unwrap();
    let second = moved(S, [2, 3, 2], |[i, j, k]| Some([i, j, k + 2]));
    close(&parts[1], [2, 3, 2], &second, 0.0);
    let uneven = x().split_at(&[1], 1).unwrap();
    assert_eq!((uneven[0].shape(), uneven[1].shape()), ([2, 1, 4].into(), [2, 2, 4].into()));
    let same = moved(S, S, Some);
    for (parts, axis) in [(parts, 2), (uneven, -2)] {
        let joined = ops::concatenate(&parts.iter().collect::<Vec<_>>(), axis).unwrap();
        close(&joined, [2, 3, 4], &same, 0.0);
    }
    let stacked = ops::stack(&[&x(), &x().negative().unwrap()], 1).unwrap();
    assert_eq!(stacked.shape(), [2, 2, 3, 4]);
    assert_eq!(floats(&stacked)[12..24], numbers(12).iter().map(|v| -v).collect::<Vec<_>>());
}

#[test]
fn hadamard_is_its_own_inverse_and_has_the_right_signs() {
    let h = i32s(&[0, 1, 0, 0], [1, 4]).astype(strata_tensor::Dtype::Float32).unwrap();
    close(&h.hadamard(Some(1.0)).unwrap(), [1, 4], &[1.0, -1.0, 1.0, -1.0], 0.0);
    let y = array([3, 16]);
    let back = y.hadamard(None).unwrap().hadamard(None).unwrap();
    close(&back, [3, 16], &floats(&y).iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), 1e-6);
}

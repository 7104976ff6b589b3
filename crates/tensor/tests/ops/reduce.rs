//! Reductions, running sums, sorting.

use crate::support::{array, close, floats, i32s};
use strata_tensor::{Array, Dtype, Result};

const SHAPE: [i32; 3] = [3, 5, 4];

/// Values along axis 1, for each place of the other two axes.
fn columns(x: &Array) -> Vec<Vec<f64>> {
    let values = floats(x);
    (0..12).map(|c| (0..5).map(|j| f64::from(values[c / 4 * 20 + j * 4 + c % 4])).collect()).collect()
}

/// Columns back in the order of an array `[3, n, 4]`.
fn rows(columns: &[Vec<f64>]) -> Vec<f64> {
    let n = columns[0].len();
    (0..12 * n).map(|i| columns[i / (4 * n) * 4 + i % 4][i / 4 % n]).collect()
}

fn logsumexp(x: &[f64]) -> f64 {
    x.iter().map(|x| x.exp()).sum::<f64>().ln()
}

#[test]
fn reductions_of_the_middle_axis() {
    type Reduction = (fn(&Array, i32, bool) -> Result<Array>, fn(&[f64]) -> f64);
    let all: [Reduction; 8] = [
        (Array::sum, |x| x.iter().sum()),
        (Array::mean, |x| x.iter().sum::<f64>() / x.len() as f64),
        (Array::prod, |x| x.iter().product()),
        (Array::max, |x| x.iter().copied().fold(f64::MIN, f64::max)),
        (Array::min, |x| x.iter().copied().fold(f64::MAX, f64::min)),
        (Array::logsumexp, logsumexp),
        (Array::argmax, |x| (0..x.len()).max_by(|&i, &j| x[i].total_cmp(&x[j])).unwrap() as f64),
        (Array::argmin, |x| (0..x.len()).min_by(|&i, &j| x[i].total_cmp(&x[j])).unwrap() as f64),
    ];
    let x = array(SHAPE);
    for (mlx, rust) in all {
        let expected: Vec<f64> = columns(&x).iter().map(|c| rust(c)).collect();
        close(&mlx(&x, 1, false).unwrap(), [3, 4], &expected, 2e-6);
        close(&mlx(&x, -2, true).unwrap(), [3, 1, 4], &expected, 2e-6);
    }
}

#[test]
fn running_sums_in_both_directions() {
    type Running = (fn(&Array, i32, bool, bool) -> Result<Array>, f64, fn(f64, f64) -> f64);
    let all: [Running; 3] = [
        (Array::cumsum, 0.0, |a, b| a + b),
        (Array::cumprod, 1.0, |a, b| a * b),
        (Array::cummax, f64::NEG_INFINITY, f64::max),
    ];
    let x = array(SHAPE);
    let run = |c: &[f64], start: f64, f: fn(f64, f64) -> f64, reverse: bool, inclusive: bool| {
        let mut values = c.to_vec();
        if reverse {
            values.reverse();
        }
        let mut sum = start;
        for value in &mut values {
            let before = sum;
            sum = f(sum, *value);
            *value = if inclusive { sum } else { before };
        }
        if reverse {
            values.reverse();
        }
        values
    };
    for (mlx, start, f) in all {
        for (reverse, inclusive) in [(false, true), (true, true), (false, false), (true, false)] {
            let found = mlx(&x, 1, reverse, inclusive).unwrap();
            let expected: Vec<_> = columns(&x).iter().map(|c| run(c, start, f, reverse, inclusive)).collect();
            let finite: Vec<f64> = rows(&expected).iter().map(|x| x.max(f64::from(f32::MIN))).collect();
            let found = found.maximum(&Array::from_f32(f32::MIN)).unwrap();
            close(&found, SHAPE, &finite, 4e-6);
        }
    }
}

#[test]
fn softmax_sums_to_one_in_every_type() {
    let x = array(SHAPE);
    let expected: Vec<_> = columns(&x)
        .iter()
        .map(|c| c.iter().map(|x| (x - logsumexp(c)).exp()).collect::<Vec<f64>>())
        .collect();
    close(&x.softmax(1, false).unwrap(), SHAPE, &rows(&expected), 1e-6);
    let half = x.astype(Dtype::Float16).unwrap().softmax(1, true).unwrap();
    assert_eq!(half.dtype(), Dtype::Float16);
    close(&half, SHAPE, &rows(&expected), 2e-3);
}

#[test]
fn sorting_and_partitioning() {
    let x = array(SHAPE);
    let sorted: Vec<_> = columns(&x)
        .into_iter()
        .map(|mut c| {
            c.sort_by(f64::total_cmp);
            c
        })
        .collect();
    close(&x.sort(1).unwrap(), SHAPE, &rows(&sorted), 0.0);
    let order = x.argsort(1).unwrap();
    close(&x.take_along_axis(&order, 1).unwrap(), SHAPE, &rows(&sorted), 0.0);
    let places = x.argpartition(3, 1).unwrap();
    for parts in [x.partition(3, 1).unwrap(), x.take_along_axis(&places, 1).unwrap()] {
        for (part, sorted) in columns(&parts).iter().zip(&sorted) {
            assert_eq!(part[3], sorted[3]);
            assert!(part[..3].iter().all(|x| *x <= part[3]) && part[4] >= part[3]);
        }
    }
    let top = x.topk(2, 1).unwrap().sort(1).unwrap();
    let expected: Vec<_> = sorted.iter().map(|c| c[3..].to_vec()).collect();
    close(&top, [3, 2, 4], &rows(&expected), 0.0);
}

#[test]
fn whole_array_questions() {
    let (x, y) = (i32s(&[1, 2, 0], [3]), i32s(&[1, 2, 0], [1, 3]));
    let of = |r: Result<Array>| crate::support::bools(&r.unwrap()) == [true];
    assert!(!of(x.all()) && of(x.any()));
    assert!(of(x.array_equal(&x, false)) && !of(x.array_equal(&y, false)));
    let nan = Array::from_slice(&[f32::NAN], [1]).unwrap();
    assert!(of(nan.array_equal(&nan, true)) && !of(nan.array_equal(&nan, false)));
}

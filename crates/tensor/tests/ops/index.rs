//! Reading and writing parts.

use crate::support::{array, close, floats, i32s, numbers};
use strata_tensor::{Array, Dtype, ops};

fn at(i: usize, j: usize, k: usize) -> f64 {
    f64::from(numbers(60)[(i * 5 + j) * 4 + k])
}

fn x() -> Array {
    array([3, 5, 4])
}

/// `[a, b, 4]` of elements `(i, j, k)` that `place` finds.
fn picked(a: usize, b: usize, place: impl Fn(usize, usize, usize) -> f64) -> Vec<f64> {
    (0..a * b * 4).map(|n| place(n / (b * 4), n / 4 % b, n % 4)).collect()
}

#[test]
fn slices_clamp_and_count_from_the_end() {
    let expected = picked(3, 2, |i, j, k| at(i, j + 2, k));
    close(&x().slice_axis(1, 2, 4).unwrap(), [3, 2, 4], &expected, 0.0);
    close(&x().slice_axis(-2, -3, -1).unwrap(), [3, 2, 4], &expected, 0.0);
    let beyond = x().slice_axis(1, 3, 99).unwrap();
    close(&beyond, [3, 2, 4], &picked(3, 2, |i, j, k| at(i, j + 3, k)), 0.0);
    assert_eq!(x().slice_axis(1, 4, 2).unwrap().shape(), [3, 0, 4]);
    let dynamic = x().slice_dynamic(&i32s(&[2], [1]), &[1], &[3, 2, 4]).unwrap();
    close(&dynamic, [3, 2, 4], &expected, 0.0);
}

#[test]
fn slice_updates_change_the_slice_alone_and_never_the_original() {
    let (x, update) = (x(), array([2, 4]));
    x.eval().unwrap();
    let expected =
        picked(
            3,
            5,
            |i, j, k| {
                if (1..3).contains(&j) { f64::from(numbers(8)[(j - 1) * 4 + k]) } else { at(i, j, k) }
            },
        );
    let fixed = x.slice_update_axis(&update, 1, 1, 3).unwrap();
    let listed = x.slice_update(&update, &[0, 1, 0], &[3, 3, 4], &[1, 1, 1]).unwrap();
    let wide = update.broadcast_to([3, 2, 4]).unwrap();
    let dynamic = x.slice_update_dynamic(&wide, &i32s(&[1], [1]), &[1]).unwrap();
    for found in [fixed, listed, dynamic] {
        close(&found, [3, 5, 4], &expected, 0.0);
    }
    assert_eq!(floats(&x), numbers(60));
}

#[test]
fn take_puts_the_indices_in_place_of_the_axis() {
    let indices = i32s(&[4, 0, -1], [3]);
    let expected = picked(3, 3, |i, j, k| at(i, [4, 0, 4][j], k));
    close(&x().take(&indices, 1).unwrap(), [3, 3, 4], &expected, 0.0);
    let table = i32s(&[1, 2, 0, 0, 2, 1], [3, 2]);
    assert_eq!(x().take(&table, 0).unwrap().shape(), [3, 2, 5, 4]);
}

#[test]
fn along_an_axis_indices_choose_for_each_place() {
    let table: Vec<i32> = (0..24).map(|n| n * 7 % 5).collect();
    let indices = i32s(&table, [3, 2, 4]);
    let place = |i: usize, j: usize, k: usize| table[(i * 2 + j) * 4 + k] as usize;
    let taken = x().take_along_axis(&indices, 1).unwrap();
    close(&taken, [3, 2, 4], &picked(3, 2, |i, j, k| at(i, place(i, j, k), k)), 0.0);
    let put = x().put_along_axis(&indices, &Array::from_f32(9.0), 1).unwrap();
    let hit = |i, j, k| place(i, 0, k) == j || place(i, 1, k) == j;
    close(&put, [3, 5, 4], &picked(3, 5, |i, j, k| if hit(i, j, k) { 9.0 } else { at(i, j, k) }), 0.0);
    let values = ops::ones([3, 2, 4], Dtype::Float32).unwrap();
    let added = x().scatter_add_axis(&indices, &values, 1).unwrap();
    let times = |i, j, k| (0..2).filter(|&n| place(i, n, k) == j).count() as f64;
    close(&added, [3, 5, 4], &picked(3, 5, |i, j, k| at(i, j, k) + times(i, j, k)), 1e-6);
}

#[test]
fn gather_and_scatter_move_whole_slices() {
    let rows = i32s(&[2, 0], [2]);
    let gathered = x().gather(&[&rows], &[0], &[1, 5, 4]).unwrap();
    assert_eq!(gathered.shape(), [2, 1, 5, 4]);
    let expected = picked(2, 5, |i, j, k| at([2, 0][i], j, k));
    close(&gathered.squeeze(&[1]).unwrap(), [2, 5, 4], &expected, 0.0);
    let twice = i32s(&[1, 1], [2]);
    let updates = ops::ones([2, 1, 5, 4], Dtype::Float32).unwrap();
    let written = ops::scatter(&x(), &[&twice], &updates, &[0]).unwrap();
    close(&written, [3, 5, 4], &picked(3, 5, |i, j, k| if i == 1 { 1.0 } else { at(i, j, k) }), 0.0);
    let added = ops::scatter_add(&x(), &[&twice], &updates, &[0]).unwrap();
    close(&added, [3, 5, 4], &picked(3, 5, |i, j, k| at(i, j, k) + if i == 1 { 2.0 } else { 0.0 }), 1e-6);
}

//! Draws: equal keys repeat, different keys differ, and distributions are what they say.

use crate::support::{bools, floats, i32s};
use strata_tensor::random::{Key, bernoulli, bits, categorical, gumbel, normal, randint, uniform};
use strata_tensor::{Array, Dtype};

const N: i32 = 20_000;

fn key(seed: u64) -> Key {
    Key::new(seed).unwrap()
}

fn mean(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64
}

#[test]
fn b25_equal_keys_repeat_and_different_ones_differ() {
    let draw = |key: &Key| bits([3, 5], 4, key).unwrap().to_vec::<u32>().unwrap();
    assert_eq!(draw(&key(7)), draw(&key(7)));
    assert_ne!(draw(&key(7)), draw(&key(8)));
    assert_ne!(draw(&key(0)), draw(&key(1 << 32)), "the upper half of a seed counts");
    let parts = key(7).split(3).unwrap();
    let draws: Vec<_> = parts.iter().map(draw).chain([draw(&key(7))]).collect();
    for (i, one) in draws.iter().enumerate() {
        assert!(!draws[..i].contains(one));
    }
    assert_eq!(draw(&key(7).split(3).unwrap()[1]), draws[1]);
}

#[test]
fn b25_draws_of_a_row_do_not_depend_on_its_neighbours() {
    let logits = crate::support::array([1, 50]);
    let alone = categorical(&logits, -1, &key(3)).unwrap().to_vec::<u32>().unwrap();
    categorical(&logits, -1, &key(4)).unwrap().eval().unwrap();
    assert_eq!(categorical(&logits, -1, &key(3)).unwrap().to_vec::<u32>().unwrap(), alone);
}

#[test]
fn distributions_have_their_moments() {
    let u = floats(&uniform(-1.0, 3.0, [N], Dtype::Float32, &key(1)).unwrap());
    assert!(u.iter().all(|v| (-1.0..3.0).contains(v)) && (mean(&u) - 1.0).abs() < 0.05);
    let n = floats(&normal(2.0, 0.5, [N], Dtype::Float32, &key(2)).unwrap());
    let squares: Vec<f32> = n.iter().map(|v| (v - 2.0).powi(2)).collect();
    assert!((mean(&n) - 2.0).abs() < 0.02 && (mean(&squares) - 0.25).abs() < 0.02);
    // The mean of the standard Gumbel distribution is Euler's constant.
    let g = floats(&gumbel([N], Dtype::Float32, &key(3)).unwrap());
    assert!((mean(&g) - 0.5772).abs() < 0.05);
    let whole = randint(-2, 3, [N], Dtype::Int32, &key(4)).unwrap().to_vec::<i32>().unwrap();
    for value in -2..3 {
        let share = whole.iter().filter(|&&v| v == value).count() as f64 / f64::from(N);
        assert!((share - 0.2).abs() < 0.02, "{value}: {share}");
    }
    assert!(whole.iter().all(|v| (-2..3).contains(v)));
    let coins = bools(&bernoulli(&Array::from_f32(0.3), [N], &key(5)).unwrap());
    let heads = coins.iter().filter(|&&c| c).count() as f64 / f64::from(N);
    assert!((heads - 0.3).abs() < 0.02);
}

#[test]
fn a_categorical_draws_by_softmax_and_never_the_impossible() {
    let row = [0.1f32.ln(), f32::NEG_INFINITY, 0.6f32.ln(), 0.3f32.ln()];
    let logits = Array::from_slice(&row, [1, 4]).unwrap().broadcast_to([N, 4]).unwrap();
    let drawn = categorical(&logits, -1, &key(6)).unwrap();
    assert_eq!((drawn.shape(), drawn.dtype()), ([N].into(), Dtype::Uint32));
    let drawn = drawn.to_vec::<u32>().unwrap();
    for (id, share) in [0.1, 0.0, 0.6, 0.3].iter().enumerate() {
        let found = drawn.iter().filter(|&&d| d == id as u32).count() as f64 / f64::from(N);
        assert!((found - share).abs() < 0.02 && (*share > 0.0 || found == 0.0), "{id}: {found}");
    }
}

#[test]
fn types_that_cannot_be_drawn_are_refused() {
    assert!(normal(0.0, 1.0, [2], Dtype::Int32, &key(1)).is_err());
    assert!(randint(0, 2, [2], Dtype::Float32, &key(1)).is_err());
    assert!(bits([2], 3, &key(1)).is_err());
    assert!(uniform(0.0, 1.0, [-2], Dtype::Float32, &key(1)).is_err());
    assert!(categorical(&i32s(&[1], [1]), 1, &key(1)).is_err());
}

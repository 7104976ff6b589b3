//! Number formats: when a sequence changes to one, alone and as a row of a batch.

use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, LayerKv, QuantScheme};
use strata_state::{Phase, State, bytes_per_token};
use strata_tensor::{Array, Dtype, random};

const LAYER: LayerKind = LayerKind::Full { kv_heads: 2, head_dim: 64 };
const RING: LayerKind = LayerKind::Sliding { kv_heads: 2, head_dim: 64, window: 5 };

fn composition(kv: KvScheme) -> Composition {
    Composition { kernels: KernelSet::Reference, kv, ..Composition::default() }
}

fn affine(start: u32) -> KvScheme {
    let format = KvFormat::Affine(QuantScheme::affine(8, 32).unwrap());
    KvScheme { format, start, ..KvScheme::default() }
}

/// Keys, values and queries of `length` positions of a row; the same for the same seed and position.
fn inputs(seed: u64, position: usize, length: usize) -> [Array; 3] {
    [(0, 2), (1, 2), (2, 4)].map(|(which, heads)| {
        let key = random::Key::new(1000 * seed + 10 * position as u64 + which).unwrap();
        random::normal(0.0, 1.0, [1, heads, length as i32, 64], Dtype::Float32, &key).unwrap()
    })
}

fn step(state: &mut State, rows: &[[Array; 3]]) -> Vec<Vec<f32>> {
    let stacked = |i: usize| {
        let parts: Vec<&Array> = rows.iter().map(|row| &row[i]).collect();
        strata_tensor::ops::concatenate(&parts, 0).unwrap()
    };
    let out = state.layer(0).append(&stacked(0), &stacked(1), Phase::Decode).unwrap();
    let out = out.attend(&stacked(2), 0.125).unwrap();
    state.advance(rows[0][0].dim(2) as usize);
    (0..rows.len() as i32).map(|r| out.slice_axis(0, r, r + 1).unwrap().to_vec().unwrap()).collect()
}

fn names(state: &mut State) -> Vec<&'static str> {
    state.layer(0).live_parts().unwrap().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn a_sequence_changes_its_format_once_it_is_long_enough() {
    let mut state = State::compose(&[LAYER], &composition(affine(6))).unwrap();
    for position in 0..6 {
        step(&mut state, &[inputs(1, position, 1)]);
        assert_eq!(names(&mut state), ["keys", "values"], "at {position}");
    }
    step(&mut state, &[inputs(1, 6, 1)]);
    assert_eq!(names(&mut state).len(), 6);
    assert_eq!(state.layer(0).live_parts().unwrap()[0].1.dim(2), 7);
}

#[test]
fn each_row_changes_its_format_at_its_own_boundary() {
    for kind in [LAYER, RING] {
        let new = || State::compose(&[kind], &composition(affine(8))).unwrap();
        let lengths = [3, 9, 6];
        let mut alone: Vec<State> = lengths.iter().map(|_| new()).collect();
        for (row, (state, &length)) in alone.iter_mut().zip(&lengths).enumerate() {
            step(state, &[inputs(row as u64, 0, length)]);
        }
        let mut batch = State::merge(&alone.iter().collect::<Vec<_>>()).unwrap();
        for i in 0..8 {
            let rows: Vec<[Array; 3]> =
                lengths.iter().enumerate().map(|(row, n)| inputs(row as u64, n + i, 1)).collect();
            let together = step(&mut batch, &rows);
            for (row, state) in alone.iter_mut().enumerate() {
                let expected = &step(state, &rows[row..=row])[0];
                let near = expected.iter().zip(&together[row]).all(|(a, b)| (a - b).abs() < 1e-5);
                assert!(near, "{kind:?}, row {row}, step {i}");
            }
        }
        for (row, state) in alone.iter_mut().enumerate() {
            let of_batch = batch.extract(row).unwrap().layer(0).live_parts().unwrap();
            for ((name, a), (_, b)) in state.layer(0).live_parts().unwrap().iter().zip(&of_batch) {
                assert_eq!(a.to_bytes().unwrap(), b.to_bytes().unwrap(), "{kind:?}, row {row}, {name}");
            }
        }
    }
}

#[test]
fn rows_in_different_formats_leave_and_join() {
    let new = || State::compose(&[LAYER], &composition(affine(8))).unwrap();
    let (mut short, mut long) = (new(), new());
    step(&mut short, &[inputs(1, 0, 2)]);
    step(&mut long, &[inputs(2, 0, 9)]);
    step(&mut long, &[inputs(2, 9, 1)]);
    let mut batch = State::merge(&[&short, &long]).unwrap();
    batch.join(&short).unwrap();
    batch.filter(&[2, 1]).unwrap();
    let rows = [inputs(1, 2, 1), inputs(2, 10, 1)];
    let together = step(&mut batch, &rows);
    assert_eq!(together[0], step(&mut short, &rows[..1])[0]);
    assert_eq!(together[1], step(&mut long, &rows[1..])[0]);
    batch.filter(&[1]).unwrap();
    assert_eq!(names(&mut batch).len(), 6);
}

#[test]
fn layers_have_their_own_formats() {
    let entry = |layer, bits| LayerKv { layer, scheme: QuantScheme::affine(bits, 64).unwrap() };
    let kv = KvScheme { format: KvFormat::Layers(vec![entry(2, 4), entry(0, 8)]), ..KvScheme::default() };
    let mut state = State::compose(&[LAYER, LAYER, LAYER], &composition(kv)).unwrap();
    for position in 0..2 {
        let [k, v, q] = inputs(1, position, 1);
        for layer in 0..3 {
            state.layer(layer).append(&k, &v, Phase::Decode).unwrap().attend(&q, 0.1).unwrap();
        }
        state.advance(1);
    }
    let words = |state: &mut State, layer: usize| state.layer(layer).live_parts().unwrap()[0].1.dim(3);
    assert_eq!([0, 1, 2].map(|layer| words(&mut state, layer)), [16, 64, 8]);
}

#[test]
fn a_format_for_a_layer_that_keeps_nothing_is_refused() {
    let recurrent = LayerKind::Recurrent { channels: 8, tail: 3, state: 64 };
    let layers = [LAYER, recurrent, LayerKind::Shared { donor: 0 }];
    for (layer, words) in [(1, "keeps none"), (2, "keeps none"), (3, "number of layers is 3")] {
        let entry = LayerKv { layer, scheme: QuantScheme::affine(8, 64).unwrap() };
        let kv = KvScheme { format: KvFormat::Layers(vec![entry]), ..KvScheme::default() };
        let composition = composition(kv);
        for error in [
            State::compose(&layers, &composition).unwrap_err(),
            bytes_per_token(&layers, &composition, Dtype::Float32).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains(&format!("layer {layer} cannot")) && error.contains(words), "{error}");
        }
    }
}

#[test]
fn heads_that_do_not_divide_into_groups_are_refused() {
    let layer = LayerKind::Full { kv_heads: 2, head_dim: 80 };
    let error = State::compose(&[layer], &composition(affine(0))).unwrap_err();
    assert!(error.to_string().contains("80 values is not a whole number of groups of 32"), "{error}");
}

#[test]
fn turbo_attends_near_plain_attention_and_rows_agree() {
    // Squared errors of keys and values add up; a quarter more for the few positions looked at.
    for (bits, bound) in [((4, 4), 1.25 * 0.138), ((3, 2), 1.25 * 0.39)] {
        let format = KvFormat::Turbo { keys: bits.0, values: bits.1 };
        let kv = KvScheme { format, start: 4, ..KvScheme::default() };
        let mut turbo = State::compose(&[LAYER], &composition(kv)).unwrap();
        let mut plain = State::compose(&[LAYER], &composition(KvScheme::default())).unwrap();
        for position in 0..3 {
            let new = inputs(1, position, 1);
            assert_eq!(
                step(&mut turbo, std::slice::from_ref(&new)),
                step(&mut plain, &[new]),
                "plain so far"
            );
        }
        let span = inputs(1, 3, 20);
        step(&mut turbo, std::slice::from_ref(&span));
        step(&mut plain, &[span]);
        assert_eq!(names(&mut turbo), ["keys", "values"], "not converted before its next append");
        let mut batch = State::merge(&[&turbo, &turbo]).unwrap();
        for position in 23..30 {
            let new = inputs(1, position, 1);
            let together = step(&mut batch, &[new.clone(), new.clone()]);
            let found = step(&mut turbo, std::slice::from_ref(&new));
            let expected = step(&mut plain, &[new]);
            let mean = |of: &dyn Fn(usize) -> f32| (0..256).map(of).sum::<f32>() / 256.0;
            let error = mean(&|i| (found[0][i] - expected[0][i]).powi(2)) / mean(&|i| expected[0][i].powi(2));
            assert!(error.sqrt() < bound, "{bits:?}: {}", error.sqrt());
            for row in &together {
                assert!(row.iter().zip(&found[0]).all(|(a, b)| (a - b).abs() < 1e-5));
            }
        }
        assert_eq!(names(&mut turbo), ["keys", "keys.norms", "values", "values.norms"]);
        assert_eq!(turbo.layer(0).live_parts().unwrap()[0].1.dim(3), 2 * i32::from(bits.0));
    }
}

#[test]
fn turbo_needs_heads_that_are_a_power_of_two() {
    let kv = KvScheme { format: KvFormat::Turbo { keys: 3, values: 3 }, ..KvScheme::default() };
    let layer = LayerKind::Full { kv_heads: 1, head_dim: 96 };
    let error = State::compose(&[layer], &composition(kv)).unwrap_err();
    assert!(error.to_string().contains("96 values are not a power of two"), "{error}");
    let kv = KvScheme { format: KvFormat::Turbo { keys: 5, values: 3 }, ..KvScheme::default() };
    let error = State::compose(&[LAYER], &composition(kv)).unwrap_err();
    assert!(error.to_string().contains("none of 5"), "{error}");
}

//! Rows and what a batch keeps of each: lists shrink and grow with the rows, whatever the cache and however little it holds.

use std::rc::Rc;
use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use strata_state::{Error, LayerState, Memory, Phase, Recurrence, RecurrentSpan, RotatingCache, Side, State};
use strata_tensor::{Array, Dtype, ops, random};

const LAYERS: [LayerKind; 4] = [
    LayerKind::Full { kv_heads: 2, head_dim: 32 },
    LayerKind::Sliding { kv_heads: 2, head_dim: 32, window: 5 },
    LayerKind::Recurrent { channels: 32, tail: 0, state: 32 },
    LayerKind::Shared { donor: 0 },
];

fn normal(seed: u64, shape: [i32; 4]) -> Array {
    random::normal(0.0, 1.0, shape, Dtype::Float32, &random::Key::new(seed).unwrap()).unwrap()
}

/// `s + x`, without padding.
struct Sum;

impl Recurrence for Sum {
    fn run(&self, before: &Memory, span: &RecurrentSpan<'_>) -> strata_state::Result<(Array, Memory)> {
        let sum = span.inputs[0].sum(1, true)?;
        let state = match &before.state {
            Some(state) => state.add(&sum)?,
            None => sum,
        };
        Ok((state.clone(), Memory { tail: None, state: Some(state) }))
    }
}

/// One token of each row; what the layers give, row after row.
fn step(state: &mut State, seeds: &[u64]) -> Vec<Vec<Vec<f32>>> {
    let rows: Vec<Array> = seeds.iter().map(|&seed| normal(seed, [1, 2, 1, 32])).collect();
    let x = ops::concatenate(&rows.iter().collect::<Vec<_>>(), 0).unwrap();
    let outs = LAYERS[..3].iter().enumerate().map(|(index, kind)| {
        let layer = state.layer(index);
        let out = if let LayerKind::Recurrent { .. } = kind {
            let recurrence: Rc<dyn Recurrence> = Rc::new(Sum);
            let input = x.slice_axis(1, 0, 1).unwrap().squeeze(&[1]).unwrap();
            layer.recur(&[input], &recurrence, Phase::Decode).unwrap()
        } else {
            layer.append(&x, &x, Phase::Decode).unwrap().attend(&x, 0.2).unwrap()
        };
        let row = |row: i32| out.slice_axis(0, row, row + 1).unwrap().to_vec::<f32>().unwrap();
        (0..seeds.len() as i32).map(row).collect()
    });
    let outs = outs.collect();
    state.advance(1);
    outs
}

fn schemes() -> Vec<KvScheme> {
    let affine = KvFormat::Affine(QuantScheme::affine(8, 32).unwrap());
    let plain = KvScheme::default();
    vec![
        plain.clone(),
        KvScheme { page: Some(4), ..plain.clone() },
        KvScheme { format: affine.clone(), ..plain.clone() },
        KvScheme { format: affine, start: 3, ..plain.clone() },
        KvScheme { format: KvFormat::Turbo { keys: 3, values: 3 }, ..plain },
    ]
}

fn empty(kv: &KvScheme) -> State {
    let composition = Composition { kernels: KernelSet::Fast, kv: kv.clone(), ..Composition::default() };
    State::compose(&LAYERS, &composition).unwrap()
}

#[test]
fn b26_lists_of_rows_shrink_with_the_rows_even_when_all_are_empty() {
    for kv in schemes() {
        let new = || empty(&kv);
        let mut batch = State::merge(&[&new(), &new(), &new()]).unwrap();
        batch.filter(&[2]).unwrap();
        assert_eq!((batch.rows(), batch.row_positions()), (1, vec![0]), "{kv:?}");
        batch.join(&new()).unwrap();
        batch.filter(&[1, 0]).unwrap();
        // Rows leave while padding is on its way: the lengths that were given shrink too.
        batch.begin_padded(&[1, 1], Side::Right).unwrap();
        let together = step(&mut batch, &[1, 2]);
        batch.end_padded().unwrap();
        let mut alone = new();
        let expected = step(&mut alone, &[2]);
        for (layer, (found, expected)) in together.iter().zip(&expected).enumerate() {
            assert!(near(&found[1], &expected[0]), "{kv:?}, layer {layer}");
        }
        // Row A finishes, C joins behind B; each has what it has alone, to the last list.
        batch.filter(&[1]).unwrap();
        let mut third = new();
        step(&mut third, &[5]);
        step(&mut third, &[6]);
        batch.join(&third).unwrap();
        assert_eq!((batch.rows(), batch.row_positions()), (2, vec![1, 2]), "{kv:?}");
        for seed in 10..17 {
            let together = step(&mut batch, &[seed, 100 + seed]);
            let expected = [step(&mut alone, &[seed]), step(&mut third, &[100 + seed])];
            for (row, expected) in expected.iter().enumerate() {
                for (layer, expected) in expected.iter().enumerate() {
                    assert!(near(&together[layer][row], &expected[0]), "{kv:?}, row {row}, layer {layer}");
                }
            }
        }
        batch.filter(&[1]).unwrap();
        assert_eq!((batch.rows(), batch.row_positions()), (1, vec![9]), "{kv:?}");
    }
}

#[test]
fn b02_rows_lie_by_what_they_hold_and_give_what_they_give_alone() {
    for kv in schemes() {
        let mut alone = [(1, 3), (100, 13)].map(|(seed, count)| {
            let mut state = empty(&kv);
            (seed..seed + count).for_each(|seed| drop(step(&mut state, &[seed])));
            state
        });
        let mut batch = State::merge(&[&alone[0], &alone[1]]).unwrap();
        for i in 0..12 {
            let seeds = [200 + i, 300 + i];
            let together = step(&mut batch, &seeds);
            for (row, state) in alone.iter_mut().enumerate() {
                for (layer, expected) in step(state, &seeds[row..=row]).iter().enumerate() {
                    assert!(
                        near(&together[layer][row], &expected[0]),
                        "{kv:?}, row {row}, layer {layer}, {i}"
                    );
                }
            }
        }
    }
}

fn near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

/// A ring of 7 positions that keeps its first 2.
fn keeping() -> State {
    let ring = RotatingCache::new(2, 32, 7, KernelSet::Fast).keeping(2);
    State::of_layers(vec![LayerState::Rotating(ring)])
}

/// A step of a ring by itself.
fn ring_step(state: &mut State, seed: u64) -> Vec<f32> {
    let x = normal(seed, [1, 2, 1, 32]);
    let read = state.layer(0).append(&x, &x, Phase::Decode).unwrap();
    state.advance(1);
    read.attend(&x, 0.2).unwrap().to_vec().unwrap()
}

/// The same over what a ring that keeps its first two must hold.
fn held(seeds: &[u64]) -> Vec<f32> {
    let newest = if seeds.len() > 7 { &seeds[seeds.len() - 5..] } else { &seeds[2.min(seeds.len())..] };
    let held: Vec<Array> = seeds.iter().take(2).chain(newest).map(|&s| normal(s, [1, 2, 1, 32])).collect();
    let all = ops::concatenate(&held.iter().collect::<Vec<_>>(), 2).unwrap();
    let query = normal(seeds[seeds.len() - 1], [1, 2, 1, 32]);
    let mask = strata_tensor::fast::Mask::None;
    let out = strata_tensor::fast::scaled_dot_product_attention(&query, &all, &all, 0.2, mask, None);
    out.unwrap().to_vec().unwrap()
}

#[test]
fn a_ring_keeps_its_first_positions_through_rounds_trims_and_files() {
    let mut state = keeping();
    let mut seeds: Vec<u64> = Vec::new();
    for i in 0..30 {
        let seed = 500 + i;
        seeds.push(seed);
        assert!(near(&ring_step(&mut state, seed), &held(&seeds)), "at {i}");
        match i % 4 {
            // Three positions on trial, of which some stay.
            1 => {
                let keep = i as usize % 3;
                let mut round = state.begin().unwrap();
                for seed in 900..903 {
                    ring_step(&mut round, seed);
                }
                round.commit(&[keep]).unwrap();
                seeds.extend((900..903).take(keep));
            }
            2 => {
                let tokens = vec![1; state.position()];
                state = state.snapshot("m", &tokens).unwrap().restore(&keeping()).unwrap();
            }
            _ => {
                let back = state.trimmable().min(1);
                state.trim(back).unwrap();
                seeds.truncate(seeds.len() - back);
            }
        }
    }
    assert!(seeds.len() > 20 && state.trimmable() == 0);
    let error = State::merge(&[&state, &state]).unwrap_err();
    assert!(matches!(error, Error::KeptRows { keep: 2 }), "{error}");
}

//! Layers that read what another has stored, and latent attention.

use strata_contracts::{Composition, KernelSet, LayerKind};
use strata_state::{Phase, Positions, Side, State};
use strata_tensor::{Array, Dtype, fast, ops, random};

fn normal(seed: u64, shape: [i32; 4]) -> Array {
    random::normal(0.0, 1.0, shape, Dtype::Float32, &random::Key::new(seed).unwrap()).unwrap()
}

fn compose(layers: &[LayerKind]) -> State {
    let composition = Composition { kernels: KernelSet::Reference, ..Composition::default() };
    State::compose(layers, &composition).unwrap()
}

#[test]
fn b05_a_captured_read_stays_what_it_was_when_the_donor_moves_on() {
    for donor in [
        LayerKind::Full { kv_heads: 2, head_dim: 4 },
        LayerKind::Sliding { kv_heads: 2, head_dim: 4, window: 5 },
    ] {
        let mut state = compose(&[donor, LayerKind::Shared { donor: 0 }]);
        let (k, v) = (normal(1, [1, 2, 4, 4]), normal(2, [1, 2, 4, 4]));
        state.layer(0).append(&k, &v, Phase::Window).unwrap();
        state.advance(4);
        let queries = normal(3, [1, 6, 1, 4]);
        let token = |seed| (normal(seed, [1, 2, 1, 4]), normal(seed + 1, [1, 2, 1, 4]));
        let (k, v) = token(10);
        let read = state.layer(0).append(&k, &v, Phase::Decode).unwrap();
        state.advance(1);
        let expected = read.attend(&queries, 0.5).unwrap().to_bytes().unwrap();
        let captured = read.clone();
        for seed in 20..28 {
            let (k, v) = token(seed);
            state.layer(0).append(&k, &v, Phase::Decode).unwrap();
            state.advance(1);
            strata_tensor::eval(state.arrays()).unwrap();
        }
        assert_eq!(captured.attend(&queries, 0.5).unwrap().to_bytes().unwrap(), expected, "{donor:?}");
    }
}

#[test]
fn b05_shared_layers_give_the_same_for_every_chunking() {
    let rope = fast::Rope { dims: 4, traditional: false, base: Some(10_000.0), scale: 1.0, freqs: None };
    let rotate = |x: &Array, at: &Positions| match at {
        Positions::Uniform(at) => fast::rope(x, &rope, *at).unwrap(),
        Positions::Rows(at) => fast::rope_dynamic(x, &rope, at).unwrap(),
    };
    for donor in [
        LayerKind::Full { kv_heads: 2, head_dim: 4 },
        LayerKind::Sliding { kv_heads: 2, head_dim: 4, window: 6 },
    ] {
        let layers = [donor, LayerKind::Shared { donor: 0 }];
        // Donor and sharer rotate at the position read before the donor appends.
        let pass = |state: &mut State, x: &Array| {
            let positions = state.positions();
            let keys = rotate(&x.slice_axis(1, 0, 2).unwrap(), &positions);
            let read = state.layer(0).append(&keys, &x.slice_axis(1, 2, 4).unwrap(), Phase::Window).unwrap();
            let outs = [0, 1].map(|_| read.attend(&rotate(x, &positions), 0.5).unwrap());
            state.advance(x.dim(2) as usize);
            ops::concatenate(&[&outs[0], &outs[1]], 1).unwrap()
        };
        for rows in [1, 2] {
            let x = normal(7, [rows, 4, 15, 4]);
            let mut results = Vec::new();
            for chunks in [&[10][..], &[4, 6], &[1, 3, 2, 4]] {
                let mut state = compose(&layers);
                if rows == 2 {
                    state.begin_padded(&[10, 10], Side::Right).unwrap();
                }
                let (mut outs, mut start) = (Vec::new(), 0);
                for &length in chunks.iter().chain(&[1, 1, 1, 1, 1]) {
                    if rows == 2 && start == 10 {
                        state.end_padded().unwrap();
                    }
                    outs.push(pass(&mut state, &x.slice_axis(2, start, start + length).unwrap()));
                    start += length;
                }
                let all = ops::concatenate(&outs.iter().collect::<Vec<_>>(), 2).unwrap();
                results.push(all.to_vec::<f32>().unwrap());
            }
            for other in &results[1..] {
                let near = results[0].iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-5);
                assert!(near, "{donor:?}, {rows} rows");
            }
        }
    }
}

#[test]
fn a_shared_layer_goes_along_with_rows() {
    let layers = [LayerKind::Full { kv_heads: 2, head_dim: 4 }, LayerKind::Shared { donor: 0 }];
    let (a, b) = (compose(&layers), compose(&layers));
    let mut batch = State::merge(&[&a, &b]).unwrap();
    let (k, v) = (normal(1, [2, 2, 3, 4]), normal(2, [2, 2, 3, 4]));
    let mut round = batch.begin().unwrap();
    round.layer(0).append(&k, &v, Phase::Window).unwrap();
    round.advance(3);
    round.commit(&[1, 3]).unwrap();
    batch.filter(&[1]).unwrap();
    assert_eq!(batch.extract(0).unwrap().position(), 3);
}

#[test]
fn latent_attention_equals_attention_over_joined_keys() {
    let (heads, rank, rope) = (3, 8, 4);
    let mut state = compose(&[LayerKind::Latent { rank: 8, rope_dim: 4 }]);
    let (c, r) = (normal(1, [1, 1, 6, rank]), normal(2, [1, 1, 6, rope]));
    for (start, stop) in [(0, 5), (5, 6)] {
        let l = stop - start;
        let (q, qr) = (normal(3, [1, heads, l, rank]), normal(4, [1, heads, l, rope]));
        let part = |a: &Array| a.slice_axis(2, start, stop).unwrap();
        let read = state.layer(0).append(&part(&c), &part(&r), Phase::Window).unwrap();
        state.advance(l as usize);
        let out = read.attend_latent(&q, &qr, 0.3).unwrap();
        let seen = |a: &Array| a.slice_axis(2, 0, stop).unwrap();
        let keys = ops::concatenate(&[&seen(&c), &seen(&r)], 3).unwrap();
        let queries = ops::concatenate(&[&q, &qr], 3).unwrap();
        let expected =
            fast::scaled_dot_product_attention(&queries, &keys, &seen(&c), 0.3, fast::Mask::Causal, None)
                .unwrap();
        let (out, expected) = (out.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        assert!(out.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

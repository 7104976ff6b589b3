//! Prefixes in memory, and what states cost.

use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use strata_state::{Phase, PrefixCache, State, bytes_per_token, projected_bytes};
use strata_tensor::{Array, Dtype, random};

const FULL: LayerKind = LayerKind::Full { kv_heads: 2, head_dim: 32 };
const RING: LayerKind = LayerKind::Sliding { kv_heads: 2, head_dim: 32, window: 8 };

fn composition(format: KvFormat) -> Composition {
    let kv = KvScheme { format, ..KvScheme::default() };
    Composition { kernels: KernelSet::Reference, kv, ..Composition::default() }
}

/// Keys and values that depend on position and token alone.
fn read(state: &mut State, tokens: &[u32]) -> Vec<Vec<u8>> {
    let start = state.position() as u64;
    let mut outs = Vec::new();
    for layer in 0..state.len() {
        let of = |what: u64| {
            let parts = tokens.iter().zip(start..).map(|(&token, position)| {
                let key = random::Key::new(1_000_000 * what + 1000 * u64::from(token) + position).unwrap();
                random::normal(0.0, 1.0, [1, 2, 1, 32], Dtype::Float32, &key).unwrap()
            });
            let parts: Vec<Array> = parts.collect();
            strata_tensor::ops::concatenate(&parts.iter().collect::<Vec<_>>(), 2).unwrap()
        };
        let read = state.layer(layer).append(&of(1), &of(2), Phase::Window).unwrap();
        outs.push(read.attend(&of(3), 0.2).unwrap().to_bytes().unwrap());
    }
    state.advance(tokens.len());
    outs
}

fn state_of(layers: &[LayerKind], tokens: &[u32]) -> State {
    let mut state = State::compose(layers, &composition(KvFormat::Plain)).unwrap();
    read(&mut state, tokens);
    state
}

#[test]
fn the_longest_common_prefix_is_continued() {
    let mut cache = PrefixCache::new(1 << 30);
    for tokens in [&[1, 2, 3][..], &[1, 2, 3, 4, 5, 6], &[1, 2, 9]] {
        assert!(cache.insert("m", tokens, &state_of(&[FULL], tokens)).unwrap());
    }
    let mut found = cache.find("m", &[1, 2, 3, 4, 7, 8]).unwrap().unwrap();
    assert_eq!(found.position(), 4);
    let mut cold = state_of(&[FULL], &[1, 2, 3, 4]);
    assert_eq!(read(&mut found, &[7, 8]), read(&mut cold, &[7, 8]));
    assert!(cache.find("m", &[5, 5]).unwrap().is_none());
    assert!(cache.find("adapter", &[1, 2, 3]).unwrap().is_none());
    let statistics = cache.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.reused), (1, 2, 4));
}

#[test]
fn b30_the_last_token_of_a_known_prompt_is_read_again() {
    let prompt = [4, 5, 6, 7];
    let mut cache = PrefixCache::new(1 << 30);
    cache.insert("m", &prompt, &state_of(&[FULL], &prompt)).unwrap();
    let mut found = cache.find("m", &prompt).unwrap().unwrap();
    assert_eq!(found.position(), 3);
    let mut cold = state_of(&[FULL], &prompt[..3]);
    assert_eq!(read(&mut found, &prompt[3..]), read(&mut cold, &prompt[3..]));
    assert!(cache.find("m", &prompt[..1]).unwrap().is_none(), "one token alone has no prefix");
}

#[test]
fn b01_a_wrapped_ring_serves_only_prompts_that_begin_with_all_of_it() {
    let long: Vec<u32> = (0..13).collect();
    let mut state = State::compose(&[FULL, RING], &composition(KvFormat::Plain)).unwrap();
    for &token in &long {
        read(&mut state, &[token]);
    }
    assert_eq!(state.trimmable(), 0);
    state.trim(3).unwrap_err();
    let mut cache = PrefixCache::new(1 << 30);
    assert!(cache.insert("m", &long, &state).unwrap());
    let shared: Vec<u32> = (0..10).chain([50, 51]).collect();
    assert!(cache.find("m", &shared).unwrap().is_none(), "the caller reads from the start");
    let longer: Vec<u32> = (0..15).collect();
    assert_eq!(cache.find("m", &longer).unwrap().unwrap().position(), 13);
}

#[test]
fn an_entry_is_not_changed_by_those_who_continue_it() {
    let tokens: Vec<u32> = (0..11).collect();
    let mut cache = PrefixCache::new(1 << 30);
    cache.insert("m", &tokens, &state_of(&[FULL, RING], &tokens)).unwrap();
    let longer: Vec<u32> = (0..12).collect();
    let first = read(&mut cache.find("m", &longer).unwrap().unwrap(), &[11]);
    read(&mut cache.find("m", &longer).unwrap().unwrap(), &[77]);
    assert_eq!(read(&mut cache.find("m", &longer).unwrap().unwrap(), &[11]), first);
}

#[test]
fn the_cache_keeps_to_its_limit_and_puts_out_what_was_not_used() {
    let entry = |first: u32| -> Vec<u32> { (first..first + 4).collect() };
    let size = state_of(&[FULL], &entry(0)).bytes();
    let mut cache = PrefixCache::new(3 * size);
    for first in [0, 100, 200] {
        assert!(cache.insert("m", &entry(first), &state_of(&[FULL], &entry(first))).unwrap());
    }
    assert!(cache.find("m", &[0, 1, 2, 3, 9]).unwrap().is_some());
    assert!(cache.insert("m", &entry(300), &state_of(&[FULL], &entry(300))).unwrap());
    assert!(cache.insert("m", &entry(400), &state_of(&[FULL], &entry(400))).unwrap());
    assert_eq!((cache.len(), cache.bytes(), cache.statistics().evicted), (3, 3 * size, 2));
    assert!(cache.find("m", &[0, 1, 2, 3, 9]).unwrap().is_some(), "what was used stays longest");
    assert!(!PrefixCache::new(size - 1).insert("m", &entry(0), &state_of(&[FULL], &entry(0))).unwrap());
}

#[test]
fn what_costs_least_to_read_again_for_its_bytes_goes_first() {
    let tokens = |first: u32, count: u32| -> Vec<u32> { (first..first + count).collect() };
    // 400 tokens in two steps of 256 positions cost more a byte than 40 in one.
    let (short, long) = (tokens(0, 40), tokens(1000, 400));
    let room = state_of(&[FULL], &long).bytes() + state_of(&[FULL], &short).bytes();
    for order in [[&long, &short], [&short, &long]] {
        let mut cache = PrefixCache::new(room);
        for tokens in order {
            assert!(cache.insert("m", tokens, &state_of(&[FULL], tokens)).unwrap());
        }
        let third = tokens(2000, 30);
        assert!(cache.insert("m", &third, &state_of(&[FULL], &third)).unwrap());
        let mut finds = |of: &[u32]| cache.find("m", &[of, &[9]].concat()).unwrap().is_some();
        assert!(finds(&long) && !finds(&short), "whichever came last");
    }
}

#[test]
fn a_longer_entry_replaces_the_ones_it_can_stand_for() {
    let mut cache = PrefixCache::new(1 << 30);
    cache.insert("m", &[1, 2], &state_of(&[FULL], &[1, 2])).unwrap();
    cache.insert("n", &[1, 2], &state_of(&[FULL], &[1, 2])).unwrap();
    cache.insert("m", &[1, 2, 3], &state_of(&[FULL], &[1, 2, 3])).unwrap();
    assert_eq!(cache.len(), 2);
    assert!(!cache.insert("m", &[1, 2], &state_of(&[FULL], &[1])).unwrap(), "another number of tokens");
    cache.clear("m");
    assert_eq!(cache.len(), 1);
}

#[test]
fn bytes_per_token_is_the_slope_of_projected_bytes() {
    let layers = [FULL, RING, LayerKind::Latent { rank: 64, rope_dim: 32 }];
    let composition = composition(KvFormat::Affine(QuantScheme::affine(8, 32).unwrap()));
    let at = |tokens| projected_bytes(&layers, &composition, Dtype::Bfloat16, 3, tokens).unwrap();
    let slope = (at(10_240) - at(5_120)) / 5_120;
    assert_eq!(slope, 3 * bytes_per_token(&layers, &composition, Dtype::Bfloat16).unwrap());
    assert!(projected_bytes(&layers, &composition, Dtype::Bfloat16, usize::MAX, 1 << 40).unwrap() > 1 << 60);
}

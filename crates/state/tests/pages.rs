//! Pages: shared until written, given back when no sequence uses them, read like a plain cache.

use std::sync::{Mutex, MutexGuard, PoisonError};
use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use strata_state::{Phase, State};
use strata_tensor::{Array, Dtype, eval, memory, random};

const LAYER: LayerKind = LayerKind::Full { kv_heads: 4, head_dim: 64 };

fn state(page: Option<u32>) -> State {
    let kv = KvScheme { page, ..KvScheme::default() };
    let composition = Composition { kernels: KernelSet::Reference, kv, ..Composition::default() };
    State::compose(&[LAYER], &composition).unwrap()
}

fn normal(seed: u64, shape: [i32; 4]) -> Array {
    random::normal(0.0, 1.0, shape, Dtype::Float32, &random::Key::new(seed).unwrap()).unwrap()
}

fn read(state: &mut State, seed: u64, length: i32) -> Vec<u8> {
    let rows = state.rows() as i32;
    let new = normal(seed, [rows, 4, length, 64]);
    let read = state.layer(0).append(&new, &new, Phase::Window).unwrap();
    let out = read.attend(&normal(seed + 1, [rows, 8, length, 64]), 0.1).unwrap().to_bytes().unwrap();
    state.advance(length as usize);
    eval(state.arrays()).unwrap();
    out
}

/// One test at a time: memory counters are the process's.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn one_sequence_in_pages_reads_like_a_plain_cache_bit_for_bit() {
    let _turn = turn();
    for page in [1, 7, 16, 64] {
        let (mut paged, mut plain) = (state(Some(page)), state(None));
        for (seed, length) in [(1, 13), (2, 1), (3, 30), (4, 1), (5, 1)] {
            assert_eq!(read(&mut paged, seed, length), read(&mut plain, seed, length), "pages of {page}");
        }
    }
}

#[test]
fn a_common_prefix_is_stored_once_and_each_sequence_writes_its_own_pages() {
    let _turn = turn();
    let mut first = state(Some(16));
    read(&mut first, 1, 40);
    let page = first.bytes() / 3;
    let mut second = first.clone();
    let batch = State::merge(&[&first, &second, &first]).unwrap();
    assert_eq!(batch.bytes(), 9 * page, "each row counts its pages");
    let (a, b) = (read(&mut first, 7, 1), read(&mut second, 7, 1));
    assert_eq!(a, b, "the same token gives the same bits");
    read(&mut first, 8, 1);
    let mut third = second.clone();
    assert_ne!(read(&mut second, 20, 1), read(&mut third, 30, 1));
    let mut plain = state(None);
    for (seed, length) in [(1, 40), (7, 1), (20, 1)] {
        read(&mut plain, seed, length);
    }
    assert_eq!(read(&mut second, 40, 1), read(&mut plain, 40, 1), "untouched by the others");
    assert_eq!(batch.row_positions(), [40, 40, 40]);
}

#[test]
fn pages_are_used_again_once_no_sequence_has_them() {
    let _turn = turn();
    let template = state(Some(16));
    let mut first = template.clone();
    read(&mut first, 1, 100);
    drop(first);
    let before = memory::active_memory().unwrap();
    for seed in 2..12 {
        let mut next = template.clone();
        read(&mut next, seed, 100);
    }
    // Buffers that the evaluating thread has not let go yet are a few; ten sequences would hold 2 MB.
    assert!(memory::active_memory().unwrap() < before + 1_000_000);
}

#[test]
fn a_delayed_start_is_refused_for_pages() {
    let _turn = turn();
    let format = KvFormat::Affine(QuantScheme::affine(8, 32).unwrap());
    let kv = KvScheme { format, start: 5, page: Some(16) };
    let error = State::compose(&[LAYER], &Composition { kv, ..Composition::default() }).unwrap_err();
    assert!(error.to_string().contains("without a later start"), "{error}");
}

//! Every call of MLX that an operation makes is made to fail, one after the other; and passes fail while they are evaluated.
//! The state is then what it was, goes on as if it had not been asked, and no memory is left behind.
//!
//! One test at a time: MLX's count of memory is the process's.

#[path = "support/leaky.rs"]
mod leaky;

use leaky::{Leaky, TAIL};
use std::ffi::CStr;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use strata_state::{Phase, PrefixCache, Recurrence, Side, Snapshot, State};
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut, apply};
use strata_tensor::{Array, Dtype, Stream, eval, faults, memory, random};

const HEADS: i32 = 2;
const DIM: i32 = 32;
const LAYERS: [LayerKind; 4] = [
    LayerKind::Full { kv_heads: 2, head_dim: 32 },
    LayerKind::Sliding { kv_heads: 2, head_dim: 32, window: 4 },
    LayerKind::Recurrent { channels: 32, tail: TAIL as u32, state: 32 },
    LayerKind::Latent { rank: 32, rope_dim: 32 },
];

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn schemes() -> Vec<KvScheme> {
    let affine = KvFormat::Affine(QuantScheme::affine(8, 32).unwrap());
    let plain = KvScheme::default();
    vec![
        plain.clone(),
        KvScheme { format: affine.clone(), ..plain.clone() },
        KvScheme { format: affine.clone(), start: 8, page: None },
        KvScheme { format: KvFormat::Turbo { keys: 4, values: 2 }, ..plain.clone() },
        KvScheme { page: Some(3), ..plain.clone() },
        KvScheme { format: affine, page: Some(3), ..plain },
    ]
}

fn empty(kv: &KvScheme) -> State {
    let composition = Composition { kernels: KernelSet::Fast, kv: kv.clone(), ..Composition::default() };
    State::compose(&LAYERS, &composition).unwrap()
}

/// A value for each position of each row, different for each seed.
fn new(seed: u64, rows: usize, length: usize) -> Array {
    let key = random::Key::new(seed).unwrap();
    random::normal(0.0, 1.0, [rows as i32, HEADS, length as i32, DIM], Dtype::Float32, &key).unwrap()
}

/// A forward pass over `x`, `[B, H, L, D]`.
fn pass(state: &mut State, x: &Array) -> strata_state::Result<Vec<Array>> {
    let length = x.dim(2);
    let phase = if length == 1 { Phase::Decode } else { Phase::Window };
    let one = x.slice_axis(1, 0, 1)?;
    let mut outs = Vec::new();
    for (index, kind) in LAYERS.iter().enumerate() {
        let layer = state.layer(index);
        outs.push(match kind {
            LayerKind::Recurrent { .. } => {
                let recurrence: Rc<dyn Recurrence> = Rc::new(Leaky);
                layer.recur(&[one.squeeze(&[1])?], &recurrence, phase)?
            }
            LayerKind::Latent { .. } => layer.append(&one, &one, phase)?.attend_latent(x, x, 0.1)?,
            _ => layer.append(x, x, phase)?.attend(x, 0.2)?,
        });
    }
    state.advance(length as usize);
    Ok(outs)
}

fn read(state: &mut State, seed: u64, length: usize) {
    let x = new(seed, state.rows(), length);
    let outs = pass(state, &x).unwrap();
    eval(outs.iter().chain(state.arrays())).unwrap();
}

/// Everything that a state holds and says of itself.
fn contents(state: &State) -> (Vec<usize>, Vec<Vec<u8>>) {
    let mut bytes = Vec::new();
    for row in 0..state.rows() {
        let mut alone = state.extract(row).unwrap();
        for layer in 0..alone.len() {
            let parts = alone.layer(layer).live_parts().unwrap();
            bytes.extend(parts.iter().map(|(_, part)| part.to_bytes().unwrap()));
        }
    }
    (state.row_positions(), bytes)
}

/// What a step gives from here on.
fn next(state: &State) -> Vec<Vec<u8>> {
    let mut fork = state.fork(state.position()).unwrap();
    let x = new(99, fork.rows(), 1);
    pass(&mut fork, &x).unwrap().iter().map(|out| out.to_bytes().unwrap()).collect()
}

fn active(state: &State) -> usize {
    eval(state.arrays()).unwrap();
    // The evaluating thread lets go of its buffers a little later.
    Stream::current().unwrap().synchronize().unwrap();
    memory::active_memory().unwrap()
}

/// A sequence that has wrapped its ring and a shorter one, as a batch, and a third by itself.
fn batch(kv: &KvScheme) -> (State, State) {
    let template = empty(kv);
    let sequence = |seed, length| {
        let mut state = template.clone();
        read(&mut state, seed, length);
        read(&mut state, seed + 1, 1);
        state
    };
    let mut batch = State::merge(&[&sequence(1, 8), &sequence(3, 2)]).unwrap();
    read(&mut batch, 5, 1);
    (batch, sequence(7, 5))
}

/// What an operation has at hand besides the batch: another sequence, an empty one, and three positions of two rows.
struct Others {
    other: State,
    empty: State,
    x: Array,
}

type Operation = (&'static str, fn(&mut State, &Others) -> strata_state::Result<()>);

/// What is asked of a batch. What succeeds changes it.
const OPERATIONS: [Operation; 11] = [
    ("merge", |batch, Others { other, .. }| {
        State::merge(&[other, batch, other]).map(|merged| *batch = merged)
    }),
    ("join", |batch, Others { other, .. }| batch.join(other)),
    ("filter", |batch, _| batch.filter(&[1])),
    ("reorder", |batch, _| batch.filter(&[1, 0, 1])),
    ("extract", |batch, _| batch.extract(1).map(|row| *batch = row)),
    ("pad on the right", |batch, Others { x, .. }| {
        let mut after = batch.clone();
        after.begin_padded(&[1, 3], Side::Right)?;
        pass(&mut after, x)?;
        after.end_padded()?;
        *batch = after;
        Ok(())
    }),
    ("a round that is accepted", |batch, Others { x, .. }| {
        let mut round = batch.begin()?;
        eval(&pass(&mut round, x)?)?;
        round.accept();
        Ok(())
    }),
    ("a round that keeps as much of each row", |batch, Others { x, .. }| {
        let mut round = batch.begin()?;
        eval(&pass(&mut round, x)?)?;
        round.commit(&[2, 2])
    }),
    ("a round that keeps more of one row", |batch, Others { x, .. }| {
        let mut round = batch.begin()?;
        eval(&pass(&mut round, x)?)?;
        round.commit(&[3, 1])
    }),
    ("a file", |batch, Others { other, empty, .. }| {
        let tokens = vec![4; other.position()];
        let file = other.snapshot("m", &tokens)?.encode();
        let restored = Snapshot::decode(&file).expect("decodes").restore(empty)?;
        batch.join(&restored)
    }),
    ("a prefix", |batch, Others { other, .. }| {
        let mut cache = PrefixCache::new(1 << 30);
        let tokens = vec![4; other.position()];
        cache.insert("m", &tokens, other)?;
        let found = cache.find("m", &[&tokens[..], &[5]].concat())?.expect("it was kept");
        batch.join(&found)
    }),
];

#[test]
fn an_operation_that_fails_at_any_call_has_not_been_asked_for() {
    let _alone = alone();
    for kv in schemes() {
        let (mut batch, other) = batch(&kv);
        let expected = (contents(&batch), next(&batch), contents(&other));
        let others = Others { other, empty: empty(&kv), x: new(20, 2, 3) };
        eval([&others.x]).unwrap();
        for (name, operation) in OPERATIONS {
            // The first time also makes what layers keep for each other: masks, pages.
            let mut warm = batch.clone();
            operation(&mut warm, &others).unwrap();
            drop(warm);
            let mut held = None;
            for call in 1.. {
                let mut after = batch.clone();
                let (done, failed) = faults::at_call(call, || operation(&mut after, &others));
                let what = format!("{kv:?}, {name}, call {call}");
                if !failed {
                    done.unwrap();
                    assert!(call > 5, "{what}: there is something to fail");
                    break;
                }
                assert!(done.unwrap_err().to_string().contains("failed to order"), "{what}");
                assert_eq!(contents(&after), expected.0, "{what}");
                if call % 6 > 1 {
                    continue; // the rest takes a while
                }
                assert!(next(&after) == expected.1, "{what}: it goes on as before");
                drop(after);
                // Writes of pages that wait for the pool's next use are done with.
                assert!(next(&batch) == expected.1, "{what}");
                let now = active(&batch);
                let before = *held.get_or_insert(now);
                // A pool grows by half when it has no free page; pages that were not given back would have it grow on.
                let slack = if kv.page.is_some() { before / 2 } else { 0 };
                assert!(now.abs_diff(before) <= slack, "{what}: {now} bytes are held, {before} before");
            }
        }
        assert_eq!((contents(&batch), contents(&others.other)), (expected.0, expected.2), "{kv:?}");
        read(&mut batch, 30, 1);
    }
}

/// Fails when it is evaluated.
#[derive(PartialEq)]
struct Broken;

impl HostKernel for Broken {
    const NAME: &'static CStr = c"broken";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<smallvec::SmallVec<[Meta; 2]>, String> {
        Ok(inputs.iter().cloned().collect())
    }

    fn run(&self, _: &[View<'_>], _: &mut [ViewMut<'_>]) -> Result<(), String> {
        Err("breaks".to_owned())
    }
}

fn broken(x: &Array) -> Array {
    apply(Broken, &[x]).unwrap().remove(0)
}

#[test]
fn a_round_that_fails_while_it_is_evaluated_has_not_been_begun() {
    let _alone = alone();
    for kv in schemes() {
        let (mut batch, _) = batch(&kv);
        let expected = (contents(&batch), next(&batch));
        for length in [1, 2, 5] {
            for evaluated in [true, false] {
                let mut round = batch.begin().unwrap();
                let outs = pass(&mut round, &broken(&new(40, 2, length))).unwrap();
                if evaluated {
                    let arrays = outs.iter().chain(round.arrays());
                    assert!(eval(arrays).unwrap_err().to_string().contains("breaks"), "{kv:?}");
                }
                drop(outs);
                drop(round);
                let what = format!("{kv:?}, {length} positions, evaluated: {evaluated}");
                assert_eq!(contents(&batch), expected.0, "{what}");
                assert!(next(&batch) == expected.1, "{what}: it goes on as before");
            }
        }
        // Another round is as if none had failed.
        let mut round = batch.begin().unwrap();
        let outs = pass(&mut round, &new(41, 2, 3)).unwrap();
        eval(&outs).unwrap();
        round.commit(&[1, 3]).unwrap();
        assert_eq!(batch.row_positions(), [11, 7]);
    }
}

#[test]
fn a_sequence_that_cannot_be_evaluated_does_not_join() {
    let _alone = alone();
    for kv in schemes() {
        let (mut batch, other) = batch(&kv);
        let expected = (contents(&batch), next(&batch));
        let mut held = None;
        // The first time also makes masks, which layers keep for each other.
        for length in [1, 3, 1, 3] {
            let poisoned = || {
                let mut poisoned = other.clone();
                pass(&mut poisoned, &broken(&new(50, 1, length))).unwrap();
                poisoned
            };
            let refused = |result: strata_state::Result<()>| {
                assert!(result.unwrap_err().to_string().contains("breaks"), "{kv:?}");
            };
            refused(batch.join(&poisoned()));
            refused(State::merge(&[&batch, &poisoned()]).map(drop));
            refused(poisoned().filter(&[0]));
            refused(poisoned().extract(0).map(drop));
            refused(poisoned().snapshot("m", &vec![1; 6 + length]).map(drop));
            let mut cache = PrefixCache::new(1 << 30);
            refused(cache.insert("m", &vec![1; 6 + length], &poisoned()).map(drop));
            assert!(cache.is_empty() && cache.bytes() == 0);
            held = held.or((length == 3).then(|| active(&batch)));
        }
        assert_eq!((contents(&batch), next(&batch)), expected, "{kv:?}");
        // A pool keeps the pages that it has grown by; the rest is given back.
        assert!(kv.page.is_some() || Some(active(&batch)) == held, "{kv:?}");
    }
}

#[test]
fn a_sequence_that_fails_is_the_only_one_that_does() {
    let _alone = alone();
    for kv in schemes() {
        let (batch, other) = batch(&kv);
        let tokens = vec![4; other.position()];
        let mut prefixes = PrefixCache::new(1 << 30);
        assert!(prefixes.insert("m", &tokens, &other).unwrap());
        let expected = (contents(&batch), next(&batch), contents(&other), next(&other));
        for length in [1, 3, 20] {
            for evaluated in ["nothing", "the first layer", "everything"] {
                let what = format!("{kv:?}, {length} positions, evaluated: {evaluated}");
                let mut failing = other.clone();
                let outs = pass(&mut failing, &broken(&new(60, 1, length))).unwrap();
                let count = match evaluated {
                    "nothing" => 0,
                    "the first layer" => 1,
                    _ => outs.len(),
                };
                let done = eval(&outs[..count]);
                assert!(count == 0 || done.unwrap_err().to_string().contains("breaks"), "{what}");
                assert!(next(&batch) == expected.1, "{what}: a batch goes on");
                assert!(next(&other) == expected.3, "{what}: what it was cloned from goes on");
                let found = prefixes.find("m", &[&tokens[..], &[5]].concat()).unwrap().expect("it was kept");
                assert!(next(&found) == expected.3, "{what}: a prefix goes on");
                let mut joined = batch.clone();
                joined.join(&found).unwrap();
                assert_eq!((contents(&batch), contents(&other)), (expected.0.clone(), expected.2.clone()));
                if count == 0 {
                    // Its failure has not been reported to it yet.
                    let error = failing.extract(0).unwrap_err().to_string();
                    assert!(error.contains("breaks"), "{what}: {error}");
                }
            }
        }
    }
}

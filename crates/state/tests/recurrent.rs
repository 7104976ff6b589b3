//! Recurrent layers: padding, rounds and rows, with a recurrence whose steps are easy to follow.

#[path = "support/leaky.rs"]
mod leaky;

use leaky::{Leaky, TAIL};
use std::rc::Rc;
use strata_contracts::{Composition, KernelSet, LayerKind};
use strata_state::{Error, Phase, PrefixCache, Recurrence, Side, State};
use strata_tensor::{Array, Dtype, ops, random};

const CHANNELS: i32 = 3;

fn state() -> State {
    let kind = LayerKind::Recurrent { channels: CHANNELS as u32, tail: TAIL as u32, state: CHANNELS as u32 };
    let composition = Composition { kernels: KernelSet::Reference, ..Composition::default() };
    State::compose(&[kind], &composition).unwrap()
}

fn inputs(seed: u64, length: usize) -> Array {
    let key = random::Key::new(seed).unwrap();
    random::normal(0.0, 1.0, [1, length as i32, CHANNELS], Dtype::Float32, &key).unwrap()
}

fn read(state: &mut State, x: &Array, phase: Phase) -> Array {
    let recurrence: Rc<dyn Recurrence> = Rc::new(Leaky);
    let out = state.layer(0).recur(std::slice::from_ref(x), &recurrence, phase).unwrap();
    state.advance(x.dim(1) as usize);
    out
}

fn memory(state: &mut State) -> Vec<Vec<u8>> {
    state.layer(0).live_parts().unwrap().iter().map(|(_, part)| part.to_bytes().unwrap()).collect()
}

fn span(x: &Array, start: usize, stop: usize) -> Array {
    x.slice_axis(1, start as i32, stop as i32).unwrap()
}

fn stacked(rows: &[Array]) -> Array {
    ops::concatenate(&rows.iter().collect::<Vec<_>>(), 0).unwrap()
}

#[test]
fn b06_padding_never_touches_conv_or_recurrent_state() {
    for side in [Side::Left, Side::Right] {
        let rows = [inputs(1, 3), inputs(2, 11)];
        let pad = inputs(3, 8);
        let padded = match side {
            Side::Left => ops::concatenate(&[&pad, &rows[0]], 1).unwrap(),
            Side::Right => ops::concatenate(&[&rows[0], &pad], 1).unwrap(),
        };
        let mut batch = state();
        batch.begin_padded(&[3, 11], side).unwrap();
        for start in [0, 4, 8] {
            let stop = 11.min(start + 4);
            let x = stacked(&[span(&padded, start, stop), span(&rows[1], start, stop)]);
            read(&mut batch, &x, Phase::Window);
        }
        batch.end_padded().unwrap();
        assert_eq!(batch.row_positions(), [3, 11]);
        let steps = [inputs(4, 1), inputs(5, 1)];
        let together = read(&mut batch, &stacked(&steps), Phase::Decode);
        for (row, (x, step)) in rows.iter().zip(&steps).enumerate() {
            let mut alone = state();
            read(&mut alone, x, Phase::Window);
            let out = read(&mut alone, step, Phase::Decode);
            let row_out = together.slice_axis(0, row as i32, row as i32 + 1).unwrap();
            assert_eq!(out.to_bytes().unwrap(), row_out.to_bytes().unwrap(), "{side:?}, row {row}");
            assert_eq!(memory(&mut alone), memory(&mut batch.extract(row).unwrap()), "{side:?}, row {row}");
        }
    }
}

#[test]
fn b06_filtering_an_empty_batch_is_harmless() {
    let mut batch = State::merge(&[&state(), &state(), &state()]).unwrap();
    batch.filter(&[2, 0]).unwrap();
    assert_eq!(batch.row_positions(), [0, 0]);
    let x = stacked(&[inputs(1, 2), inputs(2, 2)]);
    read(&mut batch, &x, Phase::Window);
    assert_eq!(batch.row_positions(), [2, 2]);
}

#[test]
fn a_round_replays_the_kept_prefix_of_each_row() {
    let prompts = [inputs(1, 4), inputs(2, 6), inputs(3, 1)];
    let drafts = [inputs(4, 5), inputs(5, 5), inputs(6, 5)];
    let keep = [5, 0, 2];
    let mut alone: Vec<State> = prompts
        .iter()
        .map(|x| {
            let mut state = state();
            read(&mut state, x, Phase::Window);
            state
        })
        .collect();
    let mut batch = State::merge(&alone.iter().collect::<Vec<_>>()).unwrap();
    let mut round = batch.begin().unwrap();
    let all = stacked(&drafts);
    read(&mut round, &span(&all, 0, 3), Phase::Window);
    read(&mut round, &span(&all, 3, 5), Phase::Window);
    round.commit(&keep).unwrap();
    assert_eq!(batch.row_positions(), [9, 6, 3]);
    for (row, (state, n)) in alone.iter_mut().zip(keep).enumerate() {
        for t in 0..n {
            read(state, &span(&drafts[row], t, t + 1), Phase::Decode);
        }
        assert_eq!(memory(state), memory(&mut batch.extract(row).unwrap()), "row {row}");
    }
}

#[test]
fn b08_drafts_that_are_always_wrong_leave_no_trace_in_a_memory() {
    // The next input is made of the last output, as a greedy token would be.
    let next = |out: &Array| out.slice_axis(1, 0, 1).unwrap().multiply_number(1.7).unwrap().sin().unwrap();
    let (mut plain, mut drafted) = (state(), state());
    let prompt = inputs(1, 7);
    let last = |out: Array| out.slice_axis(1, 6, 7).unwrap();
    let mut input = next(&last(read(&mut plain, &prompt, Phase::Window)));
    read(&mut drafted, &prompt, Phase::Window);
    for step in 0..9 {
        let wrong = inputs(50 + step, 3);
        let mut round = drafted.begin().unwrap();
        let verified = read(&mut round, &ops::concatenate(&[&input, &wrong], 1).unwrap(), Phase::Window);
        round.commit(&[1]).unwrap();
        let expected = read(&mut plain, &input, Phase::Decode);
        let first = verified.slice_axis(1, 0, 1).unwrap();
        assert_eq!(first.to_bytes().unwrap(), expected.to_bytes().unwrap(), "step {step}");
        assert_eq!(memory(&mut drafted), memory(&mut plain), "step {step}");
        assert_eq!(drafted.position(), plain.position());
        assert!(drafted.trim(1).is_err(), "a memory says that it cannot go back");
        input = next(&expected);
    }
}

#[test]
fn a_dropped_round_leaves_the_memory_as_it_was() {
    let mut state = state();
    read(&mut state, &inputs(1, 4), Phase::Window);
    let before = memory(&mut state);
    let mut round = state.begin().unwrap();
    read(&mut round, &inputs(2, 3), Phase::Window);
    drop(round);
    assert_eq!(memory(&mut state), before);
    assert_eq!(state.position(), 4);
}

#[test]
fn known_positions_are_read_one_by_one() {
    let (mut together, mut single) = (state(), state());
    let x = inputs(1, 5);
    read(&mut together, &x, Phase::Committed);
    for t in 0..5 {
        read(&mut single, &span(&x, t, t + 1), Phase::Decode);
    }
    assert_eq!(memory(&mut together), memory(&mut single));
}

#[test]
fn a_memory_is_not_trimmed() {
    let mut state = state();
    read(&mut state, &inputs(1, 4), Phase::Window);
    assert_eq!(state.trimmable(), 0);
    assert!(matches!(state.trim(1), Err(Error::Trim { asked: 1, layer: 0, possible: 0 })));
}

#[test]
fn a_memory_serves_only_prompts_that_begin_with_all_of_it() {
    let mut cache = PrefixCache::new(1 << 30);
    let mut kept = state();
    read(&mut kept, &inputs(1, 7), Phase::Window);
    assert!(cache.insert("m", &[1, 2, 3, 4, 5, 6, 7], &kept).unwrap());
    assert!(cache.find("m", &[1, 2, 3, 4, 5, 9]).unwrap().is_none());
    assert!(cache.find("m", &[1, 2, 3, 4, 5, 6, 7]).unwrap().is_none(), "its last token must be read");
    for _ in 0..2 {
        let mut found = cache.find("m", &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap().unwrap();
        assert_eq!((found.position(), memory(&mut found)), (7, memory(&mut kept)));
        read(&mut found, &inputs(2, 3), Phase::Window);
    }
}

#[test]
fn keys_given_to_a_memory_are_refused() {
    let mut state = state();
    let x = ops::zeros([1, 1, 1, 1], Dtype::Float32).unwrap();
    let error = state.layer(0).append(&x, &x, Phase::Decode).unwrap_err();
    assert_eq!(error.to_string(), "a recurrent memory was given keys and values");
}

//! What states cost in MLX's own count, and that failed operations leave neither changes nor memory behind. One test at a
//! time: the count is the process's.

#[path = "support/leaky.rs"]
mod leaky;

use leaky::{Leaky, TAIL};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, LayerKv, QuantScheme};
use strata_state::{Error, LayerState, Phase, Recurrence, Side, State, bytes_per_token, projected_bytes};
use strata_tensor::{Array, Dtype, eval, memory, ops};

static ALONE: Mutex<()> = Mutex::new(());

const FULL: LayerKind = LayerKind::Full { kv_heads: 2, head_dim: 32 };
const RING: LayerKind = LayerKind::Sliding { kv_heads: 2, head_dim: 32, window: 64 };
const LATENT: LayerKind = LayerKind::Latent { rank: 64, rope_dim: 32 };
const MEMORY: LayerKind = LayerKind::Recurrent { channels: 64, tail: TAIL as u32, state: 64 };

/// MLX's allocator rounds a buffer up to a page at most.
const PAGE: usize = 16 << 10;

fn composition(format: KvFormat) -> Composition {
    let kv = KvScheme { format, ..KvScheme::default() };
    Composition { kernels: KernelSet::Reference, kv, ..Composition::default() }
}

fn normal(rows: i32, length: usize) -> Array {
    let key = strata_tensor::random::Key::new(length as u64).unwrap();
    strata_tensor::random::normal(0.0, 1.0, [rows, 2, length as i32, 32], Dtype::Float32, &key).unwrap()
}

fn read(state: &mut State, length: usize) {
    let rows = state.rows() as i32;
    for layer in 0..state.len() {
        let new = normal(rows, length);
        // The two heads of 32 values are one latent vector of 64.
        let latent = new.transpose(&[0, 2, 1, 3]).unwrap().reshape([rows, 1, length as i32, 64]).unwrap();
        let rope = new.slice_axis(1, 0, 1).unwrap();
        let layer = state.layer(layer);
        if let LayerState::Recurrent(_) = layer {
            let recurrence: Rc<dyn Recurrence> = Rc::new(Leaky);
            layer.recur(&[latent.squeeze(&[1]).unwrap()], &recurrence, Phase::Window).unwrap();
            continue;
        }
        let appended = layer.append(&new, &new, Phase::Window);
        appended.or_else(|_| layer.append(&latent, &rope, Phase::Window)).unwrap();
    }
    state.advance(length);
    eval(state.arrays()).unwrap();
}

fn active() -> usize {
    memory::active_memory().unwrap()
}

#[test]
fn projected_bytes_are_those_that_mlx_holds() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let affine = KvFormat::Affine(QuantScheme::affine(4, 32).unwrap());
    let turbo = KvFormat::Turbo { keys: 4, values: 3 };
    let some = |layer| LayerKv { layer, scheme: QuantScheme::affine(8, 32).unwrap() };
    for (format, start, layers) in [
        (KvFormat::Plain, 0, vec![FULL]),
        (KvFormat::Plain, 0, vec![FULL, RING, FULL]),
        (KvFormat::Plain, 0, vec![LATENT, MEMORY]),
        (affine.clone(), 0, vec![FULL, RING]),
        (affine.clone(), 0, vec![FULL, MEMORY]),
        (affine.clone(), 0, vec![LATENT, LATENT]),
        (affine, 40, vec![FULL, RING, LATENT]),
        (turbo.clone(), 0, vec![FULL, LATENT]),
        (turbo, 40, vec![RING, FULL]),
        (KvFormat::Layers(vec![some(2), some(1)]), 0, vec![FULL, RING, FULL, LATENT]),
    ] {
        for rows in [1, 3] {
            let mut composition = composition(format.clone());
            composition.kv.start = start;
            let project =
                |tokens| projected_bytes(&layers, &composition, Dtype::Float32, rows, tokens).unwrap();
            assert_eq!(project(0), 0);
            let before = active();
            let mut state = State::compose(&layers, &composition).unwrap();
            if rows > 1 {
                state.begin_padded(&vec![0; rows], Side::Left).unwrap();
                state.end_padded().unwrap();
            }
            let check = |state: &State| {
                let (held, projected) = (active() - before, project(state.position()));
                let what =
                    format!("{layers:?}, {format:?} from {start} on, {rows} rows of {}", state.position());
                assert_eq!(state.bytes(), projected, "{what}");
                let buffers = state.arrays().len();
                assert!(
                    (projected..=projected + buffers * PAGE).contains(&held),
                    "{held}, not {projected}: {what}"
                );
                held
            };
            for (span, single) in [(50, 14), (300, 30), (1, 600)] {
                read(&mut state, span);
                (0..single).for_each(|_| read(&mut state, 1));
                check(&state);
            }
            // Between two lengths that buffers have just grown to, the growth is that of the tokens.
            let mut held = [0; 2];
            for (held, length) in held.iter_mut().zip([1024, 2048]) {
                let more = length - state.position() - 1;
                read(&mut state, more);
                // A ring lets go of what a span has pushed out of its window when the next token comes.
                read(&mut state, 1);
                *held = check(&state);
            }
            let slope = 1024 * rows * bytes_per_token(&layers, &composition, Dtype::Float32).unwrap();
            assert!(held[1].abs_diff(held[0] + slope) <= state.arrays().len() * PAGE, "{held:?}, {slope}");
            drop(state);
            assert_eq!(active(), before, "all of it is given back");
        }
    }
}

#[test]
fn pages_take_the_bytes_that_are_projected_in_a_pool_that_grows_by_half() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for format in [
        KvFormat::Plain,
        KvFormat::Affine(QuantScheme::affine(4, 32).unwrap()),
        KvFormat::Turbo { keys: 4, values: 3 },
    ] {
        let mut composition = composition(format);
        composition.kv.page = Some(16);
        let layers = [FULL, LATENT];
        let project = |tokens| projected_bytes(&layers, &composition, Dtype::Float32, 1, tokens).unwrap();
        let before = active();
        let mut state = State::compose(&layers, &composition).unwrap();
        for (span, single) in [(50, 14), (300, 30), (1, 200)] {
            read(&mut state, span);
            (0..single).for_each(|_| read(&mut state, 1));
            let (held, projected) = (active() - before, project(state.position()));
            assert_eq!(state.bytes(), projected, "at {}", state.position());
            // Eight pages at least, and the buffers and small arrays of both pools.
            let most = projected + projected / 2 + project(16) * 8 + 12 * PAGE;
            assert!((projected..=most).contains(&held), "{held} held, {projected} projected, {most} at most");
        }
        let slope = (project(4096) - project(2048)) / 2048;
        assert_eq!(slope, bytes_per_token(&layers, &composition, Dtype::Float32).unwrap());
        drop(state);
        assert_eq!(active(), before, "all of it is given back");
    }
}

#[test]
fn a_memory_does_not_hold_the_span_that_it_has_read() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = active();
    let mut state = State::compose(&[MEMORY], &composition(KvFormat::Plain)).unwrap();
    read(&mut state, 1000);
    let held = active() - before;
    assert!(held <= state.bytes() + 2 * PAGE, "{held} held, {} of it known", state.bytes());
}

/// Keys that cannot be stored, given to one layer of a pass.
fn failing_pass(state: &mut State, length: usize, failing: usize) -> Result<(), Error> {
    let rows = state.rows() as i32;
    for layer in 0..state.len() {
        let new = normal(rows, length);
        let bad = ops::zeros([rows, 3, length as i32, 32], Dtype::Float32)?;
        state.layer(layer).append(if layer == failing { &bad } else { &new }, &new, Phase::Window)?;
    }
    state.advance(length);
    Ok(())
}

fn contents(state: &State) -> Vec<Vec<u8>> {
    let mut contents = Vec::new();
    for row in 0..state.rows() {
        let mut alone = state.extract(row).unwrap();
        for layer in 0..alone.len() {
            let parts = alone.layer(layer).live_parts().unwrap();
            contents.extend(parts.iter().map(|(_, part)| part.to_bytes().unwrap()));
        }
    }
    contents
}

#[test]
fn a_failed_operation_leaves_the_batch_as_it_was() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let layers = [FULL, RING, FULL];
    for format in [KvFormat::Plain, KvFormat::Affine(QuantScheme::affine(8, 32).unwrap())] {
        let new = || State::compose(&layers, &composition(format.clone())).unwrap();
        let (mut a, mut b) = (new(), new());
        read(&mut a, 70);
        read(&mut b, 3);
        let mut batch = State::merge(&[&a, &b]).unwrap();
        drop((a, b));
        read(&mut batch, 1);
        let expected = contents(&batch);
        // The first time also makes the masks that layers keep for each other, which are as many ever after.
        let before = [(); 3].map(|()| {
            fail_in_every_way(&mut batch, &layers, &format);
            eval(batch.arrays()).unwrap();
            active()
        });
        assert_eq!(contents(&batch), expected);
        eval(batch.arrays()).unwrap();
        assert_eq!(before, [before[0]; 3], "no memory is left behind");
        read(&mut batch, 1);
        assert_eq!(batch.row_positions(), [72, 5]);
    }
}

fn fail_in_every_way(batch: &mut State, layers: &[LayerKind; 3], format: &KvFormat) {
    let compose = |layers: &[LayerKind]| State::compose(layers, &composition(format.clone())).unwrap();
    let new = || compose(layers);
    let other_layers = [FULL, RING, LayerKind::Full { kv_heads: 2, head_dim: 64 }];
    for failing in 0..3 {
        for length in [1, 4] {
            let mut round = batch.begin().unwrap();
            failing_pass(&mut round, length, failing).unwrap_err();
            drop(round);
        }
    }
    let mut round = batch.begin().unwrap();
    failing_pass(&mut round, 2, 9).unwrap();
    assert!(matches!(round.commit(&[3, 1]), Err(Error::Keep { row: 0, asked: 3, appended: 2 })));
    let mut round = batch.begin().unwrap();
    failing_pass(&mut round, 2, 9).unwrap();
    assert!(matches!(round.join(&new()), Err(Error::InRound)));
    assert!(matches!(round.filter(&[0]), Err(Error::InRound)));
    assert!(matches!(round.trim(1), Err(Error::InRound)));
    assert!(matches!(round.begin(), Err(Error::InRound)));
    assert!(matches!(round.commit(&[1]), Err(Error::Lengths { given: 1, rows: 2 })));

    assert!(matches!(batch.filter(&[]), Err(Error::NoRows)));
    assert!(matches!(batch.filter(&[0, 2]), Err(Error::NoSuchRow { row: 2, rows: 2 })));
    assert!(matches!(batch.extract(5), Err(Error::NoSuchRow { row: 5, rows: 2 })));
    assert!(matches!(batch.begin_padded(&[1], Side::Right), Err(Error::Lengths { given: 1, rows: 2 })));
    assert!(matches!(batch.begin_padded(&[1, 2], Side::Left), Err(Error::LeftPadding { .. })));
    assert!(matches!(batch.trim(5), Err(Error::Trim { asked: 5, .. })));
    assert!(matches!(batch.join(&compose(&layers[..2])), Err(Error::Unlike { layer: 2, .. })));
    // Other heads, which the declarations tell apart.
    assert!(matches!(batch.join(&compose(&other_layers)), Err(Error::Unlike { layer: 2, .. })));
    // Wider values, found when the third layer's arrays are put together, after two layers were prepared.
    let mut wide = new();
    for layer in [0, 1, 2, 0, 1, 2] {
        let keys = ops::zeros([1, 2, 5, 32], Dtype::Float32).unwrap();
        let values = ops::zeros([1, 2, 5, if layer == 2 { 64 } else { 32 }], Dtype::Float32).unwrap();
        wide.layer(layer).append(&keys, &values, Phase::Window).unwrap();
    }
    wide.advance(10);
    assert!(matches!(batch.join(&wide), Err(Error::Tensor(_))));
}

#[test]
fn an_extracted_row_does_not_hold_the_batch() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for format in [KvFormat::Plain, KvFormat::Affine(QuantScheme::affine(8, 32).unwrap())] {
        let before = active();
        let mut state = State::compose(&[FULL, RING], &composition(format)).unwrap();
        read(&mut state, 200);
        let mut batch = State::merge(&[&state, &state, &state, &state]).unwrap();
        drop(state);
        read(&mut batch, 1);
        let whole = active() - before;
        let row = batch.extract(2).unwrap();
        drop(batch);
        let held = active() - before;
        assert!(held * 3 < whole, "{held} of {whole}");
        assert!(held <= row.bytes() + row.arrays().len() * PAGE);
    }
}

#[test]
fn b46_rows_that_finished_or_were_cancelled_hold_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let affine = KvFormat::Affine(QuantScheme::affine(8, 32).unwrap());
    for format in [KvFormat::Plain, affine, KvFormat::Turbo { keys: 4, values: 4 }] {
        let composition = composition(format);
        let empty = || State::compose(&[FULL, RING, LATENT], &composition).unwrap();
        let held = |requests: usize| {
            let before = active();
            let mut batch: Option<State> = None;
            for request in 0..requests {
                let mut row = empty();
                read(&mut row, 3 + request % 90);
                match &mut batch {
                    Some(batch) => batch.join(&row).unwrap(),
                    none => *none = Some(State::merge(&[&row]).unwrap()),
                }
                let running = batch.as_mut().unwrap();
                read(running, 1);
                // Every other one is cancelled in the middle of a pass that is never read.
                if request % 2 == 0 {
                    let mut round = running.begin().unwrap();
                    failing_pass(&mut round, 2, 1).unwrap_err();
                }
                if running.rows() > 3 {
                    let rows: Vec<usize> = (0..running.rows()).filter(|row| row % 2 == request % 2).collect();
                    running.filter(&rows).unwrap();
                }
            }
            let peak = active() - before;
            drop(batch);
            assert_eq!(active(), before, "all of it is given back");
            peak
        };
        let (few, many) = (held(30), held(100));
        assert!(many <= few + few / 2, "{many} bytes held after 100 requests, {few} after 30");
    }
}

#[test]
fn decoding_in_a_round_copies_no_buffer_of_a_full_layer() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut state =
        State::compose(&[LayerKind::Full { kv_heads: 8, head_dim: 64 }], &composition(KvFormat::Plain))
            .unwrap();
    let new = |length: i32| ops::zeros([1, 8, length, 64], Dtype::Float32).unwrap();
    state.layer(0).append(&new(5000), &new(5000), Phase::Window).unwrap();
    state.advance(5000);
    eval(state.arrays()).unwrap();
    let buffer = state.bytes() / 2;
    for keep in [0, 1, 3] {
        memory::reset_peak_memory().unwrap();
        let before = active();
        let mut round = state.begin().unwrap();
        round.layer(0).append(&new(3), &new(3), Phase::Window).unwrap();
        round.advance(3);
        eval(round.arrays()).unwrap();
        round.commit(&[keep]).unwrap();
        eval(state.arrays()).unwrap();
        let more = memory::peak_memory().unwrap() - before;
        assert!(more < buffer / 2, "{more} more bytes beside a buffer of {buffer}");
    }
}

//! A row of a batch gets what it gets alone: sequences are read, join, step, go on trial, leave and come back in random
//! order, in every layout of keys and values, on the reference operations and on fast kernels.
//!
//! Logits are near those of the sequence alone and have the same largest one; in reference mode they are the same bit for
//! bit while rows are of equal length, whatever keys and values are rounded to (docs/parity.md: a row alone against the same row in a batch).

use std::path::Path;
use strata_artifacts::ModelDir;
use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use strata_models::Graph;
use strata_state::{Phase, Side, State};
use strata_tensor::Array;

/// Rows of a batch lie elsewhere than alone, so sums have another order: some roundings of float32 logits of a few units. It
/// is the same bound for numbers rounded to a format with few values: another order would have to carry one over to the next
/// value, which the fixed seeds do not meet.
const BOUND: f32 = 2e-5;
const VOCABULARY: usize = 101;
/// More than two windows of the sliding models, which are 8.
const LONGEST: usize = 22;

struct Random(u64);

impl Random {
    /// `0 .. n` (splitmix64).
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

struct Model {
    graph: Box<dyn Graph>,
    empty: State,
    /// What a prompt reads of itself depends on the pieces that it is read in: a format applies from the next pass on.
    whole: bool,
    /// Tokens from which on a sequence has its format.
    start: usize,
}

impl Model {
    fn load(variant: &str, composition: &Composition) -> Self {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/parity").join(variant).join("model");
        let folder = ModelDir::open(&folder).expect("a model folder");
        let graph = strata_models::load(&folder, composition).expect("loads");
        let empty = State::compose(&graph.declaration().layers, composition).expect("composes");
        let plain = composition.kv.format == KvFormat::Plain;
        let sliding = graph.declaration().layers.iter().any(|l| matches!(l, LayerKind::Sliding { .. }));
        let whole = !plain && (composition.kv.page.is_none() || sliding);
        Self { graph, empty, whole, start: composition.kv.start as usize }
    }

    /// Positions that rows can take together before one of them changes its format: within a round none does, alone it would.
    fn before_change(&self, batch: Option<&State>) -> usize {
        let positions = batch.map_or_else(Vec::new, State::row_positions);
        let left = positions.iter().filter_map(|position| self.start.checked_sub(position + 1));
        left.min().unwrap_or(usize::MAX)
    }

    /// Logits of every position of rows of equal length.
    fn forward(&self, rows: &[Vec<i32>], state: &mut State) -> Vec<Vec<Vec<f32>>> {
        let length = rows[0].len();
        let tokens = Array::from_slice(&rows.concat(), [rows.len() as i32, length as i32]).expect("tokens");
        let phase = if length == 1 { Phase::Decode } else { Phase::Window };
        let hidden = self.graph.hidden(&tokens, state, phase).expect("runs");
        let logits = self.graph.logits(&hidden).expect("runs").to_vec::<f32>().expect("logits");
        let rows = logits.chunks(length * VOCABULARY);
        rows.map(|row| row.chunks(VOCABULARY).map(<[f32]>::to_vec).collect()).collect()
    }

    /// What a sequence gets alone: greedy tokens and the logits that they have the largest of.
    fn alone(&self, prompt: Vec<i32>, count: usize) -> Sequence {
        let mut state = self.empty.clone();
        let mut next = self.forward(std::slice::from_ref(&prompt), &mut state)[0].pop().expect("logits");
        let (mut tokens, mut logits) = (Vec::new(), Vec::new());
        for _ in 0..count {
            tokens.push(largest(&next));
            logits.push(next);
            next = self.forward(&[vec![tokens[tokens.len() - 1]]], &mut state)[0].pop().expect("logits");
        }
        Sequence { prompt, tokens, logits }
    }
}

fn largest(logits: &[f32]) -> i32 {
    let largest = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    largest.expect("a vocabulary").0 as i32
}

struct Sequence {
    prompt: Vec<i32>,
    tokens: Vec<i32>,
    logits: Vec<Vec<f32>>,
}

impl Sequence {
    /// The token that is fed after `got` tokens have been.
    fn fed(&self, got: usize) -> i32 {
        self.tokens[got - 1]
    }

    #[track_caller]
    fn check(&self, got: usize, logits: &[f32], what: &str) {
        let expected = &self.logits[got];
        let far = logits.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < BOUND, "{what}: token {got} of a prompt of {} is {far} away", self.prompt.len());
        assert_eq!(self.tokens[got], largest(logits), "{what}: token {got}");
    }
}

/// A running batch and those that are not in it.
struct Run<'a> {
    model: &'a Model,
    sequences: Vec<Sequence>,
    /// Not read yet.
    waiting: Vec<usize>,
    /// Taken out of the batch: sequence, tokens it has got, state.
    parked: Vec<(usize, usize, State)>,
    batch: Option<State>,
    /// Of each row: sequence and tokens it has got, of which the last has not been fed.
    rows: Vec<(usize, usize)>,
    random: Random,
    what: String,
}

impl Run<'_> {
    fn go(&mut self) {
        let mut passes = 0;
        while !(self.waiting.is_empty() && self.parked.is_empty() && self.rows.is_empty()) {
            passes += 1;
            assert!(passes < 2000, "{}: it comes to an end", self.what);
            match self.random.below(10) {
                0 | 1 if !self.waiting.is_empty() => self.read_one(),
                2 if self.waiting.len() > 1 => self.read_together(),
                3 if !self.parked.is_empty() => self.unpark(),
                4 if !self.rows.is_empty() => self.park(),
                5 if self.rows.len() > 1 => self.shuffle(),
                6 | 7 if !self.rows.is_empty() => self.verify(),
                _ if !self.rows.is_empty() => self.step(),
                _ => {}
            }
            self.leave();
        }
    }

    fn join(&mut self, state: &State, rows: &[(usize, usize)]) {
        match &mut self.batch {
            Some(batch) => batch.join(state).expect("joins"),
            None => self.batch = Some(State::merge(&[state]).expect("merges")),
        }
        self.rows.extend(rows);
    }

    /// One prompt in random pieces.
    fn read_one(&mut self) {
        let index = self.waiting.remove(self.random.below(self.waiting.len()));
        let mut state = self.model.empty.clone();
        let mut rest = self.sequences[index].prompt.clone();
        let mut last = Vec::new();
        while !rest.is_empty() {
            let most = if self.model.whole { rest.len() } else { 1 + self.random.below(rest.len()) };
            let piece: Vec<i32> = rest.drain(..most).collect();
            last = self.model.forward(&[piece], &mut state)[0].pop().expect("logits");
        }
        self.sequences[index].check(0, &last, &self.what);
        self.join(&state, &[(index, 1)]);
    }

    /// Two or three prompts at once, padded on one side, in pieces.
    fn read_together(&mut self) {
        let count = 2 + self.random.below(2.min(self.waiting.len() - 1));
        let indices: Vec<usize> = self.waiting.drain(..count).collect();
        let prompts: Vec<Vec<i32>> = indices.iter().map(|&i| self.sequences[i].prompt.clone()).collect();
        let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let side = if self.random.below(2) == 0 { Side::Left } else { Side::Right };
        let padded = prompts.iter().map(|prompt| {
            let pad = vec![0; longest - prompt.len()];
            if side == Side::Left { [pad, prompt.clone()].concat() } else { [prompt.clone(), pad].concat() }
        });
        let padded: Vec<Vec<i32>> = padded.collect();
        let mut state = self.model.empty.clone();
        state.begin_padded(&lengths, side).expect("begins");
        let mut start = 0;
        while start < longest {
            let end = if self.model.whole { longest } else { longest.min(start + 1 + self.random.below(6)) };
            let pieces: Vec<Vec<i32>> = padded.iter().map(|row| row[start..end].to_vec()).collect();
            let logits = self.model.forward(&pieces, &mut state);
            for (row, (&index, length)) in indices.iter().zip(&lengths).enumerate() {
                let last = if side == Side::Left { longest - 1 } else { length - 1 };
                if (start..end).contains(&last) {
                    self.sequences[index].check(0, &logits[row][last - start], &self.what);
                }
            }
            start = end;
        }
        state.end_padded().expect("ends");
        self.join(&state, &indices.iter().map(|&index| (index, 1)).collect::<Vec<_>>());
    }

    fn park(&mut self) {
        let row = self.random.below(self.rows.len());
        let batch = self.batch.as_mut().expect("a batch");
        let alone = batch.extract(row).expect("extracts");
        let (index, got) = self.rows[row];
        self.parked.push((index, got, alone));
        self.keep(&(0..self.rows.len()).filter(|&r| r != row).collect::<Vec<_>>());
    }

    fn unpark(&mut self) {
        let (index, got, state) = self.parked.remove(self.random.below(self.parked.len()));
        self.join(&state, &[(index, got)]);
    }

    fn shuffle(&mut self) {
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        (1..order.len()).rev().for_each(|i| order.swap(i, self.random.below(i + 1)));
        self.keep(&order);
    }

    fn leave(&mut self) {
        let done = |&(index, got): &(usize, usize)| got >= self.sequences[index].tokens.len();
        let rows: Vec<usize> = (0..self.rows.len()).filter(|&row| !done(&self.rows[row])).collect();
        if rows.len() < self.rows.len() {
            self.keep(&rows);
        }
        self.parked.retain(|&(index, got, _)| got < self.sequences[index].tokens.len());
    }

    fn keep(&mut self, rows: &[usize]) {
        if rows.is_empty() {
            self.batch = None;
        } else {
            self.batch.as_mut().expect("a batch").filter(rows).expect("filters");
        }
        self.rows = rows.iter().map(|&row| self.rows[row]).collect();
    }

    fn step(&mut self) {
        let fed: Vec<Vec<i32>> =
            self.rows.iter().map(|&(index, got)| vec![self.sequences[index].fed(got)]).collect();
        let logits = self.model.forward(&fed, self.batch.as_mut().expect("a batch"));
        for ((index, got), logits) in self.rows.iter_mut().zip(logits) {
            self.sequences[*index].check(*got, &logits[0], &self.what);
            *got += 1;
        }
    }

    /// A verify round: each row has a draft that is right for a random while and then wrong; what is right is kept.
    fn verify(&mut self) {
        let most = (1 + self.random.below(4)).min(self.model.before_change(self.batch.as_ref()));
        let mut keep = Vec::new();
        let mut fed = Vec::new();
        for &(index, got) in &self.rows {
            let sequence = &self.sequences[index];
            let right = self.random.below(most + 1).min(sequence.tokens.len() - got);
            let mut row = vec![sequence.fed(got)];
            for i in 0..most {
                let token = sequence.tokens.get(got + i).copied().unwrap_or(0);
                row.push(if i < right { token } else { (token + 7) % VOCABULARY as i32 });
            }
            // The token fed and the drafts that are right; a dropped round keeps nothing.
            keep.push(right.min(sequence.tokens.len() - got - 1) + 1);
            fed.push(row);
        }
        let mut round = self.batch.as_mut().expect("a batch").begin().expect("begins");
        let logits = self.model.forward(&fed, &mut round);
        if self.random.below(4) == 0 {
            return; // the round is dropped
        }
        round.commit(&keep).expect("commits");
        for (row, ((index, got), keep)) in self.rows.iter_mut().zip(keep).enumerate() {
            for logits in &logits[row][..keep] {
                self.sequences[*index].check(*got, logits, &self.what);
                *got += 1;
            }
        }
    }
}

const PLAIN: KvScheme = KvScheme { format: KvFormat::Plain, start: 0, page: None };

/// Schemes for any heads, and those for heads of whole groups.
fn schemes(of_groups: bool) -> Vec<KvScheme> {
    let mut schemes = vec![PLAIN, KvScheme { page: Some(4), ..PLAIN }];
    if of_groups {
        let affine = KvFormat::Affine(QuantScheme::affine(8, 32).expect("a scheme"));
        let turbo = KvFormat::Turbo { keys: 4, values: 4 };
        schemes.push(KvScheme { format: affine.clone(), ..PLAIN });
        schemes.push(KvScheme { format: affine.clone(), page: Some(5), ..PLAIN });
        schemes.push(KvScheme { format: turbo.clone(), ..PLAIN });
        // Rows change their format one by one, between the passes of a batch and within rounds.
        schemes.push(KvScheme { format: affine, start: 9, ..PLAIN });
        schemes.push(KvScheme { format: turbo, start: 12, ..PLAIN });
    }
    schemes
}

/// Seeds are fixed: two logits within rounding of each other would change places in another order of sums.
fn rows_get_what_they_get_alone(variant: &str, of_groups: bool) {
    for kernels in [KernelSet::Reference, KernelSet::Fast] {
        for (i, kv) in schemes(of_groups).into_iter().enumerate() {
            let composition = Composition { kernels, kv, ..Composition::default() };
            let model = Model::load(variant, &composition);
            for seed in 0..4 {
                let mut random = Random(100 * i as u64 + seed);
                let sequences = (0..7).map(|_| {
                    let prompt = prompt(&mut random, 14);
                    model.alone(prompt, 2 + random.below(LONGEST - 2))
                });
                let sequences: Vec<Sequence> = sequences.collect();
                let waiting = (0..sequences.len()).collect();
                let what = format!("{variant}, {composition:?}, seed {seed}");
                let (parked, rows) = (Vec::new(), Vec::new());
                Run { model: &model, sequences, waiting, parked, batch: None, rows, random, what }.go();
            }
        }
    }
}

fn prompt(random: &mut Random, most: usize) -> Vec<i32> {
    (0..=random.below(most)).map(|_| random.below(VOCABULARY) as i32).collect()
}

#[test]
fn rows_of_full_attention_get_what_they_get_alone() {
    rows_get_what_they_get_alone("llama/f32", false);
    rows_get_what_they_get_alone("llama/kv", true);
}

#[test]
fn rows_of_sliding_attention_get_what_they_get_alone() {
    rows_get_what_they_get_alone("gemma3_text/f32", true);
}

#[test]
fn rows_of_mixed_attention_get_what_they_get_alone() {
    rows_get_what_they_get_alone("mistral/f32", false);
}

#[test]
fn rows_of_equal_length_give_the_bits_that_they_give_alone() {
    for (variant, of_groups) in
        [("llama/f32", false), ("llama/kv", true), ("gemma3_text/f32", true), ("mistral/f32", false)]
    {
        for kv in schemes(of_groups) {
            let composition = Composition { kernels: KernelSet::Reference, kv, ..Composition::default() };
            let model = Model::load(variant, &composition);
            let mut random = Random(5);
            let alone: Vec<Sequence> = (0..3)
                .map(|_| {
                    let prompt = (0..9).map(|_| random.below(VOCABULARY) as i32).collect();
                    model.alone(prompt, 14)
                })
                .collect();
            let mut batch = model.empty.clone();
            batch.begin_padded(&[9, 9, 9], Side::Left).expect("begins");
            let prompts: Vec<Vec<i32>> = alone.iter().map(|sequence| sequence.prompt.clone()).collect();
            let mut logits = model.forward(&prompts, &mut batch);
            batch.end_padded().expect("ends");
            for got in 0..14 {
                for (row, sequence) in alone.iter().enumerate() {
                    let found = logits[row].last().expect("a position");
                    assert!(*found == sequence.logits[got], "{variant}, {composition:?}, row {row}, {got}");
                }
                let fed: Vec<Vec<i32>> = alone.iter().map(|sequence| vec![sequence.tokens[got]]).collect();
                logits = model.forward(&fed, &mut batch);
            }
        }
    }
}

#[test]
fn b08_drafts_that_are_always_wrong_leave_no_trace_in_rings() {
    for kernels in [KernelSet::Reference, KernelSet::Fast] {
        let composition = Composition { kernels, ..Composition::default() };
        for variant in ["gemma3_text/f32", "mistral/f32"] {
            let model = Model::load(variant, &composition);
            // Windows are 8: the ring wraps during the run.
            let plain = model.alone(vec![3, 1, 4, 15, 92, 65, 35], 16);
            let mut state = model.empty.clone();
            model.forward(std::slice::from_ref(&plain.prompt), &mut state);
            for got in 1..16 {
                let token = plain.fed(got);
                let wrong = (plain.tokens[got] + 1) % VOCABULARY as i32;
                let mut round = state.begin().expect("begins");
                let logits = model.forward(&[vec![token, wrong, 5, 6]], &mut round);
                plain.check(got, &logits[0][0], variant);
                round.commit(&[1]).expect("commits");
            }
            // From here on the same bits as a state that never saw a draft.
            let mut cold = model.empty.clone();
            model.forward(std::slice::from_ref(&plain.prompt), &mut cold);
            for got in 1..16 {
                let mut round = cold.begin().expect("begins");
                model.forward(&[vec![plain.fed(got)]], &mut round);
                round.accept();
            }
            assert_eq!(state.row_positions(), cold.row_positions());
            let next = vec![vec![plain.tokens[15]]];
            let (found, expected) = (model.forward(&next, &mut state), model.forward(&next, &mut cold));
            let far = found[0][0].iter().zip(&expected[0][0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < BOUND, "{variant}: {far}");
            assert_eq!(largest(&found[0][0]), largest(&expected[0][0]));
        }
    }
}

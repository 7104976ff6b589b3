//! Every cache against a model that keeps whole histories: random sequences of operations on sequences and batches.
//!
//! After every forward pass the outputs of attention are near those of a plain computation in f64; at the end every row,
//! copied out, holds exactly the bits of its newest positions. A round that is ended leaves a state that continues bit for
//! bit like one that never saw what was rejected.

mod support;

use proptest::prelude::*;
use strata_contracts::{KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use support::World;

/// What is done next. Numbers choose among what is possible at that moment.
#[derive(Debug, Clone)]
enum Op {
    /// Positions, and whether they count as known ones.
    Append(usize, bool),
    Trim(usize),
    /// New rows, of these lengths, join.
    Join(Vec<usize>),
    /// These rows stay.
    Filter(Vec<usize>),
    Extract(usize),
    /// A copy goes on, after giving up some positions.
    Fork(usize),
    /// The next positions of each row, read together in spans of at most a length.
    Padded(Vec<usize>, usize, bool),
    /// Spans appended on trial, and how many positions of each row are kept; `None` drops the round.
    Round(Vec<usize>, Option<Vec<usize>>),
    /// Through a file and back.
    Save,
    /// A pass on trial that is accepted as it is.
    Accept(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..7usize, any::<bool>()).prop_map(|(n, known)| Op::Append(n, known)),
        6 => Just(Op::Append(1, false)),
        1 => (0..6usize).prop_map(Op::Trim),
        2 => prop::collection::vec(0..9usize, 1..3).prop_map(Op::Join),
        2 => prop::collection::vec(0..8usize, 1..4).prop_map(Op::Filter),
        1 => (0..8usize).prop_map(Op::Extract),
        1 => (0..4usize).prop_map(Op::Fork),
        2 => (prop::collection::vec(1..8usize, 4), 1..6usize, any::<bool>())
            .prop_map(|(lengths, span, left)| Op::Padded(lengths, span, left)),
        4 => (prop::collection::vec(1..5usize, 1..3), prop::option::of(prop::collection::vec(0..9usize, 4)))
            .prop_map(|(spans, keep)| Op::Round(spans, keep)),
        1 => Just(Op::Save),
        1 => (1..5usize).prop_map(Op::Accept),
    ]
}

fn apply(world: &mut World, op: Op) {
    match op {
        Op::Append(n, known) => world.append(n, known),
        Op::Trim(n) => world.trim(n),
        Op::Join(lengths) if world.rows.len() < 4 => world.join(&lengths),
        Op::Filter(rows) => {
            let rows: Vec<usize> = rows.iter().map(|r| r % world.rows.len()).collect();
            world.filter(&rows);
        }
        Op::Extract(row) => world.extract(row % world.rows.len()),
        Op::Fork(n) => world.fork(n),
        Op::Padded(lengths, span, left) => world.padded(&lengths, span, left),
        Op::Round(spans, keep) => world.round(&spans, keep.as_deref()),
        Op::Save => world.save(),
        Op::Accept(n) => world.accept(n),
        Op::Join(_) => {}
    }
}

/// A full layer and a sliding one.
fn attention(window: u32, head_dim: u32) -> Vec<LayerKind> {
    vec![LayerKind::Full { kv_heads: 2, head_dim }, LayerKind::Sliding { kv_heads: 2, head_dim, window }]
}

fn run(kernels: KernelSet, kv: &KvScheme, layers: Vec<LayerKind>, prompt: usize, ops: Vec<Op>) {
    let mut world = World::new(kernels, kv.clone(), layers);
    if prompt > 0 {
        world.append(prompt, false);
    }
    for op in ops {
        apply(&mut world, op);
    }
    world.check_rows();
}

/// Sequences of all tests together are more than 20,000: attention layers make the most of them.
const CASES: u32 = 3_200;
const FEWER: u32 = 1_500;

/// `PROPTEST_CASES` may ask for more.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(cases), failure_persistence: None, ..default }
}

fn affine(bits: u32, start: u32) -> KvScheme {
    let format = KvFormat::Affine(QuantScheme::affine(bits, 32).expect("a scheme"));
    KvScheme { format, start, ..KvScheme::default() }
}

fn turbo(start: u32) -> KvScheme {
    KvScheme { format: KvFormat::Turbo { keys: 4, values: 3 }, start, ..KvScheme::default() }
}

fn kernels() -> impl Strategy<Value = KernelSet> {
    prop_oneof![Just(KernelSet::Reference), Just(KernelSet::Fast)]
}

/// An operation sequence: kernels, the first tokens, what follows.
fn sequence() -> impl Strategy<Value = (KernelSet, usize, Vec<Op>)> {
    (kernels(), 0..11usize, prop::collection::vec(op(), 1..7))
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn plain_and_rotating((kernels, prompt, ops) in sequence(), window in 1..7u32) {
        run(kernels, &KvScheme::default(), attention(window, 3), prompt, ops);
    }

    #[test]
    fn plain_and_long_rings((kernels, prompt, ops) in sequence(), window in 5..12u32) {
        run(kernels, &KvScheme::default(), attention(window, 5), prompt, ops);
    }

    #[test]
    fn paged((kernels, prompt, ops) in sequence(), page in 1..6u32, bits in 0..2u32) {
        let kv = if bits == 0 { KvScheme::default() } else { affine(8, 0) };
        run(kernels, &KvScheme { page: Some(page), ..kv }, attention(3, 32), prompt, ops);
    }

    #[test]
    fn quantized_from_the_start((kernels, prompt, ops) in sequence(), window in 1..7u32) {
        run(kernels, &affine(8, 0), attention(window, 32), prompt, ops);
    }

    #[test]
    fn quantized_later((kernels, prompt, ops) in sequence(), start in 1..12u32, window in 1..7u32) {
        run(kernels, &affine(4, start), attention(window, 32), prompt, ops);
    }
}

proptest! {
    #![proptest_config(config(FEWER))]

    #[test]
    fn rotated_and_rounded((kernels, prompt, ops) in sequence(), start in 0..12u32, page in 0..6u32) {
        let page = (start == 0 && page > 0).then_some(page);
        run(kernels, &KvScheme { page, ..turbo(start) }, attention(4, 32), prompt, ops);
    }

    #[test]
    fn latent((kernels, prompt, ops) in sequence(), format in 0..3u32, page in 0..6u32, start in 0..9u32) {
        let page = (page > 0).then_some(page);
        let start = if page.is_none() { start } else { 0 };
        let kv = match format {
            0 => KvScheme::default(),
            1 => affine(8, start),
            _ => turbo(start),
        };
        let layers = vec![LayerKind::Latent { rank: 64, rope_dim: 32 }];
        run(kernels, &KvScheme { page, ..kv }, layers, prompt, ops);
    }

    #[test]
    fn recurrent((kernels, prompt, ops) in sequence(), window in 1..7u32, start in 0..9u32) {
        let memory = LayerKind::Recurrent { channels: 3, tail: 2, state: 3 };
        let mut layers = attention(window, 32);
        layers.insert(1, memory);
        run(kernels, &affine(8, start), layers, prompt, ops);
    }
}

//! What fast kernels read of every cache and number format is what the reference operations read, within the rounding of
//! the activations' type.

use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use strata_state::{AttentionRead, Phase, Side, State};
use strata_tensor::{Array, Dtype, ops, random};

const HEADS: i32 = 6;

/// Types, and how far results may differ: `bound * (1 + |value|)`. The reference rounds scores to the type, the kernels
/// keep them in float32; normal keys of 64 values at scale 1/8 give scores of a few units.
const TYPES: [(Dtype, f32); 3] = [(Dtype::Float32, 1e-5), (Dtype::Float16, 1.2e-2), (Dtype::Bfloat16, 1e-1)];

fn normal(seed: u64, shape: [i32; 4], dtype: Dtype) -> Array {
    let key = random::Key::new(seed).unwrap();
    random::normal(0.0, 1.0, shape, Dtype::Float32, &key).unwrap().astype(dtype).unwrap()
}

/// The same layer read by the reference operations and by fast kernels.
struct Pair {
    states: [State; 2],
    empty: [State; 2],
    head_dim: i32,
    dtype: Dtype,
    bound: f32,
    seed: u64,
    what: String,
}

impl Pair {
    fn new(kind: LayerKind, kv: &KvScheme, (dtype, bound): (Dtype, f32)) -> Self {
        let states = [KernelSet::Reference, KernelSet::Fast].map(|kernels| {
            let composition = Composition { kernels, kv: kv.clone(), ..Composition::default() };
            [(); 2].map(|()| State::compose(&[kind], &composition).unwrap())
        });
        let [[reference, other_reference], [fast, other_fast]] = states;
        let (states, empty) = ([reference, fast], [other_reference, other_fast]);
        let (LayerKind::Full { head_dim, .. } | LayerKind::Sliding { head_dim, .. }) = kind else {
            panic!("a layer with heads")
        };
        let what = format!("{kind:?}, {kv:?}, {dtype}");
        Self { states, empty, head_dim: head_dim as i32, dtype, bound, seed: 0, what }
    }

    /// Two more rows, of other lengths.
    fn join(&mut self, lengths: [i32; 2]) {
        for length in lengths {
            self.seed += 10;
            let (seed, dtype, dim) = (self.seed, self.dtype, self.head_dim);
            for (state, empty) in self.states.iter_mut().zip(&self.empty) {
                let mut other = empty.clone();
                let new = |seed| normal(seed, [1, 2, length, dim], dtype);
                other.layer(0).append(&new(seed), &new(seed + 1), Phase::Window).unwrap();
                other.advance(length as usize);
                state.join(&other).unwrap();
            }
        }
    }

    #[track_caller]
    fn pass(&mut self, length: i32) {
        self.pass_of(length, None);
    }

    /// A pass whose real positions are the first so many of each row.
    #[track_caller]
    fn pass_of(&mut self, length: i32, real: Option<&[usize]>) {
        self.seed += 10;
        let rows = self.states[0].rows() as i32;
        let (seed, dtype, dim) = (self.seed, self.dtype, self.head_dim);
        let reads = self.states.each_mut().map(|state| -> AttentionRead {
            if let Some(lengths) = real {
                state.begin_padded(lengths, Side::Right).unwrap();
            }
            let new = |seed| normal(seed, [rows, 2, length, dim], dtype);
            let read = state.layer(0).append(&new(seed), &new(seed + 1), Phase::Window).unwrap();
            state.advance(length as usize);
            read
        });
        let queries = normal(seed + 2, [rows, HEADS, length, dim], dtype);
        let scale = 1.0 / (dim as f32).sqrt();
        let joined = reads.each_ref().map(|read| read.attend_joined(&queries, scale, None).unwrap());
        let plain = reads.each_ref().map(|read| read.attend(&queries, scale).unwrap());
        let capped = reads.each_ref().map(|read| read.attend_soft_capped(&queries, scale, 3.0).unwrap());
        let heads_first = joined
            .map(|out| out.reshape([rows, length, HEADS, dim]).unwrap().transpose(&[0, 2, 1, 3]).unwrap());
        for [expected, found] in [plain, capped, heads_first] {
            for row in 0..rows {
                let real = real.map_or(length, |lengths| lengths[row as usize] as i32);
                let part = |out: &Array| {
                    let row = out.slice_axis(0, row, row + 1).unwrap().slice_axis(2, 0, real).unwrap();
                    row.astype(Dtype::Float32).unwrap().to_vec::<f32>().unwrap()
                };
                assert_eq!((expected.shape(), expected.dtype()), (found.shape(), found.dtype()));
                for (found, expected) in part(&found).into_iter().zip(part(&expected)) {
                    let near = (found - expected).abs() <= self.bound * (1.0 + expected.abs());
                    assert!(near, "{}: {found}, not {expected}", self.what);
                }
            }
        }
        if real.is_some() {
            self.states.iter_mut().for_each(|state| state.end_padded().unwrap());
        }
    }

    /// A sequence, then a batch of three, read in spans and steps.
    fn run(&mut self) {
        for length in [13, 1, 1, 5, 1] {
            self.pass(length);
        }
        self.join([3, 40]);
        for length in [1, 7, 1] {
            self.pass(length);
        }
        self.pass_of(6, Some(&[2, 6, 4]));
        self.pass(1);
    }
}

fn full(head_dim: u32) -> LayerKind {
    LayerKind::Full { kv_heads: 2, head_dim }
}

fn ring(head_dim: u32, window: u32) -> LayerKind {
    LayerKind::Sliding { kv_heads: 2, head_dim, window }
}

fn affine(bits: u32, group: u32) -> KvScheme {
    KvScheme { format: KvFormat::Affine(QuantScheme::affine(bits, group).unwrap()), ..KvScheme::default() }
}

#[test]
fn plain_keys_and_windows_of_every_type() {
    for types in TYPES {
        for kind in [full(64), full(18), full(80), ring(64, 9), ring(18, 100), ring(40, 1)] {
            Pair::new(kind, &KvScheme::default(), types).run();
        }
    }
}

#[test]
fn quantized_keys_of_every_width() {
    for types in TYPES {
        for kind in [full(64), ring(64, 9)] {
            for (bits, group) in [(2, 32), (3, 64), (4, 64), (5, 32), (6, 64), (8, 32)] {
                Pair::new(kind, &affine(bits, group), types).run();
            }
            Pair::new(kind, &KvScheme { start: 20, ..affine(8, 64) }, types).run();
        }
        Pair::new(full(128), &affine(4, 128), types).run();
    }
}

#[test]
fn rotated_keys() {
    for types in TYPES {
        for kind in [full(64), ring(64, 9)] {
            for (keys, values) in [(4, 4), (3, 2), (1, 4)] {
                let format = KvFormat::Turbo { keys, values };
                Pair::new(kind, &KvScheme { format, ..KvScheme::default() }, types).run();
            }
        }
    }
}

#[test]
fn pages_of_every_format() {
    for types in TYPES {
        for page in [1, 7, 16, 64] {
            for kv in [KvScheme::default(), affine(4, 32), affine(8, 64), affine(6, 32)] {
                Pair::new(full(64), &KvScheme { page: Some(page), ..kv }, types).run();
            }
            let format = KvFormat::Turbo { keys: 4, values: 3 };
            Pair::new(full(64), &KvScheme { format, start: 0, page: Some(page) }, types).run();
        }
        Pair::new(full(18), &KvScheme { page: Some(5), ..KvScheme::default() }, types).run();
    }
}

/// Fast kernels read pages where they lie, so the graph of a step gathers nothing of them.
#[test]
fn no_page_is_gathered_by_a_fast_read() {
    let kv = KvScheme { page: Some(4), ..KvScheme::default() };
    let mut pair = Pair::new(full(64), &kv, TYPES[0]);
    pair.pass(13);
    let new = normal(7, [1, 2, 1, 64], Dtype::Float32);
    let names = pair.states.each_mut().map(|state| {
        strata_tensor::eval(state.arrays()).unwrap();
        let read = state.layer(0).append(&new, &new, Phase::Decode).unwrap();
        let out = read.attend(&normal(8, [1, HEADS, 1, 64], Dtype::Float32), 0.2).unwrap();
        ops::graph_names([&out]).unwrap()
    });
    let gathers = names.each_ref().map(|names| names.iter().filter(|name| *name == "Gather").count());
    assert!(names[1].iter().any(|name| name == "paged_attention"), "{names:?}");
    // Reading new positions takes one gather a plane in either mode; reading pages one more a plane.
    assert_eq!(gathers[0], gathers[1] + 2, "{names:?}");
}

/// However many positions there are, a step rotates what is new: keys, values, queries and the result.
#[test]
fn rotated_rows_are_not_rotated_back_one_by_one() {
    let kv = KvScheme { format: KvFormat::Turbo { keys: 4, values: 3 }, ..KvScheme::default() };
    for length in [3, 300] {
        let mut pair = Pair::new(full(64), &kv, TYPES[0]);
        for (state, expected) in pair.states.iter_mut().zip([[4, 0, 0], [0, 2, 1]]) {
            for length in [length, 1] {
                let new = normal(5, [1, 2, length, 64], Dtype::Float32);
                state.layer(0).append(&new, &new, Phase::Window).unwrap();
                state.advance(length as usize);
            }
            strata_tensor::eval(state.arrays()).unwrap();
            let new = normal(7, [1, 2, 1, 64], Dtype::Float32);
            let read = state.layer(0).append(&new, &new, Phase::Decode).unwrap();
            let out = read.attend(&normal(8, [1, HEADS, 1, 64], Dtype::Float32), 0.2).unwrap();
            let names = ops::graph_names([&out]).unwrap();
            let count = |kind| names.iter().filter(|name| *name == kind).count();
            let rotating = ["Hadamard", "turbo_encode", "turbo_attention"].map(count);
            assert_eq!(rotating, expected, "{length}: {names:?}");
        }
    }
}

#[test]
fn a_row_never_reads_what_another_sequence_left_in_a_page() {
    for kernels in [KernelSet::Reference, KernelSet::Fast] {
        let kv = KvScheme { page: Some(4), ..KvScheme::default() };
        let composition = Composition { kernels, kv, ..Composition::default() };
        let template = State::compose(&[full(8)], &composition).unwrap();
        let append = |state: &mut State, x: &Array| {
            let read = state.layer(0).append(x, x, Phase::Window).unwrap();
            state.advance(x.dim(2) as usize);
            read
        };
        let mut broken = template.clone();
        let infinite = ops::full([1, 2, 11, 8], &Array::from_f32(f32::INFINITY), Dtype::Float32).unwrap();
        append(&mut broken, &infinite);
        let mut whole = template.clone();
        append(&mut whole, &normal(1, [1, 2, 2, 8], Dtype::Float32));
        let mut batch = State::merge(&[&broken, &whole]).unwrap();
        drop(broken);
        for step in 0..3 {
            let x = normal(20 + step, [2, 2, 1, 8], Dtype::Float32);
            let out = append(&mut batch, &x).attend(&normal(3, [2, 4, 1, 8], Dtype::Float32), 0.3).unwrap();
            let row = out.slice_axis(0, 1, 2).unwrap().to_vec::<f32>().unwrap();
            assert!(row.iter().all(|x| x.is_finite()), "{kernels:?}");
        }
        // Pages that the broken sequence had are given to a new one.
        batch.filter(&[1]).unwrap();
        let mut next = template.clone();
        append(&mut next, &normal(2, [1, 2, 1, 8], Dtype::Float32));
        batch.join(&next).unwrap();
        let x = normal(30, [2, 2, 1, 8], Dtype::Float32);
        let out = append(&mut batch, &x).attend(&normal(3, [2, 4, 1, 8], Dtype::Float32), 0.3).unwrap();
        assert!(out.to_vec::<f32>().unwrap().iter().all(|x| x.is_finite()), "{kernels:?}");
    }
}

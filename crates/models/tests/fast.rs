//! Fast mode on a CPU: every family computes what it computes in reference mode, and all of it in host kernels: nothing is left to
//! MLX's loops, which go through half types one value at a time.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use strata_contracts::{Composition, Dtype, KernelSet, KvFormat, QuantScheme};
use strata_state::{Phase, State};
use strata_tensor::{Array, ops};
use support::Tiny;

/// Nodes that move no values, or the few of a vector of positions.
const VIEWS: &[&str] =
    &["Broadcast", "ExpandDims", "Full", "Reshape", "Slice", "Squeeze", "Transpose", "Unflatten"];

/// A prompt, a second part of it, and two tokens.
const PIECES: [&[i32]; 4] = [&[3, 1, 4, 1, 5, 92, 65, 35, 8, 9, 79], &[32, 38, 46], &[26], &[43]];

/// Logits of all positions, and how often each kind of node computed them.
fn run(model: &Tiny, composition: &Composition) -> (Vec<Vec<f64>>, BTreeMap<String, usize>) {
    let graph = model.load_with(composition).unwrap();
    let mut state = State::compose(&graph.declaration().layers, composition).unwrap();
    let (mut rows, mut names) = (Vec::new(), BTreeMap::new());
    for piece in PIECES {
        let tokens = Array::from_slice(piece, [1, piece.len() as i32]).unwrap();
        let phase = if piece.len() == 1 { Phase::Decode } else { Phase::Window };
        let hidden = graph.hidden(&tokens, &mut state, phase).unwrap();
        let logits = graph.logits(&hidden).unwrap();
        for name in ops::graph_names(state.arrays().into_iter().chain([&logits])).unwrap() {
            *names.entry(name).or_default() += 1;
        }
        let values = logits.astype(Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
        let width = logits.dim(-1) as usize;
        rows.extend(values.chunks(width).map(|row| row.iter().copied().map(f64::from).collect()));
    }
    (rows, names)
}

/// The Kullback-Leibler divergence of the distribution of logits `b` from that of `a`, in nats.
fn divergence(a: &[f64], b: &[f64]) -> f64 {
    let shares = |x: &[f64]| {
        let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = x.iter().map(|x| (x - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(|power| power / sum).collect::<Vec<_>>()
    };
    shares(a).iter().zip(shares(b)).filter(|(p, _)| **p > 0.0).map(|(p, q)| p * (p / q).ln()).sum()
}

/// All committed models.
fn variants() -> Vec<String> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity");
    let folders = |path: &Path| {
        let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let name = |path: &Path| path.strip_prefix(&fixtures).unwrap().to_str().unwrap().to_owned();
    let variants = folders(&fixtures).iter().flat_map(|family| folders(family)).collect::<Vec<_>>();
    variants.iter().filter(|path| path.join("model").is_dir()).map(|path| name(path)).collect()
}

/// Runs a model in both modes: their distributions agree. The kinds of fast mode's nodes.
fn compare(name: &str, model: &Tiny, fast: &Composition) -> BTreeMap<String, usize> {
    let reference = Composition { kernels: KernelSet::Reference, ..fast.clone() };
    let (expected, _) = run(model, &reference);
    let (got, names) = run(model, fast);
    let worst = expected.iter().zip(&got).map(|(a, b)| divergence(a, b)).fold(0.0, f64::max);
    assert!(worst < 1e-6, "{name}: {worst:e} from reference mode");
    names
}

/// As [`compare`]; of MLX's nodes fast mode has only `moving` ones.
fn check(variant: &str, fast: &Composition, moving: &[&str]) {
    let names = compare(variant, &Tiny::of(variant), fast);
    let is_stock = |name: &&String| {
        name.starts_with(char::is_uppercase) && ![VIEWS, moving].concat().contains(&name.as_str())
    };
    let stock: Vec<_> = names.keys().filter(is_stock).collect();
    assert!(stock.is_empty(), "{variant} leaves {stock:?} to MLX");
    assert!(
        names.contains_key("linear") && names.contains_key("attention")
            || fast.kv != Composition::default().kv,
        "{variant}: {names:?}"
    );
}

fn fast() -> Composition {
    Composition { kernels: KernelSet::Fast, activations: Some(Dtype::Float32), ..Composition::default() }
}

#[test]
fn every_family_is_made_of_host_kernels() {
    let variants = variants();
    assert!(variants.len() > 30);
    for variant in variants {
        // A window's newest part and what was there before are put together.
        check(&variant, &fast(), &["Concatenate"]);
    }
}

#[test]
fn every_cache_format_is_read_by_host_kernels() {
    let affine = |bits| KvFormat::Affine(QuantScheme::affine(bits, 32).unwrap());
    let turbo = |keys, values| KvFormat::Turbo { keys, values };
    for format in [affine(4), affine(8), turbo(4, 4), turbo(3, 2)] {
        let mut composition = fast();
        composition.kv.format = format;
        check("llama/kv", &composition, &[]);
    }
    let mut paged = fast();
    paged.kv.page = Some(16);
    check("llama/kv", &paged, &["Gather", "Scatter"]);
}

#[test]
fn factors_of_two_types_are_left_to_mlx() {
    let mut model = Tiny::of("llama/q4g32");
    for (name, tensor) in &mut model.tensors {
        if name.ends_with(".biases") {
            let other = if tensor.dtype() == Dtype::Float16 { Dtype::Bfloat16 } else { Dtype::Float16 };
            *tensor = tensor.astype(other).unwrap();
        }
    }
    let names = compare("factors of two types", &model, &fast());
    assert!(names.contains_key("QuantizedMatmul"), "{names:?}");
}

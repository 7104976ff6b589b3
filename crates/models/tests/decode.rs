//! Recorded decode steps: every step gives the bits that building its graph gives, whatever the layers are, across growth of
//! buffers, windows that wrap, trims and batches.

mod support;

use strata_contracts::{Composition, Dtype, KernelSet, KvFormat, QuantScheme};
use strata_models::{DecodeStep, Graph};
use strata_state::{Phase, State};
use strata_tensor::{Array, Device};
use support::Tiny;

fn fast() -> Composition {
    Composition { kernels: KernelSet::Fast, ..Composition::default() }
}

fn ids(tokens: &[i32]) -> Array {
    Array::from_slice(tokens, [tokens.len() as i32, 1]).unwrap()
}

/// Host kernels, which alone are recorded, run where MLX's operations would run on a CPU.
fn on_a_cpu() -> bool {
    Device::current().unwrap() == Device::Cpu
}

/// A prompt's state.
fn read(graph: &dyn Graph, composition: &Composition, prompt: &[i32]) -> State {
    let mut state = State::compose(&graph.declaration().layers, composition).unwrap();
    let tokens = Array::from_slice(prompt, [1, prompt.len() as i32]).unwrap();
    graph.hidden(&tokens, &mut state, Phase::Window).unwrap();
    strata_tensor::eval(state.arrays()).unwrap();
    state
}

/// Takes a step of both states, which have seen the same, and compares logits and what is stored.
fn step(step: &mut DecodeStep<'_>, states: [&mut State; 2], tokens: &[i32], what: &str) {
    let [recorded, built] = states;
    let got = step.logits(&ids(tokens), recorded).unwrap();
    let hidden = step.graph().hidden(&ids(tokens), built, Phase::Decode).unwrap();
    let expected = step.graph().logits(&hidden).unwrap().squeeze(&[1]).unwrap();
    assert_eq!(got.to_bytes().unwrap(), expected.to_bytes().unwrap(), "logits of {what}");
    assert_eq!(recorded.position(), built.position(), "{what}");
}

fn same_caches(a: &mut State, b: &mut State, what: &str) {
    for layer in 0..a.len() {
        let parts = |state: &mut State| {
            let parts = state.layer(layer).live_parts().unwrap();
            parts.iter().map(|(name, part)| (*name, part.to_bytes().unwrap())).collect::<Vec<_>>()
        };
        assert!(parts(a) == parts(b), "layer {layer} of {what}");
    }
}

/// A token that depends on the step.
fn token(graph: &dyn Graph, i: usize) -> i32 {
    (i * 37 + 11) as i32 % graph.declaration().vocab_size as i32
}

/// Steps a model on, past a growth of its buffers.
fn check(variant: &str, composition: &Composition, is_recorded: bool) {
    let folder = Tiny::of(variant);
    let graph = folder.load_with(composition).unwrap();
    let graph = graph.as_ref();
    let prompt = [3, 1, 4, 1, 5, 92, 65, 35];
    let (mut a, mut b) = (read(graph, composition, &prompt), read(graph, composition, &prompt));
    let mut decode = DecodeStep::new(graph);
    let mut steps = 0;
    for i in 0..270 {
        step(&mut decode, [&mut a, &mut b], &[token(graph, i)], &format!("{variant}, step {i}"));
        steps += usize::from(decode.is_recorded());
    }
    same_caches(&mut a, &mut b, variant);
    // But for the steps that make room.
    assert!(
        if is_recorded && on_a_cpu() { steps > 260 } else { steps == 0 },
        "{variant}: {steps} steps were recorded"
    );
}

#[test]
fn steps_of_every_family_give_the_bits_of_their_graphs() {
    for (variant, is_recorded) in [
        ("llama/f32", true),
        ("llama/q4g32", true),
        ("llama/mixed", true),
        ("llama/biases-bf16", true),
        ("llama/rope-llama3", true),
        ("llama/rope-dynamic", true),
        ("llama/rope-yarn-mscale", true),
        ("mistral/f32", true),
        ("qwen2/q4g32", true),
        ("qwen2/mixed", true),
        ("qwen3/bf16", true),
        ("qwen3_moe/f32", true),
        ("qwen3_moe/q4g32", true),
        ("phi3/q4g32", true),
        ("phi3/longrope", true),
        ("gemma/q4g32", true),
        ("gemma2/bf16", true),
        ("gemma3_text/q4g32", true),
        ("gemma3_text/clipped-f16", true),
    ] {
        check(variant, &fast(), is_recorded);
    }
    let wide = Composition { activations: Some(Dtype::Float32), ..fast() };
    check("gemma3_text/bf16", &wide, true);
    check("llama/q4g32", &wide, true);
}

#[test]
fn steps_of_every_cache_format_give_the_bits_of_their_graphs() {
    let affine = |bits| KvFormat::Affine(QuantScheme::affine(bits, 32).unwrap());
    for format in [affine(8), affine(3), KvFormat::Turbo { keys: 4, values: 2 }] {
        let mut composition = fast();
        composition.kv.format = format;
        check("llama/kv", &composition, true);
    }
}

#[test]
fn what_is_not_made_of_host_kernels_is_built_as_ever() {
    check("llama/f32", &support::composition(), false);
    let mut paged = fast();
    paged.kv.page = Some(16);
    check("llama/f32", &paged, false);
}

#[test]
fn a_state_that_was_trimmed_or_forked_goes_on_with_recorded_steps() {
    for variant in ["llama/f32", "gemma3_text/q4g32"] {
        let folder = Tiny::of(variant);
        let graph = folder.load_with(&fast()).unwrap();
        let graph = graph.as_ref();
        let prompt = [3, 1, 4, 1, 5, 92];
        let (mut a, mut b) = (read(graph, &fast(), &prompt), read(graph, &fast(), &prompt));
        let mut decode = DecodeStep::new(graph);
        for i in 0..3 {
            step(&mut decode, [&mut a, &mut b], &[token(graph, i)], variant);
        }
        // A ring that has wrapped cannot go back.
        let back = a.trimmable().min(2);
        assert_eq!(back, if variant.starts_with("llama") { 2 } else { 0 });
        a.trim(back).unwrap();
        b.trim(back).unwrap();
        for i in 3..6 {
            step(&mut decode, [&mut a, &mut b], &[token(graph, i)], variant);
        }
        // Both parts of a fork write at the same place: neither into what the other reads.
        let (mut fork, mut other) = (a.fork(a.position()).unwrap(), b.fork(b.position()).unwrap());
        for i in 6..12 {
            step(&mut decode, [&mut fork, &mut other], &[token(graph, 2 * i)], variant);
            step(&mut decode, [&mut a, &mut b], &[token(graph, i)], variant);
        }
        assert_eq!(decode.is_recorded(), on_a_cpu());
        same_caches(&mut a, &mut b, variant);
        same_caches(&mut fork, &mut other, variant);
    }
}

#[test]
fn rows_of_one_length_are_recorded_and_padded_ones_are_built() {
    for variant in ["llama/q4g32", "gemma3_text/f32", "mistral/f32"] {
        let folder = Tiny::of(variant);
        let graph = folder.load_with(&fast()).unwrap();
        let graph = graph.as_ref();
        let prompts = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 9]];
        let merged = || {
            let states: Vec<State> = prompts.iter().map(|prompt| read(graph, &fast(), prompt)).collect();
            State::merge(&states.iter().collect::<Vec<_>>()).unwrap()
        };
        let (mut a, mut b) = (merged(), merged());
        let mut decode = DecodeStep::new(graph);
        let tokens =
            |rows: usize, i: usize| -> Vec<i32> { (0..rows).map(|row| token(graph, 7 * i + row)).collect() };
        for i in 0..40 {
            step(&mut decode, [&mut a, &mut b], &tokens(3, i), &format!("{variant}, step {i}"));
        }
        assert_eq!(decode.is_recorded(), on_a_cpu(), "{variant}");
        a.filter(&[2, 0]).unwrap();
        b.filter(&[2, 0]).unwrap();
        for i in 40..50 {
            step(&mut decode, [&mut a, &mut b], &tokens(2, i), &format!("{variant}, step {i}"));
        }
        assert_eq!(decode.is_recorded(), on_a_cpu(), "{variant}");
        let newcomer = read(graph, &fast(), &[7, 7, 7]);
        a.join(&newcomer).unwrap();
        b.join(&newcomer).unwrap();
        for i in 50..60 {
            step(&mut decode, [&mut a, &mut b], &tokens(3, i), &format!("{variant}, step {i}"));
        }
        assert!(!decode.is_recorded(), "{variant}");
    }
}

#[test]
fn a_round_is_taken_back_from_under_recorded_steps() {
    let folder = Tiny::of("llama/f32");
    let graph = folder.load_with(&fast()).unwrap();
    let graph = graph.as_ref();
    let prompt = [3, 1, 4, 1, 5, 92];
    let (mut a, mut b) = (read(graph, &fast(), &prompt), read(graph, &fast(), &prompt));
    let mut decode = DecodeStep::new(graph);
    step(&mut decode, [&mut a, &mut b], &[7], "before");
    assert_eq!(decode.is_recorded(), on_a_cpu());
    let mut round = a.begin().unwrap();
    decode.logits(&ids(&[9]), &mut round).unwrap().eval().unwrap();
    drop(round);
    for i in 0..3 {
        step(&mut decode, [&mut a, &mut b], &[token(graph, i)], "after");
    }
    assert_eq!(decode.is_recorded(), on_a_cpu());
    same_caches(&mut a, &mut b, "a round");
}

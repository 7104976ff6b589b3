//! GGUF files of every imported architecture, converted and run, give llama.cpp's logits within the rounding of
//! another order of float32 operations. Truth comes from `tests/oracle/make_gguf_models.py`.

use std::path::{Path, PathBuf};
use strata_artifacts::gguf::{ConvertOptions, convert};
use strata_artifacts::{ModelDir, SafetensorsFile};
use strata_contracts::{Composition, Dtype, KernelSet};
use strata_models::load;
use strata_state::{Phase, State};
use strata_tensor::Array;
use strata_tests::parity::Tensor;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf")
}

/// Largest difference from llama.cpp's logits, as a part of the largest logit.
fn difference(name: &str) -> f32 {
    let folder = tempfile::tempdir().unwrap();
    let file = fixtures().join(format!("{name}.gguf"));
    convert(&file, folder.path(), &ConvertOptions::default(), &mut |_| ()).unwrap();
    let composition = Composition {
        kernels: KernelSet::Reference,
        activations: Some(Dtype::Float32),
        ..Composition::default()
    };
    let graph = load(&ModelDir::open(folder.path()).unwrap(), &composition).unwrap();

    let truth = SafetensorsFile::open(&fixtures().join(format!("{name}.safetensors"))).unwrap();
    let read = |name: &str| {
        let info = truth.tensors().iter().find(|info| info.name == name).unwrap();
        Tensor::of(&truth.view(info))
    };
    let (tokens, expected) = (read("tokens").integers(), read("logits").floats());
    let mut state = State::compose(&graph.declaration().layers, &composition).unwrap();
    let ids = Array::from_slice(&tokens, [1, tokens.len() as i32]).unwrap();
    let hidden = graph.hidden(&ids, &mut state, Phase::Window).unwrap();
    let found: Vec<f32> = graph.logits(&hidden).unwrap().to_vec().unwrap();

    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
    let off = found.iter().zip(&expected).fold(0.0_f32, |off, (a, b)| off.max((a - b).abs()));
    off / largest
}

#[track_caller]
fn check(name: &str, tolerance: f32) {
    let found = difference(name);
    assert!(found < tolerance, "{name} differs by {found} of the largest logit, allowed are {tolerance}");
}

/// Sums of a few hundred float32 products in another order.
const ORDER: f32 = 5e-6;

/// llama.cpp takes the tanh form of gelu from a table of float16 on the CPU.
const GELU_TABLE: f32 = 2e-4;

#[test]
fn llama_gives_llama_cpps_logits() {
    check("llama", ORDER);
}

#[test]
fn llama_with_biases_gives_llama_cpps_logits() {
    check("llama-biases", ORDER);
}

#[test]
fn llama_with_linear_rope_scaling_gives_llama_cpps_logits() {
    check("llama-linear", ORDER);
}

#[test]
fn llama_with_llama3_rope_scaling_gives_llama_cpps_logits() {
    check("llama-llama3", ORDER);
}

#[test]
fn qwen2_gives_llama_cpps_logits() {
    check("qwen2", ORDER);
}

#[test]
fn qwen3_gives_llama_cpps_logits() {
    check("qwen3", ORDER);
}

#[test]
fn gemma_gives_llama_cpps_logits() {
    check("gemma", GELU_TABLE);
}

#[test]
fn gemma2_gives_llama_cpps_logits() {
    check("gemma2", GELU_TABLE);
}

#[test]
fn gemma3_gives_llama_cpps_logits_past_its_window() {
    check("gemma3", GELU_TABLE);
}

//! Reference mode against the committed results of mlx-lm: the same bits, in every logit and every cache entry.
//! Truth comes from `tests/oracle`; `cargo xtask parity` compares many more cases live.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use strata_contracts::{Composition, KernelSet};
use strata_tests::parity::{Case, Model, Results};

/// Compares every committed case of a family. `pending` are the cases that can't be run yet; one that is equal by now
/// must leave the list.
fn check_family(family: &str, pending: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/parity").join(family);
    let mut unequal = BTreeMap::new();
    for variant in sorted(&folder) {
        let composition =
            Composition { kernels: KernelSet::Reference, activations: None, ..Composition::default() };
        let model = Model::load(&variant.join("model"), composition).unwrap();
        for plan in
            sorted(&variant).iter().filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        {
            let name = plan.with_extension("").strip_prefix(&folder).unwrap().display().to_string();
            let case = Case::run(name.clone(), &Results::read(plan).unwrap(), &model, None);
            if !case.is_equal() {
                unequal.insert(name, case);
            }
        }
    }
    let lines: Vec<String> = unequal.values().map(ToString::to_string).collect();
    assert!(unequal.keys().eq(pending), "expected {pending:?} to be unequal, found:\n{}", lines.join("\n"));
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn llama_equals_mlx_lm() {
    check_family("llama", &[]);
}

#[test]
fn gemma_equals_mlx_lm() {
    check_family("gemma", &[]);
}

#[test]
fn gemma2_equals_mlx_lm() {
    check_family("gemma2", &[]);
}

#[test]
fn gemma3_text_equals_mlx_lm() {
    check_family("gemma3_text", &[]);
}

#[test]
fn mistral_equals_mlx_lm() {
    check_family("mistral", &[]);
}

#[test]
fn phi3_equals_mlx_lm() {
    check_family("phi3", &[]);
}

#[test]
fn qwen2_equals_mlx_lm() {
    check_family("qwen2", &[]);
}

#[test]
fn qwen3_equals_mlx_lm() {
    check_family("qwen3", &[]);
}

#[test]
fn qwen3_moe_equals_mlx_lm() {
    check_family("qwen3_moe", &[]);
}

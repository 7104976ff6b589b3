//! A model folder or GGUF file that is broken: each fault has its own error.

use crate::support::{Home, tokenizer};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

const WEIGHTS: &str = "tiny/model.safetensors";
const NORM: &str = "model.norm.weight";

/// The error of a model whose weights are these bytes.
fn weights(bytes: &[u8], words: &[&str]) {
    let home = Home::new();
    fs::write(home.path(WEIGHTS), bytes).unwrap();
    home.generate(&["hi"]).refused(words);
}

#[test]
fn an_empty_weights_file_is_refused() {
    weights(b"", &["model.safetensors"]);
}

#[test]
fn a_truncated_shard_is_refused() {
    let home = Home::new();
    let file = File::options().write(true).open(home.path(WEIGHTS)).unwrap();
    file.set_len(file.metadata().unwrap().len() - 5).unwrap();
    home.generate(&["hi"]).refused(&["model.safetensors"]);
}

#[test]
fn a_header_beyond_the_file_is_refused() {
    for length in [1 << 20, u64::MAX, i64::MAX as u64] {
        let home = Home::new();
        let file = File::options().write(true).open(home.path(WEIGHTS)).unwrap();
        file.write_all_at(&length.to_le_bytes(), 0).unwrap();
        home.generate(&["hi"]).refused(&["model.safetensors", "header"]);
    }
}

#[test]
fn overlapping_tensors_are_refused() {
    let home = Home::new();
    home.reheader(|header| {
        let copy = header[NORM].clone();
        header.insert("extra".to_owned(), copy);
    });
    home.generate(&["hi"]).refused(&["model.safetensors", "extra"]);
}

#[test]
fn a_tensor_of_the_wrong_shape_is_refused() {
    let home = Home::new();
    home.reheader(|header| header[NORM]["shape"] = json!([32, 2]));
    home.generate(&["hi"]).refused(&[NORM, "[32, 2]", "[64]"]);
}

#[test]
fn a_missing_tensor_and_one_without_a_place_are_refused() {
    let home = Home::new();
    home.reheader(|header| {
        let tensor = header.remove(NORM).unwrap();
        header.insert("model.nrom.weight".to_owned(), tensor);
    });
    home.generate(&["hi"]).refused(&[NORM]);
    let home = Home::new();
    home.configure("num_hidden_layers", json!(1));
    home.generate(&["hi"]).refused(&["no place for", "model.layers.1."]);
}

#[test]
fn an_unknown_model_type_is_refused_with_those_there_are() {
    let home = Home::new();
    home.configure("model_type", json!("dodo"));
    home.generate(&["hi"]).refused(&["dodo", "llama", "qwen3", "gemma3_text"]);
    home.run(&["inspect", home.model().to_str().unwrap()]).refused(&["dodo", "llama"]);
}

#[test]
fn sizes_that_no_model_has_are_refused() {
    for (key, value) in [
        ("hidden_size", json!(0)),
        ("vocab_size", json!(-1)),
        ("num_hidden_layers", json!(1_000_000_000_u64)),
        ("intermediate_size", json!(u64::MAX)),
        ("num_attention_heads", json!(1e300)),
        ("head_dim", json!(0.5)),
        ("num_key_value_heads", json!(4)),
        ("max_position_embeddings", json!(0)),
        ("hidden_size", json!("large")),
        ("hidden_size", json!(null)),
        ("rope_theta", json!(0.0)),
    ] {
        let home = Home::new();
        home.configure(key, value);
        home.generate(&["hi"]).refused(&[key]);
    }
}

#[test]
fn sizes_that_the_weights_do_not_have_are_refused() {
    for (key, value, word) in [
        ("hidden_size", 128, "128"),
        ("vocab_size", 100, "[101, 64]"),
        ("intermediate_size", 1 << 23, "mlp"),
        ("num_hidden_layers", 3, "model.layers.2"),
    ] {
        let home = Home::new();
        home.configure(key, json!(value));
        home.generate(&["hi"]).refused(&[word]);
    }
}

#[test]
fn a_broken_config_is_refused() {
    for (text, word) in [("", "config.json"), ("[]", "object"), ("{", "JSON"), ("{}", "model_type")] {
        let home = Home::new();
        fs::write(home.model().join("config.json"), text).unwrap();
        home.generate(&["hi"]).refused(&["config.json", word]);
    }
    let home = Home::new();
    fs::remove_file(home.model().join("config.json")).unwrap();
    home.generate(&["hi"]).refused(&["config.json"]);
}

#[test]
fn a_missing_or_broken_tokenizer_is_refused() {
    let home = Home::new();
    fs::remove_file(home.model().join("tokenizer.json")).unwrap();
    home.generate(&["hi"]).refused(&["tokenizer.json"]);
    for text in ["", "{", "{}", "[1]", r#"{"version": "1.0", "model": {"type": "BPE"}}"#] {
        fs::write(home.model().join("tokenizer.json"), text).unwrap();
        home.generate(&["hi"]).refused(&["tokenizer.json"]);
    }
}

#[test]
fn a_template_that_raises_or_cannot_be_read_is_refused() {
    let home = Home::new();
    let template = |text: &str| {
        home.write_json("tokenizer_config.json", &json!({"eos_token": "</s>", "chat_template": text}));
        home.generate(&["hi"])
    };
    template("{{ raise_exception('roles must alternate') }}").refused(&["roles must alternate"]);
    template("{% for m in messages %}").refused(&["template"]);
    template("{{ messages[9].content.x.y }}").refused(&["template"]);
    template("{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}")
        .refused(&["template"]);
    // --raw has no use for the template, so a bad one does no harm.
    home.generate(&["--raw", "hi"]).ok();
}

#[test]
fn a_tokenizer_larger_than_the_model_is_refused_where_it_matters() {
    let home = Home::new();
    home.write_json("tokenizer.json", &tokenizer(2));
    home.generate(&["--raw", "hi"]).ok();
    // The last of the tokenizer's ids, 102, has no row in the embedding of 101.
    home.generate(&["--raw", "hi\u{4e04}"]).refused(&["102", "position 2", "101"]);
}

/// A GGUF header: magic, version, tensors, entries of metadata, and what follows.
fn gguf(magic: [u8; 4], version: u32, counts: [u64; 2], rest: &[u8]) -> Vec<u8> {
    let counts = counts.map(u64::to_le_bytes).concat();
    [&magic[..], &version.to_le_bytes(), &counts, rest].concat()
}

#[test]
fn a_gguf_with_a_lie_in_its_header_is_refused() {
    let long_key = u64::from(u32::MAX).to_le_bytes();
    for (file, word) in [
        (gguf(*b"GGML", 3, [0, 0], b""), "GGUF"),
        (gguf(*b"GGUF", 99, [0, 0], b""), "99"),
        (gguf(*b"GGUF", 3, [u64::MAX, 0], b""), "tensor"),
        (gguf(*b"GGUF", 3, [0, 1 << 60], b""), "metadata"),
        (gguf(*b"GGUF", 3, [0, 1], &long_key), "bytes"),
        (gguf(*b"GGUF", 3, [0, 0], b""), "general.architecture"),
        (b"GGUF".to_vec(), "GGUF"),
        (Vec::new(), "GGUF"),
    ] {
        let home = Home::new();
        let (path, out) = (home.path("model.gguf"), home.path("out"));
        File::create(&path).unwrap().write_all(&file).unwrap();
        let path = path.to_str().unwrap();
        home.run(&["convert", path, out.to_str().unwrap()]).refused(&["model.gguf", word]);
        assert!(!out.exists(), "a half-made folder was left for {word}");
        home.run(&["generate", "--model", path, "hi"]).refused(&["model.gguf"]);
    }
}

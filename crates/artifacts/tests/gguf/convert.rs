//! A converted folder holds what the file held, in Hugging Face names and layout; what has no faithful form is refused.

use crate::support::{Builder, Value, llama};
use serde_json::{Value as Json, json};
use std::path::Path;
use strata_artifacts::gguf::{ConvertOptions, GgufError, convert};
use strata_artifacts::{Error, SafetensorsFile};

/// A folder made from a GGUF file.
pub(crate) struct Converted {
    pub(crate) config: Json,
    folder: tempfile::TempDir,
    weights: SafetensorsFile,
}

impl Converted {
    pub(crate) fn new(model: &Builder) -> Self {
        Self::result(model).unwrap()
    }

    fn result(model: &Builder) -> Result<Self, Error> {
        Self::with(model, &ConvertOptions::default())
    }

    pub(crate) fn with(model: &Builder, options: &ConvertOptions) -> Result<Self, Error> {
        let folder = tempfile::tempdir().unwrap();
        let (file, out) = (folder.path().join("model.gguf"), folder.path().join("out"));
        std::fs::create_dir(&out).unwrap();
        std::fs::write(&file, model.build()).unwrap();
        convert(&file, &out, options, &mut |_| ())?;
        let weights = SafetensorsFile::open(&out.join("model.safetensors"))?;
        Ok(Self { config: json(&out.join("config.json")), folder, weights })
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let info = self.weights.tensors().iter().find(|info| info.name == name);
        self.weights.view(info.unwrap_or_else(|| panic!("no `{name}`"))).data.to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.bytes(name).chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
    }

    fn file(&self, name: &str) -> Json {
        json(&self.folder.path().join("out").join(name))
    }

    fn tokenizer(&self) -> tokenizers::Tokenizer {
        tokenizers::Tokenizer::from_file(self.folder.path().join("out/tokenizer.json")).unwrap()
    }
}

fn json(path: &Path) -> Json {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn refuse(model: &Builder) -> GgufError {
    match Converted::result(model).map(|_| ()).unwrap_err() {
        Error::Gguf { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

/// The tiny llama as another architecture: keys renamed, layer tensors the same.
fn renamed(architecture: &str) -> Builder {
    let mut model = llama();
    for (key, _) in &mut model.metadata {
        *key = key.replace("llama.", &format!("{architecture}."));
    }
    model.set("general.architecture", Value::Text(architecture.into()));
    model
}

/// Adds the tensors that gemma 3 has beside llama's, with norms of 1.5.
fn gemma3() -> Builder {
    let mut model = renamed("gemma3");
    model.set("gemma3.attention.sliding_window", Value::U32(16));
    for (name, size) in
        [("attn_q_norm", 32), ("attn_k_norm", 32), ("post_attention_norm", 64), ("post_ffw_norm", 64)]
    {
        model.floats(&format!("blk.0.{name}.weight"), &[size], &vec![1.5; size as usize]);
    }
    model
}

fn first_of_rows(values: &[f32], columns: usize) -> Vec<f32> {
    values.iter().step_by(columns).copied().collect()
}

#[test]
fn a_llama_has_its_settings_and_every_weight_in_hugging_face_names() {
    let model = Converted::new(&llama());
    for (key, expected) in [
        ("model_type", json!("llama")),
        ("hidden_size", json!(64)),
        ("intermediate_size", json!(96)),
        ("num_hidden_layers", json!(1)),
        ("num_attention_heads", json!(2)),
        ("num_key_value_heads", json!(1)),
        ("head_dim", json!(32)),
        ("vocab_size", json!(259)),
        ("max_position_embeddings", json!(128)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(10000.0)),
        ("rope_scaling", Json::Null),
        ("tie_word_embeddings", json!(true)),
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("torch_dtype", json!("float32")),
        ("bos_token_id", json!(256)),
        ("eos_token_id", json!(256)),
    ] {
        assert_eq!(model.config[key], expected, "{key}");
    }
    assert_eq!(model.weights.tensors().len(), 11);
    let rows: Vec<f32> = (0..64).map(|row| row as f32).collect();
    assert_eq!(first_of_rows(&model.floats("model.layers.0.self_attn.o_proj.weight"), 64), rows);
    assert_eq!(model.file("generation_config.json")["eos_token_id"], 256);
}

#[test]
fn rows_of_llamas_queries_and_keys_go_back_to_rotated_halves() {
    let model = Converted::new(&llama());
    // Stored rows of a head alternate between the halves: model row 0..16 are stored rows 0, 2, 4, …
    let head =
        |start: usize| (0..2).flat_map(move |half| (0..16).map(move |i| (start + 2 * i + half) as f32));
    let expected: Vec<f32> = head(0).chain(head(32)).collect();
    assert_eq!(first_of_rows(&model.floats("model.layers.0.self_attn.q_proj.weight"), 64), expected);
    assert_eq!(first_of_rows(&model.floats("model.layers.0.self_attn.k_proj.weight"), 64), expected[..32]);

    let mut qwen3 = renamed("qwen3");
    qwen3.floats("blk.0.attn_q_norm.weight", &[32], &[1.0; 32]);
    qwen3.floats("blk.0.attn_k_norm.weight", &[32], &[1.0; 32]);
    let qwen3 = Converted::new(&qwen3);
    let rows: Vec<f32> = (0..64).map(|row| row as f32).collect();
    assert_eq!(first_of_rows(&qwen3.floats("model.layers.0.self_attn.q_proj.weight"), 64), rows);
}

#[test]
fn biases_follow_their_rows() {
    let mut model = llama();
    let counting: Vec<f32> = (0..64).map(|index| index as f32).collect();
    model.floats("blk.0.attn_q.bias", &[64], &counting);
    assert!(
        matches!(refuse(&model), GgufError::MissingTensor { tensor } if tensor == "blk.0.attn_k.bias"),
        "a llama has all attention biases or none"
    );
    for (name, size) in [("attn_k", 32), ("attn_v", 32), ("attn_output", 64)] {
        model.floats(&format!("blk.0.{name}.bias"), &[size as u64], &counting[..size]);
    }
    let model = Converted::new(&model);
    assert_eq!(model.config["attention_bias"], true);
    assert_eq!(model.floats("model.layers.0.self_attn.q_proj.bias")[..3], [0.0, 2.0, 4.0]);
}

#[test]
fn gemmas_norms_lose_the_one_that_the_file_adds() {
    let model = Converted::new(&gemma3());
    assert_eq!(model.floats("model.layers.0.post_feedforward_layernorm.weight"), [0.5; 64]);
    assert_eq!(model.floats("model.norm.weight"), [0.0; 64]);
    for (key, expected) in [
        ("model_type", json!("gemma3_text")),
        ("sliding_window", json!(16)),
        ("sliding_window_pattern", json!(6)),
        ("query_pre_attn_scalar", json!(32)),
        ("rope_local_base_freq", json!(10000.0)),
        ("hidden_activation", json!("gelu_pytorch_tanh")),
    ] {
        assert_eq!(model.config[key], expected, "{key}");
    }
}

#[test]
fn rope_scaling_comes_from_the_keys_or_from_the_factors() {
    let mut linear = llama();
    linear.set("llama.rope.scaling.type", Value::Text("linear".into()));
    linear.set("llama.rope.scaling.factor", Value::F32(4.0));
    assert_eq!(
        Converted::new(&linear).config["rope_scaling"],
        json!({ "rope_type": "linear", "factor": 4.0 })
    );

    let mut yarn = linear.clone();
    yarn.set("llama.rope.scaling.type", Value::Text("yarn".into()));
    assert!(matches!(refuse(&yarn), GgufError::MissingKey { .. }));
    yarn.set("llama.rope.scaling.original_context_length", Value::U32(32));
    assert_eq!(Converted::new(&yarn).config["rope_scaling"]["original_max_position_embeddings"], 32);

    let mut unknown = llama();
    unknown.set("llama.rope.scaling.type", Value::Text("longrope".into()));
    assert!(matches!(refuse(&unknown), GgufError::KeyValue { found, .. } if found == "longrope"));

    // Factors of Llama 3.1 for a head of 32 and a base of 10,000, rule as in the reference implementation.
    let factors: Vec<f32> = (0..16)
        .map(|index| {
            let wavelength = std::f64::consts::TAU * 10_000_f64.powf(f64::from(index) / 16.0);
            let smooth = ((8192.0 / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
            (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32
        })
        .collect();
    let mut llama3 = llama();
    llama3.floats("rope_freqs.weight", &[16], &factors);
    let expected = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    assert_eq!(Converted::new(&llama3).config["rope_scaling"], expected);
    let mut wrong = llama();
    wrong.floats("rope_freqs.weight", &[16], &[2.0; 16]);
    assert!(matches!(refuse(&wrong), GgufError::RopeFactors { index: 0, .. }));
}

#[test]
fn an_architecture_or_a_tokenizer_that_is_not_supported_is_named() {
    let message = refuse(&renamed("mamba")).to_string();
    assert!(message.contains("mamba") && message.contains("gemma3"), "{message}");
    let mut model = llama();
    model.set("tokenizer.ggml.pre", Value::Text("invented".into()));
    let message = refuse(&model).to_string();
    assert!(message.contains("invented") && message.contains("llama-bpe"), "{message}");
    model.set("tokenizer.ggml.model", Value::Text("bert".into()));
    assert!(matches!(refuse(&model), GgufError::TokenizerModel { found } if found == "bert"));
}

#[test]
fn tensors_that_are_missing_unknown_or_of_another_shape_are_named() {
    let mut missing = llama();
    missing.tensors.retain(|tensor| tensor.name != "blk.0.ffn_up.weight");
    assert!(
        matches!(refuse(&missing), GgufError::MissingTensor { tensor } if tensor == "blk.0.ffn_up.weight")
    );
    let mut unknown = llama();
    unknown.floats("blk.1.attn_norm.weight", &[64], &[1.0; 64]);
    assert!(
        matches!(refuse(&unknown), GgufError::UnknownTensor { tensor, .. } if tensor == "blk.1.attn_norm.weight")
    );
    let mut shape = llama();
    shape.set("llama.feed_forward_length", Value::U32(95));
    assert!(matches!(refuse(&shape), GgufError::TensorShape { expected, .. } if expected == [95, 64]));
}

#[test]
fn quantized_vectors_and_files_of_a_split_model_are_refused() {
    let mut model = llama();
    let norm = model.tensors.iter_mut().find(|tensor| tensor.name == "output_norm.weight").unwrap();
    (norm.kind, norm.data) = (8, vec![0; 68]);
    assert!(matches!(refuse(&model), GgufError::QuantizedVector { kind: "Q8_0", .. }));
    let mut model = llama();
    model.set("split.count", Value::U32(3));
    assert!(matches!(refuse(&model), GgufError::Split { count: 3 }));
}

#[test]
fn absurd_sizes_are_refused() {
    for (key, value) in [
        ("llama.block_count", 0),
        ("llama.block_count", u32::MAX),
        ("llama.embedding_length", 0),
        ("llama.attention.head_count", 0),
        ("llama.context_length", 0),
        ("llama.rope.dimension_count", 16),
        ("llama.attention.key_length", 33),
        ("llama.attention.head_count_kv", 3),
        ("llama.expert_count", 8),
    ] {
        let mut model = llama();
        if key == "llama.rope.dimension_count" {
            model.set("llama.attention.key_length", Value::U32(32));
        }
        if key == "llama.attention.key_length" {
            model.set("llama.rope.dimension_count", Value::U32(33));
        }
        model.set(key, Value::U32(value));
        assert!(
            matches!(refuse(&model), GgufError::KeyValue { key: found, .. } if found == key),
            "{key} {value}"
        );
    }
}

#[test]
fn a_vocabulary_that_does_not_fit_together_is_refused() {
    let tokens = |change: fn(&mut Vec<String>)| {
        let mut model = llama();
        for (key, value) in &mut model.metadata {
            if let (true, Value::Strings(tokens)) = (key == "tokenizer.ggml.tokens", value) {
                change(tokens);
            }
        }
        refuse(&model)
    };
    assert!(matches!(
        tokens(|tokens| tokens[5] = "he".into()),
        GgufError::DuplicateToken { first: 5, second: 257, .. }
    ));
    assert!(matches!(tokens(|tokens| tokens.push("x".into())), GgufError::KeyValue { .. }));
    assert!(matches!(tokens(|tokens| tokens.truncate(257)), GgufError::TableLength { .. }));
    let mut model = llama();
    model.set("tokenizer.ggml.merges", Value::Strings(vec!["h e".into(), "q z".into()]));
    assert!(matches!(refuse(&model), GgufError::Merge { index: 1, .. }));
    model.set("tokenizer.ggml.merges", Value::Strings(vec!["he".into()]));
    assert!(matches!(refuse(&model), GgufError::Merge { index: 0, .. }));
    let mut model = llama();
    model.set("tokenizer.ggml.eos_token_id", Value::U32(259));
    assert!(matches!(refuse(&model), GgufError::KeyValue { found, .. } if found == "259"));
}

#[test]
fn a_text_gets_one_bos_where_the_file_asks_for_it_and_none_otherwise() {
    let ids = |model: &Builder| {
        let converted = Converted::new(model);
        converted.tokenizer().encode("he", true).unwrap().get_ids().to_vec()
    };
    let mut model = llama();
    assert_eq!(ids(&model), [257]);
    model.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    assert_eq!(ids(&model), [256, 257]);
    model.set("tokenizer.ggml.add_eos_token", Value::Bool(true));
    assert_eq!(ids(&model), [256, 257, 256]);
    model.set("tokenizer.ggml.pre", Value::Text("llama-bpe".into()));
    model.metadata.retain(|(key, _)| !key.starts_with("tokenizer.ggml.add_"));
    assert_eq!(ids(&model), [256, 257], "the llama3 kind adds BOS by itself");
}

#[test]
fn whole_words_are_taken_before_merges_in_the_kinds_that_do_so() {
    let ids = |kind: &str| {
        let mut model = llama();
        model.set("tokenizer.ggml.pre", Value::Text(kind.into()));
        Converted::new(&model).tokenizer().encode("hello", false).unwrap().get_ids().to_vec()
    };
    assert_eq!(ids("llama-bpe"), [258]);
    assert_eq!(ids("gpt-2")[0], 257);
}

#[test]
fn the_chat_template_and_the_special_tokens_are_in_the_tokenizers_configuration() {
    let mut model = llama();
    model.set("tokenizer.chat_template", Value::Text("{{ messages }}".into()));
    let config = Converted::new(&model).file("tokenizer_config.json");
    assert_eq!(config["chat_template"], "{{ messages }}");
    assert_eq!(config["eos_token"], "<|end|>");
}

#[test]
fn a_folder_that_holds_weights_is_left_alone() {
    let converted = Converted::new(&llama());
    let (file, out) = (converted.folder.path().join("model.gguf"), converted.folder.path().join("out"));
    let error = convert(&file, &out, &ConvertOptions::default(), &mut |_| ()).unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
}

#[test]
fn progress_ends_at_the_total() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("model.gguf"), folder.path().join("out"));
    std::fs::create_dir(&out).unwrap();
    std::fs::write(&file, llama().build()).unwrap();
    let mut reports = Vec::new();
    convert(&file, &out, &ConvertOptions::default(), &mut |report| reports.push(report)).unwrap();
    assert!(reports.windows(2).all(|pair| pair[0].done <= pair[1].done));
    assert_eq!(reports.last().map(|report| Some(report.done)), reports.first().map(|report| report.total));
}

//! config.json and generation_config.json of a converted file, in the names that mlx-lm 0.32 and transformers read.
//!
//! What GGUF leaves out is a constant of the architecture in llama.cpp and stands here with its source.

use super::architecture::{ATTENTION_BIASES, Architecture, MLP_BIASES, ROPE_FACTORS, Sizes, has_bias};
use super::dequant::dequantize;
use super::error::GgufError;
use super::metadata::require;
use super::reader::Gguf;
use serde_json::{Map, Value, json};

/// The model part of config.json; token ids and the quantization block are added by the caller.
pub(super) fn config(
    architecture: Architecture,
    sizes: &Sizes,
    gguf: &Gguf<'_>,
) -> Result<Map<String, Value>, GgufError> {
    use Architecture::{Gemma, Gemma2, Gemma3, Llama, Qwen2, Qwen3};
    let (model_type, class, activation, theta) = match architecture {
        Llama => ("llama", "LlamaForCausalLM", "silu", 10_000.0),
        Qwen2 => ("qwen2", "Qwen2ForCausalLM", "silu", 10_000.0),
        Qwen3 => ("qwen3", "Qwen3ForCausalLM", "silu", 10_000.0),
        Gemma => ("gemma", "GemmaForCausalLM", "gelu_pytorch_tanh", 10_000.0),
        Gemma2 => ("gemma2", "Gemma2ForCausalLM", "gelu_pytorch_tanh", 10_000.0),
        Gemma3 => ("gemma3_text", "Gemma3ForCausalLM", "gelu_pytorch_tanh", 1_000_000.0),
    };
    let key = |name: &str| format!("{}.{name}", architecture.name());
    let float = |name: &str| gguf.metadata.f32(&key(name));
    let epsilon = "attention.layer_norm_rms_epsilon";

    let mut config = Map::new();
    let mut set = |name: &str, value: Value| config.insert(name.to_owned(), value);
    set("architectures", json!([class]));
    set("model_type", json!(model_type));
    set("vocab_size", json!(sizes.vocabulary));
    set("hidden_size", json!(sizes.hidden));
    set("intermediate_size", json!(sizes.intermediate));
    set("num_hidden_layers", json!(sizes.layers));
    set("num_attention_heads", json!(sizes.heads));
    set("num_key_value_heads", json!(sizes.kv_heads));
    set("head_dim", json!(sizes.head_dim));
    set("max_position_embeddings", json!(sizes.context));
    set("rms_norm_eps", number(require(&key(epsilon), float(epsilon)?)?));
    set("rope_theta", number(float("rope.freq_base")?.unwrap_or(theta)));
    set("rope_scaling", rope_scaling(architecture, sizes, gguf)?);
    set("tie_word_embeddings", json!(gguf.tensor("output.weight").is_none()));
    set("hidden_act", json!(activation));
    if architecture.is_gemma() {
        set("hidden_activation", json!(activation));
    }
    if architecture == Llama {
        set("attention_bias", json!(has_bias(gguf, ATTENTION_BIASES)));
        set("mlp_bias", json!(has_bias(gguf, MLP_BIASES)));
    }
    if architecture == Qwen3 {
        set("attention_bias", json!(false));
    }
    if matches!(architecture, Gemma2 | Gemma3) {
        // The 27B models, told by their layer counts, scale by the hidden size a head
        // (llama.cpp, src/models/gemma2.cpp and gemma3.cpp); all others by the head size.
        let largest = if architecture == Gemma2 { 46 } else { 62 };
        let scalar = if sizes.layers == largest { sizes.hidden / sizes.heads } else { sizes.head_dim };
        set("query_pre_attn_scalar", json!(scalar));
        let window = gguf.metadata.u32(&key("attention.sliding_window"))?;
        set("sliding_window", json!(window.unwrap_or(if architecture == Gemma2 { 4096 } else { 512 })));
        let softcap = |default| float("final_logit_softcapping").map(|cap| cap.map_or(default, number));
        if architecture == Gemma2 {
            set("attn_logit_softcapping", number(float("attn_logit_softcapping")?.unwrap_or(50.0)));
            set("final_logit_softcapping", softcap(json!(30.0))?);
        } else {
            set("final_logit_softcapping", softcap(Value::Null)?);
            // Every sixth layer sees everything; a file without a window has no other kind.
            let pattern = if window.is_none() { 1 } else { 6 };
            set("sliding_window_pattern", json!(pattern));
            set("rope_local_base_freq", number(float("rope.freq_base_swa")?.unwrap_or(10_000.0)));
        }
    }
    Ok(config)
}

/// The shortest decimal that is this float32, so that `1e-5` stays `1e-5`.
fn number(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or_else(|_| f64::from(value)))
}

fn rope_scaling(architecture: Architecture, sizes: &Sizes, gguf: &Gguf<'_>) -> Result<Value, GgufError> {
    let key = |name: &str| format!("{}.rope.{name}", architecture.name());
    let float = |name: &str| gguf.metadata.f32(&key(name));
    if let Some(factors) = gguf.tensor(ROPE_FACTORS) {
        let mut stored = Vec::new();
        dequantize(factors.kind, factors.data, &mut stored);
        let theta = float("freq_base")?.unwrap_or(10_000.0);
        return llama3_scaling(&stored, theta, sizes.head_dim);
    }
    let kind = key("scaling.type");
    let factor = float("scaling.factor")?.or(float("scale_linear")?);
    match gguf.metadata.string(&kind)? {
        Some("none") => Ok(Value::Null),
        None if factor.is_none() => Ok(Value::Null),
        None | Some("linear") => {
            let factor = require(&key("scaling.factor"), factor)?;
            Ok(json!({ "rope_type": "linear", "factor": number(factor) }))
        }
        Some("yarn") => {
            let mut scaling = json!({
                "rope_type": "yarn",
                "factor": number(require(&key("scaling.factor"), factor)?),
            });
            let original = key("scaling.original_context_length");
            scaling["original_max_position_embeddings"] =
                json!(require(&original, gguf.metadata.u32(&original)?)?);
            for (from, to) in
                [("scaling.yarn_beta_fast", "beta_fast"), ("scaling.yarn_beta_slow", "beta_slow")]
            {
                if let Some(value) = float(from)? {
                    scaling[to] = number(value);
                }
            }
            Ok(scaling)
        }
        Some(found) => Err(GgufError::KeyValue {
            key: kind,
            found: found.to_owned(),
            requirement: "none, linear or yarn".to_owned(),
        }),
    }
}

/// The llama3 settings that give these factors. Files keep the factors alone; all Llama 3 releases share the
/// other three settings, and the factors prove it (Llama 3.1, `apply_scaling` of the reference implementation).
fn llama3_scaling(factors: &[f32], theta: f32, head_dim: usize) -> Result<Value, GgufError> {
    let (low, high, original) = (1.0, 4.0, 8192.0);
    if factors.len() != head_dim / 2 {
        return Err(GgufError::TensorShape {
            tensor: ROPE_FACTORS.to_owned(),
            found: vec![factors.len()],
            expected: vec![head_dim / 2],
        });
    }
    let factor = factors.iter().copied().fold(1.0, f32::max);
    for (index, &found) in factors.iter().enumerate() {
        let wavelength =
            2.0 * std::f64::consts::PI * f64::from(theta).powf(2.0 * index as f64 / head_dim as f64);
        let expected = if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            f64::from(factor)
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / f64::from(factor) + smooth)
        } as f32;
        if (found - expected).abs() > 1e-3 * expected {
            return Err(GgufError::RopeFactors { index, found, expected });
        }
    }
    Ok(json!({
        "rope_type": "llama3",
        "factor": number(factor),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original as u32,
    }))
}

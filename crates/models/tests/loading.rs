//! Loading: every tensor and setting has its place, or an error that names it.

mod support;

use serde_json::json;
use strata_models::{Error, supported_model_types};
use strata_tensor::{Array, Dtype, ops};
use support::Tiny;

#[test]
fn b12_a_tied_head_drops_an_lm_head_in_the_file() {
    for (variant, embedding) in [("llama/f32", "model.embed_tokens"), ("qwen2/q4g32", "model.embed_tokens")] {
        let tied = Tiny::of(variant).set("tie_word_embeddings", true);
        let mut both = tied.clone();
        for part in ["weight", "scales", "biases"] {
            if let Some(tensor) = tied.tensors.get(&format!("{embedding}.{part}")) {
                let other = ops::zeros(&*tensor.shape(), tensor.dtype()).unwrap();
                both = both.with(&format!("lm_head.{part}"), other);
            }
        }
        assert!(both.logits() == tied.logits(), "{variant}: the head is the embedding table");
        if let Some(settings) = both.config.get_mut("quantization") {
            settings["lm_head"] = json!({"bits": 8, "group_size": 32});
            assert!(both.logits() == tied.logits(), "{variant}: settings go with the tensors");
        }
    }
}

#[test]
fn b12_an_untied_head_that_no_shard_holds_is_named() {
    for variant in ["llama/f32", "llama/q4g32", "qwen2/f32", "qwen3/q4g32", "gemma3_text/f32"] {
        let refusal = Tiny::of(variant).set("tie_word_embeddings", false).refusal();
        assert!(refusal.contains("lm_head.weight"), "{variant}: {refusal}");
    }
    for variant in ["phi3/q4g32", "qwen3_moe/f32"] {
        let refusal = Tiny::of(variant).without("lm_head.weight").refusal();
        assert!(refusal.contains("lm_head.weight"), "{variant}: {refusal}");
    }
}

#[test]
fn a_wrapped_gemma3_equals_the_plain_one() {
    let plain = Tiny::of("gemma3_text/f32");
    let expected = plain.logits();
    let old = plain.clone().renamed(|name| format!("language_model.{name}")).nested("gemma3");
    assert!(old.logits() == expected, "names as mlx-lm and older transformers write them");
    let new = plain.renamed(|name| name.replacen("model.", "model.language_model.", 1)).nested("gemma3");
    assert!(new.logits() == expected, "names as transformers 5 writes them");
    let tower = ops::zeros([3, 5], Dtype::Float32).unwrap();
    let seeing = new
        .with("model.vision_tower.patch.weight", tower.clone())
        .with("model.multi_modal_projector.weight", tower.clone());
    assert!(seeing.logits() == expected, "towers are dropped");
    let refusal = seeing.with("model.audio_tower.weight", tower).refusal();
    assert!(refusal.contains("model.audio_tower.weight"), "{refusal}");
}

#[test]
fn two_tensors_for_one_place_are_both_named() {
    let plain = Tiny::of("gemma3_text/f32");
    let norm = plain.tensors["model.norm.weight"].clone();
    let refusal =
        plain.with("language_model.model.norm.weight", norm).set("model_type", "gemma3_text").refusal();
    assert!(
        refusal.contains("language_model.model.norm.weight") && refusal.contains(" model.norm.weight"),
        "{refusal}"
    );
}

/// `gemma3_text/mixed` as a part of a larger model, tensors and settings under raw names.
fn wrapped_mixed() -> Tiny {
    let raw = |name: &str| name.replacen("model.", "model.language_model.", 1);
    let mut wrapped = Tiny::of("gemma3_text/mixed").renamed(raw);
    let settings = wrapped.config["quantization"].as_object().unwrap().clone();
    let settings = settings.into_iter().map(|(key, value)| (raw(&key), value)).collect();
    wrapped.config.insert("quantization".to_owned(), serde_json::Value::Object(settings));
    wrapped.nested("gemma3")
}

#[test]
fn b10_an_override_keyed_by_the_raw_prefix_is_applied() {
    let wrapped = wrapped_mixed();
    assert!(wrapped.logits() == Tiny::of("gemma3_text/mixed").logits(), "both mean the same");
    // The entry, not the shapes or the default, decides: one that contradicts the shapes is an error.
    let mut wrong = wrapped;
    wrong.config["quantization"]["model.language_model.layers.1.mlp.up_proj"]["bits"] = json!(3);
    let refusal = wrong.refusal();
    assert!(refusal.contains("model.layers.1.mlp.up_proj"), "{refusal}");
}

#[test]
fn b10_an_override_that_matches_nothing_is_named() {
    let mut wrapped = wrapped_mixed();
    wrapped.config["quantization"]["model.language_model.layers.7.x"] = json!({"bits": 6, "group_size": 32});
    wrapped.config["quantization"]["model.vision_tower.y"] = json!({"bits": 6, "group_size": 32});
    match wrapped.load().map(|_| ()) {
        Err(Error::UnmatchedQuantization { names }) => assert_eq!(names, ["model.language_model.layers.7.x"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_model_type_lists_what_is_supported() {
    let refusal = Tiny::of("llama/f32").set("model_type", "llama9").refusal();
    assert!(refusal.contains("\"llama9\""), "{refusal}");
    for known in supported_model_types() {
        assert!(refusal.contains(known), "{refusal}");
    }
}

const PLAIN: [&str; 8] = [
    "gemma/f32",
    "gemma2/f32",
    "gemma3_text/f32",
    "llama/f32",
    "phi3/f32",
    "qwen2/f32",
    "qwen3/f32",
    "qwen3_moe/f32",
];

#[test]
fn absurd_sizes_are_refused_by_name_before_anything_is_made_of_them() {
    for variant in PLAIN {
        for key in [
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "max_position_embeddings",
        ] {
            for absurd in [json!(0), json!(-1), json!(1.5), json!("64"), json!(1u64 << 40), json!(1e300)] {
                let model = Tiny::of(variant).set(key, absurd.clone());
                let refusal = match model.declare() {
                    Ok(_) => panic!("{variant}: {key} = {absurd}"),
                    Err(error) => error.to_string(),
                };
                assert!(refusal.contains(key), "{variant}: {key} = {absurd}: {refusal}");
            }
        }
    }
}

#[test]
fn sizes_that_are_absurd_together_are_refused() {
    let largest = 1 << 24;
    let model = Tiny::of("qwen3/f32").set("head_dim", largest).set("num_attention_heads", largest);
    let refusal = model.set("num_key_value_heads", 1).refusal();
    assert!(refusal.contains("head_dim"), "{refusal}");
    let refusal = Tiny::of("qwen2/f32").set("hidden_size", 97).refusal();
    assert!(refusal.contains("num_attention_heads"), "{refusal}");
    let refusal = Tiny::of("llama/f32").set("num_key_value_heads", 4).refusal();
    assert!(refusal.contains("num_key_value_heads"), "{refusal}");
    let refusal = Tiny::of("qwen3_moe/f32").set("num_experts_per_tok", 6).refusal();
    assert!(refusal.contains("num_experts_per_tok"), "{refusal}");
    let refusal = Tiny::of("llama/f32").set("num_hidden_layers", 4096).refusal();
    assert!(refusal.contains("model.layers.2."), "the first missing layer is named: {refusal}");
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    for variant in PLAIN {
        let name = "model.layers.0.input_layernorm.weight";
        let model = Tiny::of(variant);
        let size = model.tensors[name].dim(0);
        let refusal = model.with(name, ops::ones([size + 1], Dtype::Float32).unwrap()).refusal();
        let (found, expected) = ((size + 1).to_string(), size.to_string());
        assert!(
            refusal.contains(name) && refusal.contains(&found) && refusal.contains(&expected),
            "{variant}: {refusal}"
        );
    }
}

#[test]
fn a_missing_tensor_is_named() {
    for variant in PLAIN {
        let model = Tiny::of(variant);
        for name in model.tensors.keys().filter(|name| *name != "lm_head.weight") {
            let refusal = model.clone().without(name).refusal();
            assert!(refusal.contains(name), "{variant} without {name}: {refusal}");
        }
    }
}

#[test]
fn a_tensor_without_a_place_is_named() {
    for variant in PLAIN {
        let extra = ops::ones([3], Dtype::Float32).unwrap();
        let refusal = Tiny::of(variant).with("model.layers.0.self_attn.q_proj.lora", extra).refusal();
        assert!(refusal.contains("model.layers.0.self_attn.q_proj.lora"), "{variant}: {refusal}");
    }
}

#[test]
fn a_tensor_of_integers_is_no_weight() {
    let whole = Array::from_slice(&[1i32; 64], [64]).unwrap();
    let refusal = Tiny::of("llama/f32").with("model.norm.weight", whole).refusal();
    assert!(refusal.contains("model.norm.weight") && refusal.contains("int32"), "{refusal}");
}

#[test]
fn what_a_family_does_not_do_is_refused_by_name() {
    for (variant, key, value) in [
        ("llama/f32", "hidden_act", json!("gelu")),
        ("llama/f32", "rope_scaling", json!({"rope_type": "spiral"})),
        ("llama/f32", "rope_scaling", json!({"rope_type": "linear", "factor": 0.0})),
        ("llama/f32", "layer_types", json!(["full_attention", "linear_attention"])),
        ("llama/f32", "layer_types", json!(["full_attention"])),
        ("qwen2/f32", "use_sliding_window", json!(true)),
        ("qwen2/f32", "head_dim", json!(32)),
        ("qwen3/f32", "attention_bias", json!(true)),
        ("qwen3/f32", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("qwen3_moe/f32", "rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
        ("qwen3_moe/f32", "hidden_act", json!("gelu")),
        ("gemma/f32", "tie_word_embeddings", json!(false)),
        ("gemma/f32", "rope_scaling", json!({"rope_type": "linear", "factor": 4.0})),
        ("gemma2/f32", "attention_bias", json!(true)),
        ("gemma2/f32", "attn_logit_softcapping", json!(null)),
        ("gemma2/f32", "final_logit_softcapping", json!(0.0)),
        ("gemma3_text/f32", "use_bidirectional_attention", json!(true)),
        ("gemma3_text/f32", "attn_logit_softcapping", json!(50.0)),
        ("gemma3_text/f32", "layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
        ("phi3/f32", "partial_rotary_factor", json!(1.5)),
        ("phi3/f32", "rope_scaling", json!({"type": "yarn", "long_factor": [1.0], "factor": 2.0})),
        ("phi3/longrope", "rope_scaling", json!({"type": "longrope", "long_factor": [1.0, 2.0]})),
        ("phi3/longrope", "original_max_position_embeddings", json!(1)),
    ] {
        match Tiny::of(variant).set(key, value.clone()).load().map(|_| ()) {
            Err(Error::Unsupported { key: named, .. }) => assert_eq!(named, key, "{variant}"),
            other => panic!("{variant}: {key} = {value}: {other:?}"),
        }
    }
}

#[test]
fn rotary_settings_may_stand_in_rope_parameters() {
    for variant in ["llama/rope-llama3", "llama/rope-yarn", "qwen2/f32", "gemma/f32", "qwen3_moe/f32"] {
        let model = Tiny::of(variant);
        let mut nested = model.clone().unset("rope_theta");
        let scaling = nested.config.remove("rope_scaling").unwrap_or_else(|| json!({"rope_type": "default"}));
        let mut parameters = scaling.as_object().unwrap().clone();
        parameters.insert("rope_theta".to_owned(), model.config["rope_theta"].clone());
        assert!(
            nested.set("rope_parameters", json!(parameters)).logits() == model.logits(),
            "{variant}: both mean the same"
        );
    }
    let scaling = json!({"rope_type": "linear", "factor": 8.0});
    let model = Tiny::of("gemma3_text/f32").set("rope_scaling", scaling).set("rope_theta", 20000.0);
    let nested = model.clone().unset("rope_theta").unset("rope_scaling").unset("rope_local_base_freq");
    let parameters = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 20000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    });
    assert!(
        nested.set("rope_parameters", parameters).logits() == model.logits(),
        "each kind of layer has its own"
    );
}

#[test]
fn separate_experts_equal_stacked_ones() {
    let stacked = Tiny::of("qwen3_moe/f32");
    let mut separate = stacked.clone();
    for (name, tensor) in &stacked.tensors {
        let Some((layer, rest)) = name.split_once("mlp.switch_mlp.") else { continue };
        separate.tensors.remove(name);
        for expert in 0..tensor.dim(0) {
            let matrix = tensor.slice_axis(0, expert, expert + 1).unwrap().squeeze(&[0]).unwrap();
            separate.tensors.insert(format!("{layer}mlp.experts.{expert}.{rest}"), matrix);
        }
    }
    assert!(separate.logits() == stacked.logits(), "the same experts");
    let refusal = separate.without("model.layers.1.mlp.experts.3.up_proj.weight").refusal();
    assert!(refusal.contains("model.layers.1.mlp.experts.3.up_proj.weight"), "{refusal}");
}

#[test]
fn a_step_reads_the_head_and_the_chosen_experts_but_no_more_of_the_table_than_its_rows() {
    let all = |folder: &Tiny| -> [usize; 3] {
        let graph = folder.load().unwrap();
        let all = graph.weights().iter().map(|w| w.nbytes()).sum();
        [all, graph.step_bytes(1), graph.step_bytes(2)]
    };
    // The table is the head.
    let [total, one, two] = all(&Tiny::of("gemma3_text/f32"));
    assert_eq!([one, two], [total, total]);
    // Two layers of 5 experts of three matrices 32 x 64, of which a row takes 3, beside a table of 101 x 64 in float32.
    let [total, one, two] = all(&Tiny::of("qwen3_moe/f32"));
    let (table, expert) = (101 * 64 * 4, 3 * 32 * 64 * 4);
    assert_eq!(one, total - table - 2 * 2 * expert);
    assert_eq!(two, total - table);
}

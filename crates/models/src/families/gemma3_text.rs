//! Gemma 3, its text part: mlx-lm 0.32.2 `models/gemma3_text.py`, and `models/gemma3.py` around it.
//!
//! Gemma 2's block without soft caps, with a norm on every query and key head. Of each `sliding_window_pattern` layers the
//! last attends to everything; the others see a window and rotate at a base of their own. In float16 the residual sum is
//! clipped to the type's range. Image and bidirectional variants are refused.
//!
//! Deviations: rotary settings are also read from `rope_parameters`, as transformers 5 writes them.

use crate::config::Config;
use crate::error::Result;
use crate::graph::Graph;
use crate::layers::activation::Gate;
use crate::layers::attention::{Biases, Heads, Projections, heads_first};
use crate::layers::decoder::{Block, Decoder};
use crate::layers::embedding::Embedding;
use crate::layers::head::Head;
use crate::layers::mlp::Mlp;
use crate::layers::norm::RmsNorm;
use crate::layers::rope::Rope;
use crate::weights::Source;
use std::rc::Rc;
use strata_contracts::{Capabilities, GraphDeclaration};
use strata_kernels::rms_norm::Overflow;
use strata_state::{LayerState, Phase, Positions};
use strata_tensor::compile::{CompiledFunction, compile};
use strata_tensor::{Array, Dtype};

/// Settings that mlx-lm's file does not read either, and that change nothing here.
const IGNORED: &[&str] = &["_sliding_window_pattern", "cache_implementation"];

struct Settings {
    heads: Heads,
    intermediate: i32,
    eps: f32,
    vocab: i32,
    layers: usize,
    window: i32,
    /// Every so many layers one attends to everything.
    pattern: usize,
    max_positions: i32,
    scale: f32,
    /// The head is the embedding table when the checkpoint has no other; `false` insists that it has.
    may_be_tied: bool,
}

impl Settings {
    fn read(config: &Config<'_>) -> Result<Self> {
        config.demand("hidden_activation", &["gelu_pytorch_tanh"])?;
        config.refuse("attention_bias", "projections have no biases in this family")?;
        config.refuse("use_bidirectional_attention", "only causal attention is implemented")?;
        config.refuse("attn_logit_softcapping", "scores have no soft cap in this family")?;
        config.refuse("final_logit_softcapping", "logits have no soft cap in this family")?;
        // What `models/gemma3.py` puts in place of what `text_config` leaves out.
        let (queries, keys, vocab) = if config.is_nested() { (8, 4, 262_208) } else { (4, 1, 262_144) };
        let size = |key, default| config.size_or(key, default);
        let hidden = size("hidden_size", 1152)?;
        let queries = size("num_attention_heads", queries)?;
        let keys = size("num_key_value_heads", keys)?;
        if queries % keys != 0 {
            return Err(config.unsupported("num_key_value_heads", format!("it does not divide {queries}")));
        }
        let settings = Self {
            heads: Heads::new(config, hidden, queries, keys, size("head_dim", 256)?)?,
            intermediate: size("intermediate_size", 6912)?,
            eps: config.get_or("rms_norm_eps", 1e-6)?,
            vocab: match config.outermost_size("vocab_size")? {
                Some(vocab) => vocab,
                None => size("vocab_size", vocab)?,
            },
            layers: config.get_layers()?.unwrap_or(26),
            window: size("sliding_window", 512)?,
            pattern: size("sliding_window_pattern", 6)? as usize,
            max_positions: size("max_position_embeddings", 32768)?,
            scale: config.positive("query_pre_attn_scalar", 256.0)?.powf(-0.5) as f32,
            may_be_tied: config.get_or("tie_word_embeddings", true)?,
        };
        settings.check_layer_types(config)?;
        Ok(settings)
    }

    fn is_global(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.pattern)
    }

    /// `layer_types` says the same as the pattern, where both are there.
    fn check_layer_types(&self, config: &Config<'_>) -> Result<()> {
        let Some(types) = config.get::<Vec<String>>("layer_types")? else { return Ok(()) };
        let of_pattern = (0..self.layers)
            .map(|layer| if self.is_global(layer) { "full_attention" } else { "sliding_attention" });
        if types.iter().map(String::as_str).eq(of_pattern) {
            return Ok(());
        }
        let reason = format!("with sliding_window_pattern {} it means something else", self.pattern);
        Err(config.unsupported("layer_types", reason))
    }

    fn declaration(&self) -> GraphDeclaration {
        let kind = |layer| {
            if self.is_global(layer) { self.heads.full() } else { self.heads.sliding(self.window) }
        };
        GraphDeclaration {
            family: "gemma3_text".to_owned(),
            vocab_size: self.vocab as u32,
            context_length: self.max_positions as u32,
            layers: (0..self.layers).map(kind).collect(),
            capabilities: Capabilities { batched_rows: true, verify: true },
        }
    }
}

pub(crate) fn declare(config: &Config<'_>) -> Result<GraphDeclaration> {
    Ok(Settings::read(config)?.declaration())
}

/// Names of the language model, whatever wraps it; towers for other inputs are dropped.
pub(crate) fn rename(name: &str) -> Option<String> {
    let of_wrapper = name.strip_prefix("model.").unwrap_or(name);
    if of_wrapper.starts_with("vision_tower") || of_wrapper.starts_with("multi_modal_projector") {
        return None;
    }
    // transformers 5 has `model.language_model.layers`, older files have `language_model.model.layers`.
    Some(match (name.strip_prefix("model.language_model."), name.strip_prefix("language_model.")) {
        (Some(rest), _) => format!("model.{rest}"),
        (None, Some(rest)) => rest.to_owned(),
        (None, None) => name.to_owned(),
    })
}

pub(crate) fn bind(config: &Config<'_>, source: &Source<'_>) -> Result<Box<dyn Graph>> {
    let s = Settings::read(config)?;
    let shared = Shared {
        global: Rc::new(global_rope(config, &s)?),
        local: Rc::new(local_rope(config, &s)?),
        gate: Gate::tanh_gelu(),
        add: Rc::new(clipped_sum()),
    };
    config.report_unread(IGNORED);

    let hidden = s.heads.hidden;
    let layers = (0..s.layers)
        .map(|i| GemmaBlock::load(source, &format!("model.layers.{i}"), &s, s.is_global(i), &shared))
        .collect::<Result<_>>()?;
    // The factor is rounded to bfloat16 before it takes the vectors' type.
    let factor = half::bf16::from_f32(f64::from(hidden).sqrt() as f32).to_f32();
    let tied = s.may_be_tied && !source.has("lm_head.weight");
    Ok(Box::new(Decoder {
        embed_tokens: Embedding::load(source, "model.embed_tokens", s.vocab, hidden)?.times(factor),
        layers,
        norm: RmsNorm::load_from_one(source, "model.norm", hidden, s.eps)?,
        lm_head: Head::load(source, tied, s.vocab, hidden)?,
        declaration: s.declaration(),
    }))
}

fn global_rope(config: &Config<'_>, s: &Settings) -> Result<Rope> {
    let nested = config.rope_parameters_of("full_attention")?;
    let nested_base = nested.as_ref().map(|n| n.get("rope_theta")).transpose()?.flatten();
    let base = config.get("rope_theta")?.or(nested_base).unwrap_or(1_000_000.0);
    let scaling = config.section("rope_scaling")?.or(nested);
    Rope::from_config(config, scaling.as_ref(), s.heads.dim, base, false, Some(s.max_positions))
}

fn local_rope(config: &Config<'_>, s: &Settings) -> Result<Rope> {
    let nested = config.rope_parameters_of("sliding_attention")?;
    let nested_base = nested.as_ref().map(|n| n.get("rope_theta")).transpose()?.flatten();
    let base = config.get("rope_local_base_freq")?.or(nested_base).unwrap_or(10000.0);
    Rope::from_config(config, nested.as_ref(), s.heads.dim, base, false, None)
}

/// `x + y`; in float16 the sum is taken in float32 and clipped to float16's range.
fn clipped_sum() -> CompiledFunction {
    let sum = |inputs: &[Array]| {
        let (x, y) = (&inputs[0], &inputs[1]);
        if x.dtype() != Dtype::Float16 {
            return Ok(vec![x.add(y)?]);
        }
        let bound = half::f16::MAX.to_f32();
        let sum = x.astype(Dtype::Float32)?.add(&y.astype(Dtype::Float32)?)?;
        let clipped = sum.clip(Some(&Array::from_f32(-bound)), Some(&Array::from_f32(bound)))?;
        Ok(vec![clipped.astype(Dtype::Float16)?])
    };
    compile(sum, true)
}

/// What all blocks use.
struct Shared {
    global: Rc<Rope>,
    local: Rc<Rope>,
    gate: Gate,
    add: Rc<CompiledFunction>,
}

struct GemmaBlock {
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    post_feedforward_layernorm: RmsNorm,
    add: Rc<CompiledFunction>,
}

impl GemmaBlock {
    fn load(source: &Source<'_>, path: &str, s: &Settings, global: bool, shared: &Shared) -> Result<Self> {
        let norm = |name| RmsNorm::load_from_one(source, &format!("{path}.{name}"), s.heads.hidden, s.eps);
        let (attn, mlp) = (format!("{path}.self_attn"), format!("{path}.mlp"));
        Ok(Self {
            self_attn: Attention::load(
                source,
                &attn,
                s,
                if global { &shared.global } else { &shared.local },
            )?,
            mlp: Mlp::load(source, &mlp, s.heads.hidden, s.intermediate, false, shared.gate.clone())?,
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
            add: Rc::clone(&shared.add),
        })
    }
}

impl GemmaBlock {
    /// `x + norm(r)`, clipped.
    fn add(&self, x: &Array, norm: &RmsNorm, r: &Array) -> Result<Array> {
        match norm.host_onto(x, r, Overflow::Clip)? {
            Some(sum) => Ok(sum),
            None => Ok(self.add.call(&[x, &norm.forward(r)?])?.swap_remove(0)),
        }
    }
}

impl Block for GemmaBlock {
    fn forward(
        &self,
        x: &Array,
        state: &mut LayerState,
        positions: &Positions,
        phase: Phase,
    ) -> Result<Array> {
        let r = self.self_attn.forward(&self.input_layernorm, x, state, positions, phase)?;
        let h = self.add(x, &self.post_attention_layernorm, &r)?;
        let r = self.mlp.forward(&self.pre_feedforward_layernorm, &h)?;
        self.add(&h, &self.post_feedforward_layernorm, &r)
    }

    fn weights(&self) -> Vec<&Array> {
        let norms = [
            self.input_layernorm.weight(),
            self.post_attention_layernorm.weight(),
            self.pre_feedforward_layernorm.weight(),
            self.post_feedforward_layernorm.weight(),
        ];
        self.self_attn.weights().chain(self.mlp.weights()).chain(norms).collect()
    }
}

/// Attention with a norm on every head after the heads come first.
struct Attention {
    projections: Projections,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    rope: Rc<Rope>,
    scale: f32,
}

impl Attention {
    fn load(source: &Source<'_>, path: &str, s: &Settings, rope: &Rc<Rope>) -> Result<Self> {
        let norm = |name| RmsNorm::load_from_one(source, &format!("{path}.{name}"), s.heads.dim, s.eps);
        Ok(Self {
            projections: Projections::load(source, path, s.heads, Biases::None)?,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            rope: Rc::clone(rope),
            scale: s.scale,
        })
    }

    fn forward(
        &self,
        norm: &RmsNorm,
        x: &Array,
        state: &mut LayerState,
        positions: &Positions,
        phase: Phase,
    ) -> Result<Array> {
        let [queries, keys, values] = self.heads(norm, x, positions)?;
        let read = state.append(&keys, &values, phase)?;
        self.projections.output(&read.attend_joined(&queries, self.scale, None)?)
    }

    /// Rotated queries `[B, H, L, D]` and keys, and values, `[B, K, L, D]`.
    fn heads(&self, norm: &RmsNorm, x: &Array, positions: &Positions) -> Result<[Array; 3]> {
        let norms = [&self.q_norm, &self.k_norm];
        if let Some(heads) = self.projections.host_heads(Some(norms), &self.rope, positions, norm, x)? {
            return Ok(heads);
        }
        let [queries, keys, values] = self.projections.project(norm, x)?;
        let queries = self.q_norm.forward(&heads_first(&queries)?)?;
        let keys = self.k_norm.forward(&heads_first(&keys)?)?;
        let queries = self.rope.forward(&queries, positions)?;
        let keys = self.rope.forward(&keys, positions)?;
        Ok([queries, keys, heads_first(&values)?])
    }

    fn weights(&self) -> impl Iterator<Item = &Array> {
        self.projections.weights().chain([self.q_norm.weight(), self.k_norm.weight()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_tensor::fast;

    fn sum(dtype: Dtype) -> (Vec<f32>, Vec<f32>) {
        let array = |values: &[f32]| Array::from_slice(values, [4]).unwrap().astype(dtype).unwrap();
        let (x, y) = (array(&[60000.0, -60000.0, 1.5, 512.0]), array(&[10000.0, -10000.0, 0.25, -511.0]));
        let sum = clipped_sum().call(&[&x, &y]).unwrap().swap_remove(0);
        assert_eq!(sum.dtype(), dtype);
        let normed = fast::rms_norm(&sum, None, 1e-6).unwrap();
        let values = |a: &Array| a.astype(Dtype::Float32).unwrap().to_vec().unwrap();
        (values(&sum), values(&normed))
    }

    #[test]
    fn b14_a_float16_residual_is_clipped_and_others_are_not() {
        let (clipped, normed) = sum(Dtype::Float16);
        assert_eq!(clipped, [65504.0, -65504.0, 1.75, 1.0]);
        assert!(normed.iter().all(|value| value.is_finite()), "{normed:?}");
        assert_eq!(sum(Dtype::Float32).0, [70000.0, -70000.0, 1.75, 1.0]);
        // 8 bits of significand: 60000 is 59904, 10000 is 9984, their sum 69888 is 69632.
        assert_eq!(sum(Dtype::Bfloat16).0, [69632.0, -69632.0, 1.75, 0.0]);
    }
}

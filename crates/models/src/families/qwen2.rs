//! Qwen 2 and 2.5: mlx-lm 0.32.2 `models/qwen2.py`.
//!
//! Llama's block with biases on queries, keys and values. A head has `hidden_size / num_attention_heads` values.
//! Sliding windows, which some configurations describe and none turns on, are refused.

use crate::config::Config;
use crate::error::Result;
use crate::graph::Graph;
use crate::layers::activation::Gate;
use crate::layers::attention::{Attention, Biases, Heads};
use crate::layers::decoder::{Block, Decoder};
use crate::layers::embedding::Embedding;
use crate::layers::head::Head;
use crate::layers::mlp::Mlp;
use crate::layers::norm::RmsNorm;
use crate::layers::rope::Rope;
use crate::weights::Source;
use std::rc::Rc;
use strata_contracts::{Capabilities, GraphDeclaration};
use strata_state::{LayerState, Phase, Positions};
use strata_tensor::Array;

/// Settings that mlx-lm's file does not read either.
const IGNORED: &[&str] = &["sliding_window", "max_window_layers"];

struct Settings {
    heads: Heads,
    intermediate: i32,
    eps: f32,
    vocab: i32,
    tied: bool,
    layers: usize,
    max_positions: i32,
}

impl Settings {
    fn read(config: &Config<'_>) -> Result<Self> {
        config.demand("hidden_act", &["silu"])?;
        config.refuse("use_sliding_window", "sliding windows are not implemented for this family")?;
        config.demand_layers("full_attention")?;
        let heads = Heads::read(config)?;
        if heads.dim * heads.queries != heads.hidden {
            return Err(config.unsupported("head_dim", "heads must divide hidden_size among them"));
        }
        Ok(Self {
            heads,
            intermediate: config.size("intermediate_size")?,
            eps: config.require("rms_norm_eps")?,
            vocab: config.size("vocab_size")?,
            tied: config.get_or("tie_word_embeddings", true)?,
            layers: config.layers()?,
            max_positions: config.size_or("max_position_embeddings", 32768)?,
        })
    }

    fn declaration(&self) -> GraphDeclaration {
        GraphDeclaration {
            family: "qwen2".to_owned(),
            vocab_size: self.vocab as u32,
            context_length: self.max_positions as u32,
            layers: vec![self.heads.full(); self.layers],
            capabilities: Capabilities { batched_rows: true, verify: true },
        }
    }
}

pub(crate) fn declare(config: &Config<'_>) -> Result<GraphDeclaration> {
    Ok(Settings::read(config)?.declaration())
}

pub(crate) fn bind(config: &Config<'_>, source: &Source<'_>) -> Result<Box<dyn Graph>> {
    let s = Settings::read(config)?;
    let (base, scaling) = config.rope(Some(1_000_000.0))?;
    let traditional = config.get_or("rope_traditional", false)?;
    let max_positions = Some(s.max_positions);
    let rope = Rope::from_config(config, scaling.as_ref(), s.heads.dim, base, traditional, max_positions)?;
    config.report_unread(IGNORED);

    source.discard(|name| name.contains("self_attn.rotary_emb.inv_freq"));
    let (rope, gate) = (Rc::new(rope), Gate::swiglu());
    let layers = (0..s.layers)
        .map(|i| QwenBlock::load(source, &format!("model.layers.{i}"), &s, &rope, &gate))
        .collect::<Result<_>>()?;
    Ok(Box::new(Decoder {
        embed_tokens: Embedding::load(source, "model.embed_tokens", s.vocab, s.heads.hidden)?,
        layers,
        norm: RmsNorm::load(source, "model.norm", s.heads.hidden, s.eps)?,
        lm_head: Head::load(source, s.tied, s.vocab, s.heads.hidden)?,
        declaration: s.declaration(),
    }))
}

struct QwenBlock {
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

impl QwenBlock {
    fn load(source: &Source<'_>, path: &str, s: &Settings, rope: &Rc<Rope>, gate: &Gate) -> Result<Self> {
        let norm = |name| RmsNorm::load(source, &format!("{path}.{name}"), s.heads.hidden, s.eps);
        let (attn, mlp) = (format!("{path}.self_attn"), format!("{path}.mlp"));
        Ok(Self {
            self_attn: Attention::load(source, &attn, s.heads, Biases::Inputs, rope)?,
            mlp: Mlp::load(source, &mlp, s.heads.hidden, s.intermediate, false, gate.clone())?,
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
        })
    }
}

impl Block for QwenBlock {
    fn forward(
        &self,
        x: &Array,
        state: &mut LayerState,
        positions: &Positions,
        phase: Phase,
    ) -> Result<Array> {
        let h = self.self_attn.forward_onto(&self.input_layernorm, x, state, positions, phase)?;
        self.mlp.forward_onto(&self.post_attention_layernorm, &h)
    }

    fn weights(&self) -> Vec<&Array> {
        let norms = [self.input_layernorm.weight(), self.post_attention_layernorm.weight()];
        self.self_attn.weights().chain(self.mlp.weights()).chain(norms).collect()
    }
}

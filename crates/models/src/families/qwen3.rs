//! Qwen 3: mlx-lm 0.32.2 `models/qwen3.py`.
//!
//! Llama's block with an RMS norm on every query and key head, before rotation. A window, which some configurations
//! describe and none turns on, is refused.

use crate::config::Config;
use crate::error::Result;
use crate::graph::Graph;
use crate::layers::activation::Gate;
use crate::layers::attention::{Attention, Heads};
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
        config.refuse("attention_bias", "projections have no biases in this family")?;
        config.refuse("use_sliding_window", "sliding windows are not implemented for this family")?;
        config.demand_layers("full_attention")?;
        config.require::<u64>("head_dim")?;
        Ok(Self {
            heads: Heads::read(config)?,
            intermediate: config.size("intermediate_size")?,
            eps: config.require("rms_norm_eps")?,
            vocab: config.size("vocab_size")?,
            tied: config.require("tie_word_embeddings")?,
            layers: config.layers()?,
            max_positions: config.size("max_position_embeddings")?,
        })
    }

    fn declaration(&self) -> GraphDeclaration {
        GraphDeclaration {
            family: "qwen3".to_owned(),
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
    let (base, scaling) = config.rope(None)?;
    let max_positions = Some(s.max_positions);
    let rope = Rope::from_config(config, scaling.as_ref(), s.heads.dim, base, false, max_positions)?;
    config.report_unread(IGNORED);

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
            self_attn: Attention::load_normed(source, &attn, s.heads, s.eps, rope)?,
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

//! Gemma 1: mlx-lm 0.32.2 `models/gemma.py`.
//!
//! Llama's block with gelu, norms that hold the gain's distance from 1, and embeddings times `√E`. The gelu is exact
//! whatever the configuration names, as in mlx-lm. The head is the embedding table.

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
const IGNORED: &[&str] = &["hidden_act", "hidden_activation"];

struct Settings {
    heads: Heads,
    intermediate: i32,
    eps: f32,
    vocab: i32,
    layers: usize,
    max_positions: i32,
}

impl Settings {
    fn read(config: &Config<'_>) -> Result<Self> {
        config.refuse("attention_bias", "projections have no biases in this family")?;
        config.refuse("rope_scaling", "rope scaling is not implemented for this family")?;
        if !config.get_or("tie_word_embeddings", true)? {
            return Err(config.unsupported("tie_word_embeddings", "the head is always the embedding table"));
        }
        config.require::<u64>("head_dim")?;
        Ok(Self {
            heads: Heads::read(config)?,
            intermediate: config.size("intermediate_size")?,
            eps: config.require("rms_norm_eps")?,
            vocab: config.size("vocab_size")?,
            layers: config.layers()?,
            max_positions: config.size_or("max_position_embeddings", 8192)?,
        })
    }

    fn declaration(&self) -> GraphDeclaration {
        GraphDeclaration {
            family: "gemma".to_owned(),
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
    let (base, _) = config.rope(Some(10000.0))?;
    let traditional = config.get_or("rope_traditional", false)?;
    config.report_unread(IGNORED);

    let hidden = s.heads.hidden;
    let (rope, gate) = (Rc::new(Rope::plain(s.heads.dim, base as f32, traditional)), Gate::gelu());
    let layers = (0..s.layers)
        .map(|i| GemmaBlock::load(source, &format!("model.layers.{i}"), &s, &rope, &gate))
        .collect::<Result<_>>()?;
    let embed_tokens = Embedding::load(source, "model.embed_tokens", s.vocab, hidden)?;
    Ok(Box::new(Decoder {
        embed_tokens: embed_tokens.times(f64::from(hidden).sqrt() as f32),
        layers,
        norm: RmsNorm::load_from_one(source, "model.norm", hidden, s.eps)?,
        lm_head: Head::load(source, true, s.vocab, hidden)?,
        declaration: s.declaration(),
    }))
}

struct GemmaBlock {
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

impl GemmaBlock {
    fn load(source: &Source<'_>, path: &str, s: &Settings, rope: &Rc<Rope>, gate: &Gate) -> Result<Self> {
        let norm = |name| RmsNorm::load_from_one(source, &format!("{path}.{name}"), s.heads.hidden, s.eps);
        let (attn, mlp) = (format!("{path}.self_attn"), format!("{path}.mlp"));
        Ok(Self {
            self_attn: Attention::load(source, &attn, s.heads, Biases::None, rope)?,
            mlp: Mlp::load(source, &mlp, s.heads.hidden, s.intermediate, false, gate.clone())?,
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
        })
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
        let h = self.self_attn.forward_onto(&self.input_layernorm, x, state, positions, phase)?;
        self.mlp.forward_onto(&self.post_attention_layernorm, &h)
    }

    fn weights(&self) -> Vec<&Array> {
        let norms = [self.input_layernorm.weight(), self.post_attention_layernorm.weight()];
        self.self_attn.weights().chain(self.mlp.weights()).chain(norms).collect()
    }
}

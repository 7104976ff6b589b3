//! Gemma 2: mlx-lm 0.32.2 `models/gemma2.py`.
//!
//! Gemma's block with tanh gelu, a second norm behind attention and feed-forward, and scores and logits held within a
//! soft cap. Every layer attends to everything, as in mlx-lm; the original model alternates with windows.

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
use strata_state::{LayerState, Phase, Positions};
use strata_tensor::Array;

/// Settings that mlx-lm's file does not read either.
const IGNORED: &[&str] = &["hidden_act"];

struct Settings {
    heads: Heads,
    intermediate: i32,
    eps: f32,
    vocab: i32,
    layers: usize,
    max_positions: i32,
    /// `1 / √query_pre_attn_scalar`.
    scale: f32,
    attention_cap: f32,
    logit_cap: f32,
}

impl Settings {
    fn read(config: &Config<'_>) -> Result<Self> {
        config.demand("hidden_activation", &["gelu_pytorch_tanh"])?;
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
            scale: (1.0 / config.positive("query_pre_attn_scalar", 144.0)?.sqrt()) as f32,
            attention_cap: config.positive("attn_logit_softcapping", 50.0)? as f32,
            logit_cap: config.positive("final_logit_softcapping", 30.0)? as f32,
        })
    }

    fn declaration(&self) -> GraphDeclaration {
        GraphDeclaration {
            family: "gemma2".to_owned(),
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
    let (rope, gate) = (Rc::new(Rope::plain(s.heads.dim, base as f32, traditional)), Gate::tanh_gelu());
    let layers = (0..s.layers)
        .map(|i| GemmaBlock::load(source, &format!("model.layers.{i}"), &s, &rope, &gate))
        .collect::<Result<_>>()?;
    let embed_tokens = Embedding::load(source, "model.embed_tokens", s.vocab, hidden)?;
    Ok(Box::new(Decoder {
        embed_tokens: embed_tokens.times(f64::from(hidden).sqrt() as f32),
        layers,
        norm: RmsNorm::load_from_one(source, "model.norm", hidden, s.eps)?,
        lm_head: Head::load(source, true, s.vocab, hidden)?.soft_capped(s.logit_cap),
        declaration: s.declaration(),
    }))
}

struct GemmaBlock {
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    post_feedforward_layernorm: RmsNorm,
}

impl GemmaBlock {
    fn load(source: &Source<'_>, path: &str, s: &Settings, rope: &Rc<Rope>, gate: &Gate) -> Result<Self> {
        let norm = |name| RmsNorm::load_from_one(source, &format!("{path}.{name}"), s.heads.hidden, s.eps);
        let (attn, mlp) = (format!("{path}.self_attn"), format!("{path}.mlp"));
        Ok(Self {
            self_attn: Attention {
                projections: Projections::load(source, &attn, s.heads, Biases::None)?,
                rope: Rc::clone(rope),
                scale: s.scale,
                cap: s.attention_cap,
            },
            mlp: Mlp::load(source, &mlp, s.heads.hidden, s.intermediate, false, gate.clone())?,
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
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
        let r = self.self_attn.forward(&self.input_layernorm, x, state, positions, phase)?;
        let h = self.post_attention_layernorm.forward_onto(x, &r)?;
        let r = self.mlp.forward(&self.pre_feedforward_layernorm, &h)?;
        self.post_feedforward_layernorm.forward_onto(&h, &r)
    }

    fn weights(&self) -> Vec<&Array> {
        let norms = [
            self.input_layernorm.weight(),
            self.post_attention_layernorm.weight(),
            self.pre_feedforward_layernorm.weight(),
            self.post_feedforward_layernorm.weight(),
        ];
        self.self_attn.projections.weights().chain(self.mlp.weights()).chain(norms).collect()
    }
}

/// Attention whose scores are held within a soft cap.
struct Attention {
    projections: Projections,
    rope: Rc<Rope>,
    scale: f32,
    cap: f32,
}

impl Attention {
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
        self.projections.output(&read.attend_joined(&queries, self.scale, Some(self.cap))?)
    }

    /// Rotated queries `[B, H, L, D]` and keys, and values, `[B, K, L, D]`.
    fn heads(&self, norm: &RmsNorm, x: &Array, positions: &Positions) -> Result<[Array; 3]> {
        if let Some(heads) = self.projections.host_heads(None, &self.rope, positions, norm, x)? {
            return Ok(heads);
        }
        let [queries, keys, values] = self.projections.project(norm, x)?;
        let queries = self.rope.forward(&heads_first(&queries)?, positions)?;
        let keys = self.rope.forward(&heads_first(&keys)?, positions)?;
        Ok([queries, keys, heads_first(&values)?])
    }
}

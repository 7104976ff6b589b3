//! Llama 2 and 3, SmolLM2, Mistral, MiniCPM5: mlx-lm 0.32.2 `models/llama.py`.
//!
//! Block: `h = x + o(attend(rope(q), rope(k), v))` of the normed `x`; `h + down(swiglu(gate, up))` of the normed `h`.
//! Deviations: a `layer_types` without any full layer is allowed (mlx-lm needs one for its mask).

use crate::config::Config;
use crate::error::Result;
use crate::graph::Graph;
use crate::layers::activation::Gate;
use crate::layers::embedding::Embedding;
use crate::layers::linear::Linear;
use crate::layers::mlp::Mlp;
use crate::layers::norm::RmsNorm;
use crate::layers::rope::Rope;
use crate::weights::Source;
use std::rc::Rc;
use strata_contracts::{Capabilities, GraphDeclaration, LayerKind};
use strata_state::{LayerState, Phase, Positions, State};
use strata_tensor::Array;

/// Settings that mlx-lm's file does not read either.
const IGNORED: &[&str] = &["hidden_act", "sliding_window", "max_window_layers", "use_sliding_window"];

struct Settings {
    hidden: i32,
    intermediate: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    eps: f32,
    vocab: i32,
    attention_bias: bool,
    mlp_bias: bool,
    tied: bool,
    layers: Vec<LayerKind>,
    max_positions: i32,
}

impl Settings {
    fn read(config: &Config<'_>) -> Result<Self> {
        config.demand("hidden_act", &["silu"])?;
        let hidden = config.size("hidden_size")?;
        let (heads, kv_heads) = config.heads()?;
        let head_dim = config.head_dim(hidden, heads)?;
        let count = config.size("num_hidden_layers")?;
        Ok(Self {
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate: config.size("intermediate_size")?,
            eps: config.require("rms_norm_eps")?,
            vocab: config.size("vocab_size")?,
            attention_bias: config.get_or("attention_bias", false)?,
            mlp_bias: config.get_or("mlp_bias", false)?,
            tied: config.get_or("tie_word_embeddings", true)?,
            layers: layer_kinds(config, count, kv_heads as u32, head_dim as u32)?,
            max_positions: config.get_size("max_position_embeddings")?.unwrap_or(2048),
        })
    }
}

/// Full layers, or the pattern of `layer_types`.
fn layer_kinds(config: &Config<'_>, count: i32, kv_heads: u32, head_dim: u32) -> Result<Vec<LayerKind>> {
    let full = LayerKind::Full { kv_heads, head_dim };
    let Some(types) = config.get::<Vec<String>>("layer_types")? else {
        return Ok(vec![full; count as usize]);
    };
    if types.len() != count as usize {
        return Err(config.unsupported("layer_types", format!("there are {count} layers")));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            "full_attention" => Ok(full),
            "sliding_attention" => {
                Ok(LayerKind::Sliding { kv_heads, head_dim, window: config.size("sliding_window")? as u32 })
            }
            other => Err(config.unsupported("layer_types", format!("{other:?} is no kind of layer here"))),
        })
        .collect()
}

struct Model {
    declaration: GraphDeclaration,
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    /// `None` when the embedding table is the head.
    lm_head: Option<Linear>,
}

pub(crate) fn bind(config: &Config<'_>, source: &Source<'_>) -> Result<Box<dyn Graph>> {
    let s = Settings::read(config)?;
    let scaling = config.section("rope_scaling")?;
    let base = config.get_or("rope_theta", 10000.0)?;
    let traditional = config.get_or("rope_traditional", false)?;
    let max_positions = Some(s.max_positions);
    let rope =
        Rc::new(Rope::from_config(config, scaling.as_ref(), s.head_dim, base, traditional, max_positions)?);
    config.report_unread(IGNORED);

    source.discard(|name| name.contains("self_attn.rotary_emb.inv_freq"));
    if s.tied {
        source.discard(|name| name.starts_with("lm_head."));
    }
    let gate = Gate::swiglu()?;
    let layers = (0..s.layers.len())
        .map(|i| Block::load(source, &format!("model.layers.{i}"), &s, &rope, &gate))
        .collect::<Result<_>>()?;
    let lm_head =
        if s.tied { None } else { Some(Linear::load(source, "lm_head", s.vocab, s.hidden, false)?) };
    Ok(Box::new(Model {
        embed_tokens: Embedding::load(source, "model.embed_tokens", s.vocab, s.hidden)?,
        norm: RmsNorm::load(source, "model.norm", s.hidden, s.eps)?,
        layers,
        lm_head,
        declaration: GraphDeclaration {
            family: "llama".to_owned(),
            vocab_size: s.vocab as u32,
            context_length: s.max_positions as u32,
            layers: s.layers,
            capabilities: Capabilities { batched_rows: true, verify: true },
        },
    }))
}

impl Graph for Model {
    fn declaration(&self) -> &GraphDeclaration {
        &self.declaration
    }

    fn hidden(&self, tokens: &Array, state: &mut State, phase: Phase) -> Result<Array> {
        let positions = state.positions();
        let mut h = self.embed_tokens.forward(tokens)?; // [B, L] -> [B, L, E]
        for (index, layer) in self.layers.iter().enumerate() {
            h = layer.forward(&h, state.layer(index), &positions, phase)?;
        }
        state.advance(tokens.dim(1) as usize);
        self.norm.forward(&h)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => self.embed_tokens.as_linear(hidden),
        }
    }

    fn weights(&self) -> Vec<&Array> {
        let mut all: Vec<&Array> = self.embed_tokens.weights().collect();
        all.extend(self.layers.iter().flat_map(Block::weights));
        all.push(self.norm.weight());
        all.extend(self.lm_head.iter().flat_map(Linear::weights));
        all
    }
}

struct Block {
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

impl Block {
    fn load(source: &Source<'_>, path: &str, s: &Settings, rope: &Rc<Rope>, gate: &Gate) -> Result<Self> {
        let norm = |name| RmsNorm::load(source, &format!("{path}.{name}"), s.hidden, s.eps);
        Ok(Self {
            self_attn: Attention::load(source, &format!("{path}.self_attn"), s, rope)?,
            mlp: Mlp::load(
                source,
                &format!("{path}.mlp"),
                s.hidden,
                s.intermediate,
                s.mlp_bias,
                gate.clone(),
            )?,
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
        })
    }

    fn forward(
        &self,
        x: &Array,
        state: &mut LayerState,
        positions: &Positions,
        phase: Phase,
    ) -> Result<Array> {
        let r = self.self_attn.forward(&self.input_layernorm.forward(x)?, state, positions, phase)?;
        let h = x.add(&r)?;
        let r = self.mlp.forward(&self.post_attention_layernorm.forward(&h)?)?;
        Ok(h.add(&r)?)
    }

    fn weights(&self) -> impl Iterator<Item = &Array> {
        let norms = [self.input_layernorm.weight(), self.post_attention_layernorm.weight()];
        self.self_attn.weights().chain(self.mlp.weights()).chain(norms)
    }
}

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    rope: Rc<Rope>,
    heads: i32,
    kv_heads: i32,
    scale: f32,
}

impl Attention {
    fn load(source: &Source<'_>, path: &str, s: &Settings, rope: &Rc<Rope>) -> Result<Self> {
        let linear = |name, outputs, inputs| {
            Linear::load(source, &format!("{path}.{name}"), outputs, inputs, s.attention_bias)
        };
        Ok(Self {
            q_proj: linear("q_proj", s.heads * s.head_dim, s.hidden)?,
            k_proj: linear("k_proj", s.kv_heads * s.head_dim, s.hidden)?,
            v_proj: linear("v_proj", s.kv_heads * s.head_dim, s.hidden)?,
            o_proj: linear("o_proj", s.hidden, s.heads * s.head_dim)?,
            rope: Rc::clone(rope),
            heads: s.heads,
            kv_heads: s.kv_heads,
            scale: f64::from(s.head_dim).powf(-0.5) as f32,
        })
    }

    fn forward(
        &self,
        x: &Array,
        state: &mut LayerState,
        positions: &Positions,
        phase: Phase,
    ) -> Result<Array> {
        let (b, l) = (x.dim(0), x.dim(1));
        let split = |y: &Array, heads: i32| y.reshape([b, l, heads, -1])?.transpose(&[0, 2, 1, 3]);
        let queries = split(&self.q_proj.forward(x)?, self.heads)?; // [B, L, H·D] -> [B, H, L, D]
        let keys = split(&self.k_proj.forward(x)?, self.kv_heads)?; // [B, L, K·D] -> [B, K, L, D]
        let values = split(&self.v_proj.forward(x)?, self.kv_heads)?;
        let queries = self.rope.forward(&queries, positions)?;
        let keys = self.rope.forward(&keys, positions)?;
        let out = state.append(&keys, &values, phase)?.attend(&queries, self.scale)?; // [B, H, L, D]
        self.o_proj.forward(&out.transpose(&[0, 2, 1, 3])?.reshape([b, l, -1])?) // -> [B, L, E]
    }

    fn weights(&self) -> impl Iterator<Item = &Array> {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj].into_iter().flat_map(Linear::weights)
    }
}

//! Llama 2 and 3, SmolLM2, Mistral, MiniCPM5: mlx-lm 0.32.2 `models/llama.py`.
//!
//! Block: `h = x + o(attend(rope(q), rope(k), v))` of the normed `x`; `h + down(swiglu(gate, up))` of the normed `h`.
//! Deviations: a `layer_types` without any full layer is allowed (mlx-lm needs one for its mask).

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
use strata_contracts::{Capabilities, GraphDeclaration, LayerKind};
use strata_state::{LayerState, Phase, Positions};
use strata_tensor::Array;

/// Settings that mlx-lm's file does not read either.
const IGNORED: &[&str] = &["hidden_act", "sliding_window", "max_window_layers", "use_sliding_window"];

struct Settings {
    heads: Heads,
    intermediate: i32,
    eps: f32,
    vocab: i32,
    attention_biases: Biases,
    mlp_bias: bool,
    tied: bool,
    layers: Vec<LayerKind>,
    max_positions: i32,
}

impl Settings {
    fn read(config: &Config<'_>) -> Result<Self> {
        config.demand("hidden_act", &["silu"])?;
        let heads = Heads::read(config)?;
        let attention_bias = config.get_or("attention_bias", false)?;
        Ok(Self {
            heads,
            intermediate: config.size("intermediate_size")?,
            eps: config.require("rms_norm_eps")?,
            vocab: config.size("vocab_size")?,
            attention_biases: if attention_bias { Biases::All } else { Biases::None },
            mlp_bias: config.get_or("mlp_bias", false)?,
            tied: config.get_or("tie_word_embeddings", true)?,
            layers: layer_kinds(config, heads)?,
            max_positions: config.size_or("max_position_embeddings", 2048)?,
        })
    }

    fn declaration(&self) -> GraphDeclaration {
        GraphDeclaration {
            family: "llama".to_owned(),
            vocab_size: self.vocab as u32,
            context_length: self.max_positions as u32,
            layers: self.layers.clone(),
            capabilities: Capabilities { batched_rows: true, verify: true },
        }
    }
}

/// Full layers, or the pattern of `layer_types`.
fn layer_kinds(config: &Config<'_>, heads: Heads) -> Result<Vec<LayerKind>> {
    let count = config.layers()?;
    let Some(types) = config.get::<Vec<String>>("layer_types")? else {
        return Ok(vec![heads.full(); count]);
    };
    if types.len() != count {
        return Err(config.unsupported("layer_types", format!("there are {count} layers")));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            "full_attention" => Ok(heads.full()),
            "sliding_attention" => Ok(heads.sliding(config.size("sliding_window")?)),
            other => Err(config.unsupported("layer_types", format!("{other:?} is no kind of layer here"))),
        })
        .collect()
}

pub(crate) fn declare(config: &Config<'_>) -> Result<GraphDeclaration> {
    Ok(Settings::read(config)?.declaration())
}

pub(crate) fn bind(config: &Config<'_>, source: &Source<'_>) -> Result<Box<dyn Graph>> {
    let s = Settings::read(config)?;
    let (base, scaling) = config.rope(Some(10000.0))?;
    let traditional = config.get_or("rope_traditional", false)?;
    let max_positions = Some(s.max_positions);
    let rope = Rope::from_config(config, scaling.as_ref(), s.heads.dim, base, traditional, max_positions)?;
    config.report_unread(IGNORED);

    source.discard(|name| name.contains("self_attn.rotary_emb.inv_freq"));
    let (rope, gate) = (Rc::new(rope), Gate::swiglu());
    let layers = (0..s.layers.len())
        .map(|i| LlamaBlock::load(source, &format!("model.layers.{i}"), &s, &rope, &gate))
        .collect::<Result<_>>()?;
    Ok(Box::new(Decoder {
        embed_tokens: Embedding::load(source, "model.embed_tokens", s.vocab, s.heads.hidden)?,
        layers,
        norm: RmsNorm::load(source, "model.norm", s.heads.hidden, s.eps)?,
        lm_head: Head::load(source, s.tied, s.vocab, s.heads.hidden)?,
        declaration: s.declaration(),
    }))
}

struct LlamaBlock {
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

impl LlamaBlock {
    fn load(source: &Source<'_>, path: &str, s: &Settings, rope: &Rc<Rope>, gate: &Gate) -> Result<Self> {
        let norm = |name| RmsNorm::load(source, &format!("{path}.{name}"), s.heads.hidden, s.eps);
        let (attn, mlp) = (format!("{path}.self_attn"), format!("{path}.mlp"));
        Ok(Self {
            self_attn: Attention::load(source, &attn, s.heads, s.attention_biases, rope)?,
            mlp: Mlp::load(source, &mlp, s.heads.hidden, s.intermediate, s.mlp_bias, gate.clone())?,
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
        })
    }
}

impl Block for LlamaBlock {
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

//! Phi 3 and 3.5: mlx-lm 0.32.2 `models/phi3.py`.
//!
//! Llama's block with one matrix for queries, keys and values and one for gate and up (in fast mode on a CPU the parts are matrices
//! of their own), and rotation of the first `partial_rotary_factor` of each head. Every layer attends to everything, as in mlx-lm; the original model has a window.

use crate::config::Config;
use crate::error::Result;
use crate::graph::Graph;
use crate::layers::activation::Gate;
use crate::layers::attention::{self, Heads, heads_first, join_heads};
use crate::layers::decoder::{Block, Decoder};
use crate::layers::embedding::Embedding;
use crate::layers::head::Head;
use crate::layers::linear::Linear;
use crate::layers::mlp;
use crate::layers::norm::RmsNorm;
use crate::layers::rope::Rope;
use crate::weights::Source;
use std::rc::Rc;
use strata_artifacts::Section;
use strata_contracts::{Capabilities, GraphDeclaration};
use strata_state::{LayerState, Phase, Positions};
use strata_tensor::{Array, Device};

/// Settings that mlx-lm's file does not read either, and that change nothing.
const IGNORED: &[&str] = &["embd_pdrop", "resid_pdrop"];

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
        let heads = Heads::read(config)?;
        if heads.dim * heads.queries != heads.hidden {
            return Err(config.unsupported("head_dim", "heads must divide hidden_size among them"));
        }
        Ok(Self {
            heads,
            intermediate: config.size("intermediate_size")?,
            eps: config.require("rms_norm_eps")?,
            vocab: config.size("vocab_size")?,
            tied: config.get_or("tie_word_embeddings", false)?,
            layers: config.layers()?,
            max_positions: config.size_or("max_position_embeddings", 131_072)?,
        })
    }

    fn declaration(&self) -> GraphDeclaration {
        GraphDeclaration {
            family: "phi3".to_owned(),
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
    let rope = rope(config, &s)?;
    config.report_unread(IGNORED);

    let (rope, gate) = (Rc::new(rope), Gate::swiglu());
    let layers = (0..s.layers)
        .map(|i| PhiBlock::load(source, &format!("model.layers.{i}"), &s, &rope, &gate))
        .collect::<Result<_>>()?;
    Ok(Box::new(Decoder {
        embed_tokens: Embedding::load(source, "model.embed_tokens", s.vocab, s.heads.hidden)?,
        layers,
        norm: RmsNorm::load(source, "model.norm", s.heads.hidden, s.eps)?,
        lm_head: Head::load(source, s.tied, s.vocab, s.heads.hidden)?,
        declaration: s.declaration(),
    }))
}

/// The variants that this family's checkpoints have; mlx-lm takes any other kind for none, here it is refused.
fn rope(config: &Config<'_>, s: &Settings) -> Result<Rope> {
    let (base, scaling) = config.rope(Some(10000.0))?;
    let traditional = config.get_or("rope_traditional", false)?;
    let part = config.positive("partial_rotary_factor", 1.0)?;
    if part > 1.0 {
        return Err(config.unsupported("partial_rotary_factor", "it must be at most 1"));
    }
    let dims = (f64::from(s.heads.dim) * part) as i32;
    let original = config.size_or("original_max_position_embeddings", 4096)?;
    let kind = |scaling: &Section<'_>| -> Result<Option<String>> {
        Ok(scaling.get("type")?.or(scaling.get("rope_type")?))
    };
    match (&scaling, scaling.as_ref().map(kind).transpose()?.flatten().as_deref()) {
        (Some(scaling), Some("longrope" | "su")) => {
            let factors = scaling.require::<Vec<f32>>("long_factor")?;
            Rope::long(config, &factors, dims, base, s.max_positions, original)
        }
        (_, None | Some("default" | "linear")) => {
            Rope::from_config(config, scaling.as_ref(), dims, base, traditional, None)
        }
        (_, Some(other)) => Err(config.unsupported(
            "rope_scaling",
            format!("{other:?} is none of longrope, su, linear, the kinds of this family"),
        )),
    }
}

struct PhiBlock {
    parts: Parts,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

#[allow(clippy::large_enum_variant, reason = "one a layer")]
enum Parts {
    Fused { self_attn: Attention, mlp: Mlp },
    Split { self_attn: attention::Attention, mlp: mlp::Mlp },
}

impl PhiBlock {
    fn load(source: &Source<'_>, path: &str, s: &Settings, rope: &Rc<Rope>, gate: &Gate) -> Result<Self> {
        let norm = |name| RmsNorm::load(source, &format!("{path}.{name}"), s.heads.hidden, s.eps);
        let (attn, mlp) = (format!("{path}.self_attn"), format!("{path}.mlp"));
        let (hidden, intermediate) = (s.heads.hidden, s.intermediate);
        let parts = if source.host_kernels() {
            Parts::Split {
                self_attn: attention::Attention::load_fused(source, &attn, s.heads, rope)?,
                mlp: mlp::Mlp::load_fused(source, &mlp, hidden, intermediate, gate.clone())?,
            }
        } else {
            Parts::Fused {
                self_attn: Attention::load(source, &attn, s.heads, rope)?,
                mlp: Mlp::load(source, &mlp, hidden, intermediate, gate)?,
            }
        };
        Ok(Self {
            parts,
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
        })
    }
}

impl Block for PhiBlock {
    fn forward(
        &self,
        x: &Array,
        state: &mut LayerState,
        positions: &Positions,
        phase: Phase,
    ) -> Result<Array> {
        match &self.parts {
            Parts::Fused { self_attn, mlp } => {
                let r = self_attn.forward(&self.input_layernorm.forward(x)?, state, positions, phase)?;
                let h = x.add(&r)?;
                let r = mlp.forward(&self.post_attention_layernorm.forward(&h)?)?;
                Ok(h.add(&r)?)
            }
            Parts::Split { self_attn, mlp } => {
                let h = self_attn.forward_onto(&self.input_layernorm, x, state, positions, phase)?;
                mlp.forward_onto(&self.post_attention_layernorm, &h)
            }
        }
    }

    fn weights(&self) -> Vec<&Array> {
        let norms = [self.input_layernorm.weight(), self.post_attention_layernorm.weight()];
        match &self.parts {
            Parts::Fused { self_attn, mlp } => {
                self_attn.weights().chain(mlp.weights()).chain(norms).collect()
            }
            Parts::Split { self_attn, mlp } => {
                self_attn.weights().chain(mlp.weights()).chain(norms).collect()
            }
        }
    }
}

struct Attention {
    qkv_proj: Linear,
    o_proj: Linear,
    rope: Rc<Rope>,
    heads: Heads,
    /// On CUDA, MLX's rotation of a part of a split array writes behind the memory that it takes (mlx/backend/cuda/rope.cu,
    /// 0.32.2, goes by `data_size`, which mlx/backend/common/common.cpp sets to the part's own size): parts are copied first.
    copies: bool,
}

impl Attention {
    fn load(source: &Source<'_>, path: &str, heads: Heads, rope: &Rc<Rope>) -> Result<Self> {
        let linear =
            |name, outputs, inputs| Linear::load(source, &format!("{path}.{name}"), outputs, inputs, false);
        let Heads { hidden, queries, keys, dim } = heads;
        Ok(Self {
            qkv_proj: linear("qkv_proj", (queries + 2 * keys) * dim, hidden)?,
            o_proj: linear("o_proj", hidden, queries * dim)?,
            rope: Rc::clone(rope),
            heads,
            copies: Device::current()?.is_cuda()?,
        })
    }

    fn forward(
        &self,
        x: &Array,
        state: &mut LayerState,
        positions: &Positions,
        phase: Phase,
    ) -> Result<Array> {
        let Heads { queries: h, keys: k, dim, .. } = self.heads;
        let parts = self.qkv_proj.forward(x)?.split_at(&[h * dim, (h + k) * dim], -1)?;
        let split = |y: &Array, heads| heads_first(&y.reshape([x.dim(0), x.dim(1), heads, -1])?);
        let (queries, keys, values) = (split(&parts[0], h)?, split(&parts[1], k)?, split(&parts[2], k)?);
        let turned = |x: Array| self.rope.forward(&if self.copies { x.contiguous()? } else { x }, positions);
        let (queries, keys) = (turned(queries)?, turned(keys)?);
        let out = state.append(&keys, &values, phase)?.attend(&queries, self.heads.scale())?;
        self.o_proj.forward(&join_heads(&out)?)
    }

    fn weights(&self) -> impl Iterator<Item = &Array> {
        self.qkv_proj.weights().chain(self.o_proj.weights())
    }
}

struct Mlp {
    gate_up_proj: Linear,
    down_proj: Linear,
    gate: Gate,
}

impl Mlp {
    fn load(source: &Source<'_>, path: &str, hidden: i32, intermediate: i32, gate: &Gate) -> Result<Self> {
        let linear =
            |name, outputs, inputs| Linear::load(source, &format!("{path}.{name}"), outputs, inputs, false);
        Ok(Self {
            gate_up_proj: linear("gate_up_proj", 2 * intermediate, hidden)?,
            down_proj: linear("down_proj", hidden, intermediate)?,
            gate: gate.clone(),
        })
    }

    fn forward(&self, x: &Array) -> Result<Array> {
        let parts = self.gate_up_proj.forward(x)?.split(2, -1)?;
        self.down_proj.forward(&self.gate.forward(&parts[0], &parts[1])?)
    }

    fn weights(&self) -> impl Iterator<Item = &Array> {
        self.gate_up_proj.weights().chain(self.down_proj.weights())
    }
}

//! Qwen 3 with mixtures of experts: mlx-lm 0.32.2 `models/qwen3_moe.py` and `models/switch_layers.py`.
//!
//! Qwen 3's block; in most layers a router sends each token to the `k` likeliest of `X` experts and adds what they say,
//! weighted by its probabilities. From 64 (token, expert) pairs on, tokens are sorted by expert.

use crate::config::Config;
use crate::error::Result;
use crate::graph::{Graph, bytes};
use crate::layers::activation::Gate;
use crate::layers::attention::{Attention, Heads};
use crate::layers::decoder::{Block, Decoder};
use crate::layers::embedding::Embedding;
use crate::layers::head::Head;
use crate::layers::linear::{Linear, Weight};
use crate::layers::mlp::Mlp;
use crate::layers::norm::RmsNorm;
use crate::layers::rope::Rope;
use crate::weights::{Matrix, Source};
use std::rc::Rc;
use strata_contracts::{Capabilities, GraphDeclaration};
use strata_kernels::experts::{combine, route};
use strata_kernels::gated_activation::gated_activation;
use strata_kernels::linear::{self as host, Arithmetic, Finish, Input};
use strata_state::{LayerState, Phase, Positions};
use strata_tensor::Array;
use strata_tensor::ops;

/// Settings that mlx-lm's file does not read either.
const IGNORED: &[&str] = &["sliding_window", "max_window_layers"];

struct Settings {
    heads: Heads,
    intermediate: i32,
    experts: Experts,
    /// Of this many layers the last has experts.
    sparse_step: usize,
    dense_layers: Vec<u64>,
    eps: f32,
    vocab: i32,
    tied: bool,
    layers: usize,
    max_positions: i32,
}

#[derive(Clone, Copy)]
struct Experts {
    count: i32,
    per_token: i32,
    intermediate: i32,
    /// Scores of the chosen sum to 1.
    normalised: bool,
}

impl Settings {
    fn read(config: &Config<'_>) -> Result<Self> {
        config.demand("hidden_act", &["silu"])?;
        config.refuse("attention_bias", "projections have no biases in this family")?;
        config.refuse("use_sliding_window", "sliding windows are not implemented for this family")?;
        config.demand_layers("full_attention")?;
        config.require::<u64>("head_dim")?;
        let experts = Experts {
            count: config.size("num_experts")?,
            per_token: config.size("num_experts_per_tok")?,
            intermediate: config.size("moe_intermediate_size")?,
            normalised: config.require("norm_topk_prob")?,
        };
        if experts.per_token > experts.count {
            let reason = format!("there are {} experts", experts.count);
            return Err(config.unsupported("num_experts_per_tok", reason));
        }
        Ok(Self {
            heads: Heads::read(config)?,
            intermediate: config.size("intermediate_size")?,
            experts,
            sparse_step: config.size("decoder_sparse_step")? as usize,
            dense_layers: config.require("mlp_only_layers")?,
            eps: config.require("rms_norm_eps")?,
            vocab: config.size("vocab_size")?,
            tied: config.require("tie_word_embeddings")?,
            layers: config.layers()?,
            max_positions: config.size("max_position_embeddings")?,
        })
    }

    fn has_experts(&self, layer: usize) -> bool {
        !self.dense_layers.contains(&(layer as u64)) && (layer + 1).is_multiple_of(self.sparse_step)
    }

    fn declaration(&self) -> GraphDeclaration {
        GraphDeclaration {
            family: "qwen3_moe".to_owned(),
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
    if scaling.is_some_and(|s| s.value("rope_type").or(s.value("type")).is_some_and(|kind| kind != "default"))
    {
        return Err(config.unsupported("rope_scaling", "rope scaling is not implemented for this family"));
    }
    let rope = Rope::plain(s.heads.dim, base as f32, false);
    config.report_unread(IGNORED);

    let (rope, gate) = (Rc::new(rope), Gate::swiglu());
    let layers =
        (0..s.layers).map(|i| QwenBlock::load(source, i, &s, &rope, &gate)).collect::<Result<_>>()?;
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
    mlp: FeedForward,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

enum FeedForward {
    Dense(Mlp),
    Sparse(SparseMoe),
}

impl QwenBlock {
    fn load(source: &Source<'_>, layer: usize, s: &Settings, rope: &Rc<Rope>, gate: &Gate) -> Result<Self> {
        let path = format!("model.layers.{layer}");
        let norm = |name| RmsNorm::load(source, &format!("{path}.{name}"), s.heads.hidden, s.eps);
        let (attn, mlp) = (format!("{path}.self_attn"), format!("{path}.mlp"));
        Ok(Self {
            self_attn: Attention::load_normed(source, &attn, s.heads, s.eps, rope)?,
            mlp: if s.has_experts(layer) {
                FeedForward::Sparse(SparseMoe::load(source, &mlp, s.heads.hidden, s.experts, gate)?)
            } else {
                let hidden = s.heads.hidden;
                FeedForward::Dense(Mlp::load(source, &mlp, hidden, s.intermediate, false, gate.clone())?)
            },
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

    fn step_bytes(&self, rows: usize) -> usize {
        let unread = if let FeedForward::Sparse(moe) = &self.mlp { moe.unread_bytes(rows) } else { 0 };
        bytes(self.weights()) - unread
    }
}

impl FeedForward {
    /// `x` + the block of `norm(x)`.
    fn forward_onto(&self, norm: &RmsNorm, x: &Array) -> Result<Array> {
        match self {
            Self::Dense(mlp) => mlp.forward_onto(norm, x),
            Self::Sparse(moe) => moe.forward_onto(x, &norm.forward(x)?),
        }
    }

    fn weights(&self) -> Vec<&Array> {
        match self {
            Self::Dense(mlp) => mlp.weights().collect(),
            Self::Sparse(moe) => moe.gate.weights().chain(moe.experts.weights()).collect(),
        }
    }
}

/// A router and the experts it chooses from.
struct SparseMoe {
    gate: Linear,
    experts: SwitchGlu,
    sizes: Experts,
}

impl SparseMoe {
    fn load(source: &Source<'_>, path: &str, hidden: i32, sizes: Experts, gate: &Gate) -> Result<Self> {
        Ok(Self {
            gate: Linear::load(source, &format!("{path}.gate"), sizes.count, hidden, false)?,
            experts: SwitchGlu::load(source, path, hidden, sizes, gate)?,
            sizes,
        })
    }

    /// Bytes of experts that so many rows leave unread at least.
    fn unread_bytes(&self, rows: usize) -> usize {
        let Experts { count, per_token, .. } = self.sizes;
        let all = bytes(self.experts.weights());
        all - all / count as usize * (rows * per_token as usize).min(count as usize)
    }

    /// `residual` + the block of `x`.
    fn forward_onto(&self, residual: &Array, x: &Array) -> Result<Array> {
        let Experts { count, per_token, normalised, .. } = self.sizes;
        if let Some(experts) = self.experts.host() {
            let (chosen, shares) = route(&self.gate.forward(x)?, per_token as usize, normalised)?;
            let said = self.experts.forward_by_host(x, &chosen, experts)?; // [B, L, k, E]
            return Ok(combine(residual, &said, &shares)?);
        }
        let gates = self.gate.forward(x)?.softmax(-1, true)?; // [B, L, X]
        let chosen = gates.argpartition(-per_token, -1)?.slice_axis(-1, count - per_token, count)?; // [B, L, k]
        let mut scores = gates.take_along_axis(&chosen, -1)?;
        if normalised {
            scores = scores.divide(&scores.sum(-1, true)?)?;
        }
        let said = self.experts.forward(x, &chosen)?; // [B, L, k, E]
        Ok(residual.add(&said.multiply(&scores.expand_dims(&[-1])?)?.sum(-2, false)?)?)
    }
}

/// The gated feed-forward block of every expert, `down(silu(gate(x)) · up(x))`, each token through its own experts.
///
/// In fast mode on a CPU it is two nodes (strata-kernels, `linear` with experts).
struct SwitchGlu {
    gate_proj: Weight,
    up_proj: Weight,
    down_proj: Weight,
    gate: Gate,
}

impl SwitchGlu {
    /// Pairs of token and expert from which sorting pays.
    const SORTED_FROM: usize = 64;

    fn load(source: &Source<'_>, path: &str, hidden: i32, sizes: Experts, gate: &Gate) -> Result<Self> {
        let stack = |name, outputs, inputs| stack(source, path, name, [sizes.count, outputs, inputs]);
        let gate_proj = stack("gate_proj", sizes.intermediate, hidden)?;
        let up_proj = stack("up_proj", sizes.intermediate, hidden)?;
        let down_proj = stack("down_proj", hidden, sizes.intermediate)?;
        // All by the host kernel, or all by MLX: the two want rows in different shapes.
        let all = [&gate_proj, &up_proj, &down_proj];
        let host = source.host_kernels() && all.into_iter().all(Matrix::has_host_form);
        Ok(Self {
            gate_proj: Weight::of(source, gate_proj, host)?,
            up_proj: Weight::of(source, up_proj, host)?,
            down_proj: Weight::of(source, down_proj, host)?,
            gate: gate.clone(),
        })
    }

    /// `x` `[B, L, E]`, experts uint32 `[B, L, k]` -> `[B, L, k, E]`.
    fn forward(&self, x: &Array, experts: &Array) -> Result<Array> {
        let x = x.expand_dims(&[-2, -3])?; // [B, L, 1, 1, E]
        if experts.size() < Self::SORTED_FROM {
            return Ok(self.each(&x, experts, false)?.squeeze(&[-2])?);
        }
        let flat = experts.flatten(0, -1)?; // [B·L·k]
        let order = flat.argsort(-1)?;
        let back = order.argsort(-1)?;
        let tokens = order.floor_divide(&Array::scalar(experts.dim(-1) as u32))?;
        let sorted = x.flatten(0, -3)?.take(&tokens, 0)?; // [B·L·k, 1, E]
        let said = self.each(&sorted, &flat.take(&order, 0)?, true)?.take(&back, 0)?;
        Ok(said.unflatten(0, experts.shape())?.squeeze(&[-2])?)
    }

    /// The host kernels' operands, in fast mode on a CPU.
    fn host(&self) -> Option<[host::Linear<'_>; 3]> {
        Some([self.gate_proj.host()?, self.up_proj.host()?, self.down_proj.host()?])
    }

    /// As [`SwitchGlu::forward`].
    fn forward_by_host(
        &self,
        x: &Array,
        experts: &Array,
        [gate, up, down]: [host::Linear<'_>; 3],
    ) -> Result<Array> {
        let of = |x, linears: &[host::Linear<'_>], finish| {
            let input = Input { experts: Some(experts), ..Input::new(x) };
            host::linear(input, linears, finish, Arithmetic::Integer)
        };
        let inner = if self.gate_proj.scheme() == self.up_proj.scheme() {
            of(x, &[gate, up], Finish::Gate(self.gate.activation()))?.swap_remove(0)
        } else {
            let both = of(x, &[gate, up], Finish::Store)?;
            gated_activation(self.gate.activation(), &both[0], &both[1])?
        }; // [B, L, k, I]
        Ok(of(&inner, &[down], Finish::Store)?.swap_remove(0))
    }

    fn each(&self, x: &Array, experts: &Array, sorted: bool) -> Result<Array> {
        let up = switched(&self.up_proj, x, experts, sorted)?;
        let gate = switched(&self.gate_proj, x, experts, sorted)?;
        switched(&self.down_proj, &self.gate.forward(&gate, &up)?, experts, sorted)
    }

    fn weights(&self) -> impl Iterator<Item = &Array> {
        [&self.gate_proj, &self.up_proj, &self.down_proj].into_iter().flat_map(Weight::arrays)
    }
}

/// Takes `PATH.switch_mlp.NAME`, or as many matrices `PATH.experts.X.NAME` as original checkpoints have.
fn stack(source: &Source<'_>, path: &str, name: &str, shape: [i32; 3]) -> Result<Matrix> {
    let [experts, outputs, inputs] = shape;
    let of_expert = |expert| format!("{path}.experts.{expert}.{name}.weight");
    if source.has(&of_expert(0)) {
        let each = (0..experts).map(|expert| source.tensor(&of_expert(expert), &[outputs, inputs]));
        let each = each.collect::<Result<Vec<_>>>()?;
        Ok(Matrix::Dense(ops::stack(&each.iter().collect::<Vec<_>>(), 0)?))
    } else {
        source.stacked_matrix(&format!("{path}.switch_mlp.{name}"), &[experts, outputs], inputs)
    }
}

/// Rows times the matrices of their experts, by MLX.
fn switched(weight: &Weight, x: &Array, experts: &Array, sorted: bool) -> Result<Array> {
    Ok(match weight {
        Weight::Dense(w) => ops::gather_mm(x, w, None, Some(experts), sorted)?,
        Weight::Quantized(q) => ops::gather_qmm(x, q, None, Some(experts), true, sorted)?,
        Weight::HostDense(_) | Weight::HostPacked(_) => unreachable!("has a host form"),
    })
}

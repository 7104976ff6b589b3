//! Multi-head attention with grouped keys (arXiv 2305.13245): projections, heads, rotation, and the read of the state.
//!
//! [`Attention`] is the block of most families; one that differs builds its own from [`Projections`].

use super::linear::{Linear, forward_normed};
use super::norm::RmsNorm;
use super::rope::Rope;
use crate::config::{Config, LARGEST};
use crate::error::Result;
use crate::weights::Source;
use std::rc::Rc;
use strata_contracts::LayerKind;
use strata_kernels::Offset;
use strata_kernels::qk_norm_rope::{Norms, qk_norm_rope};
use strata_state::{LayerState, Phase, Positions};
use strata_tensor::Array;

/// Sizes of an attention block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    /// `E`.
    pub(crate) hidden: i32,
    /// `H`.
    pub(crate) queries: i32,
    /// `K`, which divides `H`.
    pub(crate) keys: i32,
    /// `D`.
    pub(crate) dim: i32,
}

impl Heads {
    /// Reads the usual settings; heads divide the hidden size unless `head_dim` is set.
    pub(crate) fn read(config: &Config<'_>) -> Result<Self> {
        let hidden = config.size("hidden_size")?;
        let (queries, keys) = config.heads()?;
        Self::new(config, hidden, queries, keys, config.head_dim(hidden, queries)?)
    }

    /// Refuses heads that are larger together than any matrix.
    pub(crate) fn new(config: &Config<'_>, hidden: i32, queries: i32, keys: i32, dim: i32) -> Result<Self> {
        if i64::from(queries) * i64::from(dim) > LARGEST as i64 {
            return Err(
                config.unsupported("head_dim", format!("{queries} heads of {dim} values are too large"))
            );
        }
        Ok(Self { hidden, queries, keys, dim })
    }

    /// A layer that keeps every position.
    pub(crate) fn full(self) -> LayerKind {
        LayerKind::Full { kv_heads: self.keys as u32, head_dim: self.dim as u32 }
    }

    /// A layer that keeps the newest `window` positions.
    pub(crate) fn sliding(self, window: i32) -> LayerKind {
        LayerKind::Sliding { kv_heads: self.keys as u32, head_dim: self.dim as u32, window: window as u32 }
    }

    /// `D^-½`, the usual factor on scores.
    pub(crate) fn scale(self) -> f32 {
        f64::from(self.dim).powf(-0.5) as f32
    }
}

/// What goes into the heads and what comes out of them.
pub(crate) struct Projections {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: Heads,
    host: bool,
}

/// Which projections have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Biases {
    None,
    /// Queries, keys and values.
    Inputs,
    All,
}

impl Projections {
    /// Takes `PATH.q_proj`, `PATH.k_proj`, `PATH.v_proj` and `PATH.o_proj`.
    pub(crate) fn load(source: &Source<'_>, path: &str, heads: Heads, biases: Biases) -> Result<Self> {
        let linear = |name, outputs, inputs, bias| {
            Linear::load(source, &format!("{path}.{name}"), outputs, inputs, bias)
        };
        let inputs = biases != Biases::None;
        let Heads { hidden, queries, keys, dim } = heads;
        Ok(Self {
            q_proj: linear("q_proj", queries * dim, hidden, inputs)?,
            k_proj: linear("k_proj", keys * dim, hidden, inputs)?,
            v_proj: linear("v_proj", keys * dim, hidden, inputs)?,
            o_proj: linear("o_proj", hidden, queries * dim, biases == Biases::All)?,
            heads,
            host: source.host_kernels(),
        })
    }

    /// Takes `PATH.qkv_proj`, one matrix of all three, and `PATH.o_proj`, without biases.
    pub(crate) fn load_fused(source: &Source<'_>, path: &str, heads: Heads) -> Result<Self> {
        let Heads { hidden, queries, keys, dim } = heads;
        let outputs = [queries * dim, keys * dim, keys * dim];
        let [q_proj, k_proj, v_proj] =
            Linear::load_parts(source, &format!("{path}.qkv_proj"), outputs, hidden)?;
        let o_proj = Linear::load(source, &format!("{path}.o_proj"), hidden, queries * dim, false)?;
        Ok(Self { q_proj, k_proj, v_proj, o_proj, heads, host: source.host_kernels() })
    }

    /// Queries `[B, H, L, D]`, keys and values `[B, K, L, D]` of `norm(x)`, normed per head and rotated, by the host
    /// kernels in fast mode on a CPU; `None` elsewhere, where the family composes them in mlx-lm's order.
    pub(crate) fn host_heads(
        &self,
        norms: Option<[&RmsNorm; 2]>,
        rope: &Rope,
        positions: &Positions,
        norm: &RmsNorm,
        x: &Array,
    ) -> Result<Option<[Array; 3]>> {
        if !self.host {
            return Ok(None);
        }
        let [q, k, v] = forward_normed([&self.q_proj, &self.k_proj, &self.v_proj], norm, x)?; // [B, L, ·D]
        let norms = norms.map(|[q, k]| Norms { q: q.weight(), k: k.weight(), eps: q.eps() });
        let offset = match positions {
            Positions::Uniform(offset) => Offset::At(*offset),
            Positions::Rows(offsets) => Offset::Array(offsets),
        };
        Ok(Some(qk_norm_rope(&q, &k, &v, self.heads.dim, norms, rope.host()?, offset)?))
    }

    /// `norm(x)` of `[B, L, E]` -> queries `[B, L, H, D]`, keys and values `[B, L, K, D]`.
    pub(crate) fn project(&self, norm: &RmsNorm, x: &Array) -> Result<[Array; 3]> {
        let (b, l) = (x.dim(0), x.dim(1));
        let split = |y: Array, heads: i32| y.reshape([b, l, heads, -1]);
        let Heads { queries, keys, .. } = self.heads;
        let [q, k, v] = forward_normed([&self.q_proj, &self.k_proj, &self.v_proj], norm, x)?;
        Ok([split(q, queries)?, split(k, keys)?, split(v, keys)?])
    }

    /// What the heads read, side by side `[B, L, H·D]` -> `[B, L, E]`.
    pub(crate) fn output(&self, heads: &Array) -> Result<Array> {
        self.o_proj.forward(heads)
    }

    /// `residual` + [`Projections::output`].
    pub(crate) fn output_onto(&self, residual: &Array, heads: &Array) -> Result<Array> {
        self.o_proj.forward_onto(residual, heads)
    }

    pub(crate) fn weights(&self) -> impl Iterator<Item = &Array> {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj].into_iter().flat_map(Linear::weights)
    }
}

/// `[B, L, H, D]` -> `[B, H, L, D]`.
pub(crate) fn heads_first(x: &Array) -> Result<Array> {
    Ok(x.transpose(&[0, 2, 1, 3])?)
}

/// `[B, H, L, D]` -> `[B, L, H·D]`.
pub(crate) fn join_heads(x: &Array) -> Result<Array> {
    let (b, l) = (x.dim(0), x.dim(2));
    Ok(x.transpose(&[0, 2, 1, 3])?.reshape([b, l, -1])?)
}

/// Attention with rotated queries and keys, which some families normalise per head first.
pub(crate) struct Attention {
    projections: Projections,
    /// Of queries and of keys.
    norms: Option<[RmsNorm; 2]>,
    rope: Rc<Rope>,
    scale: f32,
}

impl Attention {
    /// Without norms.
    pub(crate) fn load(
        source: &Source<'_>,
        path: &str,
        heads: Heads,
        biases: Biases,
        rope: &Rc<Rope>,
    ) -> Result<Self> {
        let projections = Projections::load(source, path, heads, biases)?;
        Ok(Self { projections, norms: None, rope: Rc::clone(rope), scale: heads.scale() })
    }

    /// Of [`Projections::load_fused`].
    pub(crate) fn load_fused(source: &Source<'_>, path: &str, heads: Heads, rope: &Rc<Rope>) -> Result<Self> {
        let projections = Projections::load_fused(source, path, heads)?;
        Ok(Self { projections, norms: None, rope: Rc::clone(rope), scale: heads.scale() })
    }

    /// Also takes the norms `PATH.q_norm` and `PATH.k_norm`.
    pub(crate) fn load_normed(
        source: &Source<'_>,
        path: &str,
        heads: Heads,
        eps: f32,
        rope: &Rc<Rope>,
    ) -> Result<Self> {
        let norm = |name| RmsNorm::load(source, &format!("{path}.{name}"), heads.dim, eps);
        let norms = Some([norm("q_norm")?, norm("k_norm")?]);
        Ok(Self { norms, ..Self::load(source, path, heads, Biases::None, rope)? })
    }

    /// `x` `[B, L, E]` + the block of `norm(x)`.
    pub(crate) fn forward_onto(
        &self,
        norm: &RmsNorm,
        x: &Array,
        state: &mut LayerState,
        positions: &Positions,
        phase: Phase,
    ) -> Result<Array> {
        let [queries, keys, values] = self.heads(norm, x, positions)?;
        let read = state.append(&keys, &values, phase)?;
        self.projections.output_onto(x, &read.attend_joined(&queries, self.scale, None)?)
    }

    /// Rotated queries `[B, H, L, D]` and keys, and values, `[B, K, L, D]`.
    fn heads(&self, norm: &RmsNorm, x: &Array, positions: &Positions) -> Result<[Array; 3]> {
        let norms = self.norms.as_ref().map(|[q, k]| [q, k]);
        if let Some(heads) = self.projections.host_heads(norms, &self.rope, positions, norm, x)? {
            return Ok(heads);
        }
        let [mut queries, mut keys, values] = self.projections.project(norm, x)?;
        if let Some([of_queries, of_keys]) = norms {
            queries = of_queries.forward(&queries)?;
            keys = of_keys.forward(&keys)?;
        }
        let queries = self.rope.forward(&heads_first(&queries)?, positions)?;
        let keys = self.rope.forward(&heads_first(&keys)?, positions)?;
        Ok([queries, keys, heads_first(&values)?])
    }

    pub(crate) fn weights(&self) -> impl Iterator<Item = &Array> {
        let norms = self.norms.iter().flatten().map(RmsNorm::weight);
        self.projections.weights().chain(norms)
    }
}

//! The gated feed-forward block: `down(act(gate(x)) · up(x))`.

use super::activation::Gate;
use super::linear::{Linear, forward_gated};
use super::norm::RmsNorm;
use crate::error::Result;
use crate::weights::Source;
use strata_tensor::Array;

/// Three projections and the gate between them.
pub(crate) struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    gate: Gate,
}

impl Mlp {
    /// Takes `PATH.gate_proj`, `PATH.up_proj` and `PATH.down_proj`.
    pub(crate) fn load(
        source: &Source<'_>,
        path: &str,
        hidden: i32,
        intermediate: i32,
        bias: bool,
        gate: Gate,
    ) -> Result<Self> {
        let linear =
            |name, outputs, inputs| Linear::load(source, &format!("{path}.{name}"), outputs, inputs, bias);
        Ok(Self {
            gate_proj: linear("gate_proj", intermediate, hidden)?,
            up_proj: linear("up_proj", intermediate, hidden)?,
            down_proj: linear("down_proj", hidden, intermediate)?,
            gate,
        })
    }

    /// Takes `PATH.gate_up_proj`, one matrix of both, and `PATH.down_proj`, without biases.
    pub(crate) fn load_fused(
        source: &Source<'_>,
        path: &str,
        hidden: i32,
        intermediate: i32,
        gate: Gate,
    ) -> Result<Self> {
        let outputs = [intermediate; 2];
        let [gate_proj, up_proj] =
            Linear::load_parts(source, &format!("{path}.gate_up_proj"), outputs, hidden)?;
        let down_proj = Linear::load(source, &format!("{path}.down_proj"), hidden, intermediate, false)?;
        Ok(Self { gate_proj, up_proj, down_proj, gate })
    }

    /// The block of `norm(x)`.
    pub(crate) fn forward(&self, norm: &RmsNorm, x: &Array) -> Result<Array> {
        self.down_proj.forward(&self.inner(norm, x)?)
    }

    /// `x` + the block of `norm(x)`.
    pub(crate) fn forward_onto(&self, norm: &RmsNorm, x: &Array) -> Result<Array> {
        self.down_proj.forward_onto(x, &self.inner(norm, x)?)
    }

    fn inner(&self, norm: &RmsNorm, x: &Array) -> Result<Array> {
        forward_gated(&self.gate_proj, &self.up_proj, &self.gate, norm, x)
    }

    pub(crate) fn weights(&self) -> impl Iterator<Item = &Array> {
        [&self.gate_proj, &self.up_proj, &self.down_proj].into_iter().flat_map(Linear::weights)
    }
}

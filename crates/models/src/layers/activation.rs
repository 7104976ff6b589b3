//! Gated activations, compiled where mlx-lm compiles them: on some back ends fusing changes the rounding
//! (docs/parity.md, "Compiled activations").

use crate::error::Result;
use std::rc::Rc;
use strata_tensor::Array;
use strata_tensor::compile::{CompiledFunction, compile};

/// A compiled function of gate and input, shared by all layers.
#[derive(Clone)]
pub(crate) struct Gate(Rc<CompiledFunction>);

impl Gate {
    /// `silu(gate) · x` with `silu(g) = g · sigmoid(g)` (mlx-lm models/activations.py).
    pub(crate) fn swiglu() -> Result<Self> {
        let function = compile(
            |inputs: &[Array]| {
                let (gate, x) = (&inputs[0], &inputs[1]);
                Ok(vec![gate.multiply(&gate.sigmoid()?)?.multiply(x)?])
            },
            true,
        )?;
        Ok(Self(Rc::new(function)))
    }

    pub(crate) fn forward(&self, gate: &Array, x: &Array) -> Result<Array> {
        Ok(self.0.call(&[gate, x])?.swap_remove(0))
    }
}

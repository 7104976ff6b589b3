//! Gated activations, compiled where mlx-lm compiles them: on some back ends fusing changes the rounding
//! (docs/parity.md, "Compiled activations").

use crate::error::Result;
use std::rc::Rc;
use strata_kernels::linear::Activation;
use strata_tensor::Array;
use strata_tensor::compile::{CompiledFunction, compile};

/// A gate, shared by all layers.
#[derive(Clone)]
pub(crate) struct Gate {
    form: Form,
    activation: Activation,
}

/// The compiled function of gate and input.
#[derive(Clone)]
enum Form {
    /// Compiled as a whole.
    Fused(Rc<CompiledFunction>),
    /// Of the gate alone; the product follows.
    Activation(Rc<CompiledFunction>),
}

impl Gate {
    /// `silu(gate) · x` with `silu(g) = g · sigmoid(g)` (mlx-lm models/activations.py).
    pub(crate) fn swiglu() -> Self {
        let function = compile(
            |inputs: &[Array]| {
                let (gate, x) = (&inputs[0], &inputs[1]);
                Ok(vec![gate.multiply(&gate.sigmoid()?)?.multiply(x)?])
            },
            true,
        );
        Self { form: Form::Fused(Rc::new(function)), activation: Activation::Silu }
    }

    /// `gelu(gate) · x` with `gelu(g) = g · (1 + erf(g / √2)) / 2` (mlx nn/layers/activations.py).
    pub(crate) fn gelu() -> Self {
        let function = compile(
            |inputs: &[Array]| {
                let x = &inputs[0];
                let erf = x.divide(&x.number(std::f32::consts::SQRT_2)?)?.erf()?;
                Ok(vec![x.multiply(&x.number(1.0)?.add(&erf)?)?.divide(&x.number(2.0)?)?])
            },
            true,
        );
        Self { form: Form::Activation(Rc::new(function)), activation: Activation::GeluErf }
    }

    /// `gelu(gate) · x` with `gelu(g) = g / 2 · (1 + tanh(√(2/π) · (g + 0.044715 · g³)))` (mlx
    /// nn/layers/activations.py, `gelu_approx`; arXiv 1606.08415).
    pub(crate) fn tanh_gelu() -> Self {
        let function = compile(
            |inputs: &[Array]| {
                let x = &inputs[0];
                let cube = x.number(0.044715)?.multiply(&x.power(&x.number(3.0)?)?)?;
                let inner = x.number(std::f64::consts::FRAC_2_PI.sqrt() as f32)?.multiply(&x.add(&cube)?)?;
                let tanh = x.number(1.0)?.add(&inner.tanh()?)?;
                Ok(vec![x.number(0.5)?.multiply(x)?.multiply(&tanh)?])
            },
            true,
        );
        Self { form: Form::Activation(Rc::new(function)), activation: Activation::GeluTanh }
    }

    /// The host kernel's name of the gate.
    pub(crate) fn activation(&self) -> Activation {
        self.activation
    }

    pub(crate) fn forward(&self, gate: &Array, x: &Array) -> Result<Array> {
        Ok(match &self.form {
            Form::Fused(function) => function.call(&[gate, x])?.swap_remove(0),
            Form::Activation(function) => function.call(&[gate])?.swap_remove(0).multiply(x)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_tensor::{Dtype, ops};

    #[test]
    fn b45_five_hundred_lengths_are_traced_once() {
        for gate in [Gate::swiglu(), Gate::gelu(), Gate::tanh_gelu()] {
            for length in 1..=500 {
                let x = ops::ones([1, length, 3], Dtype::Float32).unwrap();
                assert_eq!(gate.forward(&x, &x).unwrap().shape(), [1, length, 3]);
            }
            let (Form::Fused(function) | Form::Activation(function)) = &gate.form;
            assert_eq!(function.traces(), 1);
        }
    }
}

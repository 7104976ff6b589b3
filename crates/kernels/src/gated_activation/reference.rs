//! Gated activations in tensor operations, in mlx-lm's order (`mlx.nn.silu`, `gelu`, `gelu_approx`).

use super::Activation;
use strata_tensor::{Array, Result};

/// `act(gate) * up`.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn gated_activation(activation: Activation, gate: &Array, up: &Array) -> Result<Array> {
    let x = gate;
    let activated = match activation {
        Activation::Silu => x.multiply(&x.sigmoid()?)?,
        Activation::GeluErf => {
            let phi = x.divide(&x.number(std::f32::consts::SQRT_2)?)?.erf()?.add_number(1.0)?;
            x.multiply(&phi)?.divide(&x.number(2.0)?)?
        }
        Activation::GeluTanh => {
            // 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
            let cube = x.power(&x.number(3.0)?)?.multiply_number(0.044_715)?;
            let inner = x.add(&cube)?.multiply_number((2.0 / std::f32::consts::PI).sqrt())?;
            x.multiply_number(0.5)?.multiply(&inner.tanh()?.add_number(1.0)?)?
        }
    };
    activated.multiply(up)
}

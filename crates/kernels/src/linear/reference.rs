//! Linear layers in tensor operations, each rounded to the type of the activations: what mlx-lm computes.

use super::{Activation, Finish, Input, Linear, Weight, no_operation};
use strata_tensor::{Array, Result, fast, ops};

/// As [`linear`](super::linear).
///
/// # Errors
/// What MLX reports of operands that do not fit.
#[track_caller]
pub fn linear(input: Input<'_>, linears: &[Linear<'_>], finish: Finish<'_>) -> Result<Vec<Array>> {
    let x = match input.norm {
        Some(norm) => {
            let weight = norm.weight.map(|weight| match norm.shift {
                0.0 => Ok(weight.clone()),
                shift => weight.add_number(shift),
            });
            fast::rms_norm(input.x, weight.transpose()?.as_ref(), norm.eps)?
        }
        None => input.x.clone(),
    };
    let mut products = Vec::with_capacity(linears.len());
    for linear in linears {
        products.push(match input.experts {
            Some(experts) => routed(&x, experts, linear)?,
            None => product(&x, linear)?,
        });
    }
    match (finish, products.as_slice()) {
        (Finish::Add(residual), [y]) => Ok(vec![residual.add(y)?]),
        (Finish::SoftCap(cap), products) => {
            let capped = |y: &Array| y.divide(&y.number(cap)?)?.tanh()?.multiply_number(cap);
            products.iter().map(capped).collect()
        }
        (Finish::Gate(activation), [gate, up]) => Ok(vec![activate(activation, gate)?.multiply(up)?]),
        _ => Ok(products),
    }
}

fn product(x: &Array, linear: &Linear<'_>) -> Result<Array> {
    let y = match linear.weight {
        Weight::Plain(w) => x.matmul(&w.swapaxes(-1, -2)?)?,
        Weight::Quantized(w) => ops::quantized_matmul(x, w, true)?,
        Weight::Packed(_) => return Err(no_operation("linear")),
    };
    linear.bias.map_or(Ok(y.clone()), |bias| y.add(bias))
}

/// Each row with the matrix of its expert: `[..., T, K]` as `[..., T, 1, K]`, so that rows are matrices of one row.
fn routed(x: &Array, experts: &Array, linear: &Linear<'_>) -> Result<Array> {
    let own = x.ndim() > experts.ndim();
    let rows = if own { x.expand_dims(&[-2])? } else { x.expand_dims(&[-2, -3])? };
    let y = match linear.weight {
        Weight::Plain(w) => ops::gather_mm(&rows, &w.swapaxes(-1, -2)?, None, Some(experts), false)?,
        Weight::Quantized(w) => ops::gather_qmm(&rows, w, None, Some(experts), true, false)?,
        Weight::Packed(_) => return Err(no_operation("linear")),
    };
    let y = y.squeeze(&[-2])?;
    linear.bias.map_or(Ok(y.clone()), |bias| y.add(&bias.take(experts, 0)?))
}

fn activate(activation: Activation, x: &Array) -> Result<Array> {
    match activation {
        Activation::Silu => x.multiply(&x.sigmoid()?),
        Activation::GeluErf => {
            let phi = x.divide(&x.number(std::f32::consts::SQRT_2)?)?.erf()?.add_number(1.0)?;
            x.multiply(&phi)?.divide(&x.number(2.0)?)
        }
        Activation::GeluTanh => {
            let cube = x.power(&x.number(3.0)?)?.multiply_number(0.044_715)?;
            let inner = x.add(&cube)?.multiply_number((2.0 / std::f32::consts::PI).sqrt())?;
            x.multiply_number(0.5)?.multiply(&inner.tanh()?.add_number(1.0)?)
        }
    }
}

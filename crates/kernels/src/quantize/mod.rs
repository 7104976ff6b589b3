//! Rows to affine numbers, as MLX's `quantize` makes them.
//!
//! # Contract
//! `x` is `[..., K]`, float32, float16 or bfloat16, `K` whole groups of `G` (32, 64 or 128) values. For each group, in float32,
//! with the value `edge` that is furthest from zero (the largest where both ends are equally far):
//!
//! ```text
//! step = max((max x - min x) / (2^bits - 1), 1e-7), negative where edge is the largest
//! n = round(edge / step);  scale, bias = edge / n, edge;  or step, 0 if n = 0
//! q = clamp(round((x - bias) / scale), 0, 2^bits - 1)
//! ```
//!
//! Numbers of 2, 3, 4, 5, 6 or 8 bits are packed into uint32 words `[..., K * bits / 32]`, the first in the lowest bits; scales and
//! biases `[..., K / G]` are rounded to the type of `x` afterwards. For finite values these are the bits of MLX's CPU form
//! (`mlx/backend/cpu/quantized.cpp` of 0.32.2). NaN makes the scale of its group NaN, where MLX may drop it.

pub mod host;
mod node;
pub mod reference;

use strata_contracts::QuantScheme;
use strata_tensor::host::apply;
use strata_tensor::ops::Quantized;
use strata_tensor::{Array, Result};

/// Quantizes the rows of `x` with the host kernel.
///
/// # Errors
/// A mode other than affine, rows that are not whole groups, or a type that is not one of the contract's.
#[track_caller]
pub fn quantize(x: &Array, scheme: QuantScheme) -> Result<Quantized> {
    let mut parts = apply(node::Quantize { scheme }, &[x])?.into_iter();
    let mut next = || parts.next().expect("three outputs");
    Ok(Quantized { weight: next(), scales: next(), biases: Some(next()), scheme })
}

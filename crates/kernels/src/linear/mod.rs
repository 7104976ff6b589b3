//! Linear layers with what surrounds them: `y_i = finish(norm(x) W_i^T + b_i)` for one or several matrices that share an
//! input.
//!
//! Shapes: `x [..., K]`, `W_i [N_i, K]` plain or quantized, `b_i [N_i]`, `y_i [..., N_i]`; `M` is the number of rows of `x`.
//! - `norm`: none, or RMSNorm: `x / sqrt(mean(x^2) + eps) * (shift + w)`, computed once a row in float32.
//! - [`Finish`]: store; hold within a soft cap; add a residual `[..., N]`; or, for a pair of matrices, the gated product `act(y_0) * y_1` of
//!   SwiGLU and GeGLU (N. Shazeer, "GLU Variants Improve Transformer", 2020), which has one output.
//! - `experts [..., T]` (mixture of experts): weights are stacks `[E, N, K]` (biases `[E, N]`), and row `[..., t]` of the
//!   outputs is computed with matrix `experts[..., t]`. `x` is `[..., K]`, the same for all `T`, or `[..., T, K]`.
//!
//! Types: `x` and outputs float32, float16 or bfloat16; weights and scales any of these. Intermediate values are float32
//! and rounded once, where the composition of single operations rounds to the type of `x` after each.

pub mod host;
mod node;
mod packed;
pub mod reference;

pub use crate::gated_activation::Activation;
pub(crate) use packed::no_operation;
pub use packed::{Bytes, Packed, Stored};

use strata_tensor::ops::Quantized;
use strata_tensor::{Array, Result};

/// One linear map.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// Its matrix, or one for each expert.
    pub weight: Weight<'a>,
    /// Added to the product.
    pub bias: Option<&'a Array>,
}

/// A weight matrix, or a stack of them.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a> {
    /// `[N, K]`, row-major.
    Plain(&'a Array),
    /// `[N, K]`, affine.
    Quantized(&'a Quantized),
    /// `[N, K]`, affine, packed for this machine.
    Packed(&'a Packed),
}

/// Rows that linear maps read.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// `[..., K]`.
    pub x: &'a Array,
    /// Applied to its rows first.
    pub norm: Option<Norm<'a>>,
    /// uint32, see the module's contract.
    pub experts: Option<&'a Array>,
}

impl<'a> Input<'a> {
    /// Rows as they are.
    pub fn new(x: &'a Array) -> Self {
        Self { x, norm: None, experts: None }
    }
}

/// RMSNorm of the input.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// `[K]`.
    pub weight: Option<&'a Array>,
    /// Added to the weight: 1 for families that store `w - 1`, else 0.
    pub shift: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// What happens to the product.
#[derive(Debug, Clone, Copy)]
pub enum Finish<'a> {
    /// It is the result.
    Store,
    /// A residual in the shape of the output is added; one map only.
    Add(&'a Array),
    /// `cap * tanh(y / cap)` (Gemma 2, arXiv 2408.00118, section 2).
    SoftCap(f32),
    /// `act(y_0) * y_1`; two maps of one size and scheme.
    Gate(Activation),
}

/// How products with packed matrices are computed; others are always computed in float32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// Float32 throughout.
    Float,
    /// Activations are rounded to 16 bits in blocks of 32. Rows with infinities or NaN are computed in float32.
    Integer,
}

/// Computes all outputs with the host kernel, one node of the graph.
///
/// # Errors
/// Operands that do not fit each other, more than four outputs, quantization modes other than affine.
#[track_caller]
pub fn linear(
    input: Input<'_>,
    linears: &[Linear<'_>],
    finish: Finish<'_>,
    arithmetic: Arithmetic,
) -> Result<Vec<Array>> {
    node::apply(input, linears, finish, arithmetic)
}

#[cfg(test)]
mod tests;

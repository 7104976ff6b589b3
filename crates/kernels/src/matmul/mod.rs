//! Products with a matrix as it lies: `y = x W` with `W [K, N]`, plain or affine-quantized along its rows ([`matmul`]), and what
//! [`linear`](crate::linear) computes `y = x W^T` of plain matrices `W [N, K]` with.
//!
//! Shapes: `x [..., K]`, `y [..., N]` in the type of `x`: float32, float16 or bfloat16, as are weights and scales; sums are
//! float32. Deterministic for a number of threads.

pub mod host;
mod node;
pub mod reference;

use crate::Error;
use crate::host::element::Floats;
use strata_tensor::ops::Quantized;
use strata_tensor::{Array, Result};

/// A matrix `[K, N]`.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a> {
    /// As it is.
    Plain(&'a Array),
    /// Affine-quantized along its rows.
    Quantized(&'a Quantized),
}

/// `x W` with the host kernel.
///
/// # Errors
/// Operands that do not fit each other, or a mode other than affine.
#[track_caller]
pub fn matmul(x: &Array, weight: Weight<'_>) -> Result<Array> {
    let (scheme, inputs) = match weight {
        Weight::Plain(weight) => (None, vec![x, weight]),
        Weight::Quantized(weight) => {
            let parts = [x, &weight.weight, &weight.scales].into_iter().chain(&weight.biases);
            (Some(weight.scheme), parts.collect())
        }
    };
    Ok(strata_tensor::host::apply(node::Matmul { scheme }, &inputs)?.remove(0))
}

/// A stack of plain matrices `[E, N, K]`; `E` is 1 but for mixtures of experts.
#[derive(Debug, Clone, Copy)]
pub struct Plain<'a> {
    values: Floats<'a>,
    rows: usize,
    columns: usize,
}

impl<'a> Plain<'a> {
    /// A view of `rows` output features (of each matrix) by `columns` input features.
    ///
    /// # Errors
    /// [`Error::Shape`] when the buffer does not hold whole matrices.
    pub fn new(values: Floats<'a>, rows: usize, columns: usize) -> std::result::Result<Self, Error> {
        let size = rows * columns;
        if size == 0 || values.is_empty() || !values.len().is_multiple_of(size) {
            return Err(Error::Shape {
                kernel: "matmul",
                operand: "weight",
                expected: format!("a multiple of {rows} x {columns} values"),
                got: format!("{} values", values.len()),
            });
        }
        Ok(Self { values, rows, columns })
    }

    /// Output features `N`.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Input features `K`.
    pub fn columns(self) -> usize {
        self.columns
    }

    /// Matrices in the stack.
    pub fn count(self) -> usize {
        self.values.len() / (self.rows * self.columns)
    }

    /// All values.
    pub fn values(self) -> Floats<'a> {
        self.values
    }

    /// One matrix of the stack.
    pub(crate) fn matrix(self, index: usize) -> Self {
        let size = self.rows * self.columns;
        Self { values: self.values.slice(index * size..(index + 1) * size), ..self }
    }
}

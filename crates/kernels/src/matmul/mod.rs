//! Products with a plain matrix: `y = x W^T` with `W [N, K]`, or `y = x W` with `W [K, N]`.
//!
//! Shapes: `x [M, K]`, `y [M, N]`. Weights are float32, float16 or bfloat16; sums are float32.

pub(crate) mod host;

use crate::Error;
use crate::host::element::Floats;

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
    pub fn new(values: Floats<'a>, rows: usize, columns: usize) -> Result<Self, Error> {
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

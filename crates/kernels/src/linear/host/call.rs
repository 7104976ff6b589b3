//! What the host form works on: slices whose shapes were checked against each other.

use super::super::{Activation, Arithmetic};
use crate::Error;
use crate::host::element::Floats;
use crate::matmul::Plain;
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::panels::Panels;

/// A weight matrix (or stack of them).
#[derive(Debug, Clone, Copy)]
pub enum Matrix<'a> {
    /// As it is.
    Plain(Plain<'a>),
    /// Affine-quantized, as files hold it.
    Quantized(Quantized<'a>),
    /// Affine-quantized and packed.
    Panels(Panels<'a>),
}

impl Matrix<'_> {
    /// Output features `N`.
    pub fn rows(self) -> usize {
        match self {
            Self::Plain(matrix) => matrix.rows(),
            Self::Quantized(matrix) => matrix.rows(),
            Self::Panels(matrix) => matrix.rows(),
        }
    }

    /// Input features `K`.
    pub fn columns(self) -> usize {
        match self {
            Self::Plain(matrix) => matrix.columns(),
            Self::Quantized(matrix) => matrix.columns(),
            Self::Panels(matrix) => matrix.columns(),
        }
    }

    /// Matrices in the stack.
    pub fn count(self) -> usize {
        match self {
            Self::Plain(matrix) => matrix.count(),
            Self::Quantized(matrix) => matrix.count(),
            Self::Panels(matrix) => matrix.count(),
        }
    }
}

/// One linear map.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// Its matrix, or one for each expert.
    pub matrix: Matrix<'a>,
    /// Added to each output row: `[N]`, or `[E, N]`.
    pub bias: Option<Floats<'a>>,
}

/// RMSNorm of the input.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// `[K]`.
    pub weight: Option<Floats<'a>>,
    /// Added to the weight: 1 for families that store `w - 1`, else 0.
    pub shift: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// What happens to the product.
#[derive(Debug, Clone, Copy)]
pub enum Finish<'a, T> {
    /// It is the result.
    Store,
    /// A residual `[M, N]` is added; one matrix only.
    Add(&'a [T]),
    /// It is held within a cap by a scaled tanh.
    SoftCap(f32),
    /// `act(y_0) * y_1`; two matrices of one size and scheme.
    Gate(Activation),
}

/// Where an output row comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Row of `x`.
    pub row: u32,
    /// Matrix of the stack.
    pub expert: u32,
}

/// A whole call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a, T> {
    /// `[M, K]`, row-major.
    pub x: &'a [T],
    /// Applied to rows of `x` first.
    pub norm: Option<Norm<'a>>,
    /// The maps, in the order of the outputs.
    pub linears: &'a [Linear<'a>],
    /// Applied to the products.
    pub finish: Finish<'a, T>,
    /// For mixtures of experts.
    pub routes: Option<&'a [Route]>,
    /// For panels.
    pub arithmetic: Arithmetic,
}

impl<T> Call<'_, T> {
    /// Rows of the outputs.
    pub fn output_rows(&self) -> usize {
        self.routes.map_or_else(|| self.input_rows(), <[Route]>::len)
    }

    pub(super) fn columns(&self) -> usize {
        self.linears.first().map_or(0, |linear| linear.matrix.columns())
    }

    fn input_rows(&self) -> usize {
        self.x.len() / self.columns().max(1)
    }

    /// Checks operands against each other and the lengths of the outputs.
    pub(super) fn check(&self, outputs: impl ExactSizeIterator<Item = usize>) -> Result<(), Error> {
        let (columns, rows) = (self.columns(), self.output_rows());
        require("x", self.x.len(), self.input_rows() * columns, "M x K values")?;
        require("weights", usize::from(!self.linears.is_empty()), 1, "at least one matrix")?;
        if let Some(weight) = self.norm.and_then(|norm| norm.weight) {
            require("norm weight", weight.len(), columns, "K values")?;
        }
        for linear in self.linears {
            let matrix = linear.matrix;
            require("weight", matrix.columns(), columns, "the K of the first matrix")?;
            if let Some(bias) = linear.bias {
                require(
                    "bias",
                    bias.len(),
                    matrix.count() * matrix.rows(),
                    "one value for each output feature",
                )?;
            }
            let experts = self.routes.map_or(1, |_| matrix.count());
            require("weight", matrix.count(), experts, "one matrix, or routes to choose with")?;
            for route in self.routes.unwrap_or_default() {
                let (row, expert) = (route.row as usize, route.expert as usize);
                require("route", usize::from(row < self.input_rows()), 1, "rows of x")?;
                require("route", usize::from(expert < experts), 1, "matrices of the stack")?;
            }
        }
        let first = self.linears[0].matrix;
        let count = match self.finish {
            Finish::Store | Finish::SoftCap(_) => self.linears.len(),
            Finish::Add(residual) => {
                require("weights", self.linears.len(), 1, "one matrix with a residual")?;
                require("residual", residual.len(), rows * first.rows(), "M x N values")?;
                1
            }
            Finish::Gate(_) => {
                require("weights", self.linears.len(), 2, "two matrices with a gate")?;
                require("weight", self.linears[1].matrix.rows(), first.rows(), "the N of the gate")?;
                1
            }
        };
        require("outputs", outputs.len(), count, "one for each matrix or pair")?;
        for (output, linear) in outputs.zip(self.linears) {
            require("output", output, rows * linear.matrix.rows(), "M x N values")?;
        }
        Ok(())
    }
}

fn require(operand: &'static str, got: usize, expected: usize, what: &str) -> Result<(), Error> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape {
        kernel: "linear",
        operand,
        expected: format!("{expected} ({what})"),
        got: got.to_string(),
    })
}

//! Products with an affine-quantized matrix: `y = x W^T`, with `W[n, k] = scales[n, k / G] * q[n, k] + biases[n, k / G]`.
//!
//! Shapes: `x [M, K]`, `q [N, K]` packed, `scales` and `biases [N, K / G]`, `y [M, N]`; `G` is 32, 64 or 128 and divides
//! `K`. Numbers of 2, 3, 4, 5, 6 or 8 bits follow each other in little-endian bit order, each row from a new word: the
//! packing of MLX (`mlx/backend/cpu/quantized.cpp` of 0.32.2), where it is spelled byte by byte.
//!
//! `host` has two arithmetics. In float32, weights are widened and summed as they are. With packed matrices ([`panels`]) each 32
//! consecutive activations are rounded to `d * i`, `i` in `-32385 ..= 32385`, `d = max |x| / 32385`, so that
//! `y[n] = sum over groups (scales * d * sum(q * i) + biases * d * sum(i))` needs dot products of bytes only: `i` is
//! `255 hi + lo`. The rounding is the kernel's sole error beyond float32 sums: at most `d / 2` for each activation.

pub(crate) mod host;
pub mod panels;

use crate::Error;
use crate::host::element::Floats;
use strata_contracts::{QuantMode, QuantScheme};

/// A stack of affine-quantized matrices `[E, N, K]`; `E` is 1 but for mixtures of experts.
#[derive(Debug, Clone, Copy)]
pub struct Quantized<'a> {
    packed: &'a [u32],
    scales: Floats<'a>,
    biases: Floats<'a>,
    scheme: QuantScheme,
    rows: usize,
    columns: usize,
}

impl<'a> Quantized<'a> {
    /// A view of `rows` output features (of each matrix) by `columns` input features.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a mode other than affine or for scales and biases of different types,
    /// [`Error::Shape`] when the buffers do not hold whole matrices.
    pub fn new(
        packed: &'a [u32],
        scales: Floats<'a>,
        biases: Floats<'a>,
        scheme: QuantScheme,
        rows: usize,
        columns: usize,
    ) -> Result<Self, Error> {
        const KERNEL: &str = "quantized_matmul";
        if scheme.mode() != QuantMode::Affine || scales.dtype() != biases.dtype() {
            let what =
                format!("{} scales {} biases {}", scheme.mode().name(), scales.dtype(), biases.dtype());
            return Err(Error::Unsupported { kernel: KERNEL, what });
        }
        let shape = |operand, expected: String, got: usize| Error::Shape {
            kernel: KERNEL,
            operand,
            expected,
            got: format!("{got} values"),
        };
        let words = scheme
            .packed_columns(columns)
            .map_err(|error| Error::Unsupported { kernel: KERNEL, what: error.to_string() })?;
        let groups = columns / scheme.group_size() as usize;
        let count = packed.len() / (rows * words).max(1);
        if rows == 0 || count == 0 || packed.len() != count * rows * words {
            return Err(shape("packed", format!("a multiple of {rows} x {words} words"), packed.len()));
        }
        for (operand, values) in [("scales", scales), ("biases", biases)] {
            if values.len() != count * rows * groups {
                return Err(shape(operand, format!("{count} x {rows} x {groups} values"), values.len()));
            }
        }
        Ok(Self { packed, scales, biases, scheme, rows, columns })
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
        self.packed.len() / (self.rows * self.row_words())
    }

    /// Bits and group size.
    pub fn scheme(self) -> QuantScheme {
        self.scheme
    }

    /// One matrix of the stack.
    pub(crate) fn matrix(self, index: usize) -> Self {
        let (words, groups) = (self.rows * self.row_words(), self.rows * self.groups());
        Self {
            packed: &self.packed[index * words..(index + 1) * words],
            scales: self.scales.slice(index * groups..(index + 1) * groups),
            biases: self.biases.slice(index * groups..(index + 1) * groups),
            ..self
        }
    }

    fn row_words(self) -> usize {
        self.columns * self.scheme.bits() as usize / 32
    }

    fn row_bytes(self) -> usize {
        4 * self.row_words()
    }

    fn group(self) -> usize {
        self.scheme.group_size() as usize
    }

    fn groups(self) -> usize {
        self.columns / self.group()
    }
}

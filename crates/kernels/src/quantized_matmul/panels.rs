//! Quantized matrices in the form that host products stream: rows interleaved in panels, made once when a model is bound. A stack
//! of matrices (mixtures of experts) is one matrix's panels after the other's.
//!
//! A panel is twice as many rows as vectors have lanes, so that memory is read in order; lane `l` of half `h` is row
//! `h * lanes + l` of the panel, and rows that a matrix lacks are zero. For each block of 32 columns a panel holds, for each half,
//! `BITS` vectors of 32-bit words:
//!
//! - 2, 4 and 8 bits: word `v` of each row's block, as MLX packs it. Byte `b` of the word holds `8 / BITS` numbers, lowest first;
//!   *quad* `q` is number `q % (8 / BITS)` of the four bytes of word `q / (8 / BITS)`.
//! - 5 and 3 bits: the low 4 (2) bits so, then for each quad a bit for each of its bytes, lane after lane: the highest bit.
//! - 6 bits: each three words hold four quads, a quad being four columns. The low 6 bits of a byte are its number of the quad of its
//!   word; what is above them, in the three words together, highest bits first, is the number of the fourth quad.
//!
//! Scales and biases are `[panel, group, half, lane]`. A *symmetric* matrix, whose biases are all `-2^(BITS - 1)` times the scales
//! (GGUF's Q4_0, Q5_0 and Q8_0 are), needs no biases: they are not read.

use super::host::activations::{BLOCK, Layout};
use crate::Error;
use crate::host::Level;
use crate::host::element::Floats;
use strata_contracts::QuantScheme;

/// Vectors of lanes in a panel.
pub(crate) const HALVES: usize = 2;

/// A matrix in panels, or a stack of them, as memory.
#[derive(Debug, Clone, Copy)]
pub struct Panels<'a> {
    words: &'a [u32],
    scales: Floats<'a>,
    biases: Option<Floats<'a>>,
    scheme: QuantScheme,
    rows: usize,
    columns: usize,
    lanes: usize,
}

impl<'a> Panels<'a> {
    /// A view of what packing wrote for the lanes of `level`: as many matrices of `rows` x `columns` as the words hold; without biases
    /// if they are symmetric.
    ///
    /// # Errors
    /// [`Error::Shape`] when the buffers do not hold the matrix.
    pub fn new(
        level: Level,
        words: &'a [u32],
        scales: Floats<'a>,
        biases: Option<Floats<'a>>,
        scheme: QuantScheme,
        rows: usize,
        columns: usize,
    ) -> Result<Self, Error> {
        let lanes = level.lanes();
        let [word_count, factor_count] = sizes(scheme, rows, columns, lanes);
        let count = (words.len() / word_count.max(1)).max(1);
        let (word_count, factor_count) = (count * word_count, count * factor_count);
        let parts = [("words", words.len(), word_count), ("scales", scales.len(), factor_count)];
        let biases_part = biases.map(|biases| ("biases", biases.len(), factor_count));
        for (operand, got, expected) in parts.into_iter().chain(biases_part) {
            if got != expected || !columns.is_multiple_of(BLOCK) {
                return Err(Error::Shape {
                    kernel: "linear",
                    operand,
                    expected: format!(
                        "{expected} values for {count} of {rows} x {columns} in panels of {lanes}"
                    ),
                    got: format!("{got} values"),
                });
            }
        }
        Ok(Self { words, scales, biases, scheme, rows, columns, lanes })
    }

    /// Matrices in the stack.
    pub fn count(self) -> usize {
        self.words.len() / sizes(self.scheme, self.rows, self.columns, self.lanes)[0]
    }

    /// One matrix of the stack.
    pub(crate) fn matrix(self, index: usize) -> Self {
        let [words, factors] = sizes(self.scheme, self.rows, self.columns, self.lanes);
        let own = index * factors..(index + 1) * factors;
        Self {
            words: &self.words[index * words..(index + 1) * words],
            scales: self.scales.slice(own.clone()),
            biases: self.biases.map(|biases| biases.slice(own)),
            ..self
        }
    }

    /// Output features `N`.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Input features `K`.
    pub fn columns(self) -> usize {
        self.columns
    }

    /// Bits and group size.
    pub fn scheme(self) -> QuantScheme {
        self.scheme
    }

    pub(crate) fn lanes(self) -> usize {
        self.lanes
    }

    pub(crate) fn words(self) -> &'a [u32] {
        self.words
    }

    pub(crate) fn scales(self) -> Floats<'a> {
        self.scales
    }

    /// `None`: [`Panels::symmetric_bias`] times the scales.
    pub(crate) fn biases(self) -> Option<Floats<'a>> {
        self.biases
    }

    /// What biases of a symmetric matrix are, in scales.
    pub(crate) fn symmetric_bias(self) -> f32 {
        symmetric_bias(self.scheme.bits())
    }

    pub(crate) fn groups(self) -> usize {
        self.columns / self.scheme.group_size() as usize
    }

    /// How activations are laid out for it.
    pub(crate) fn layout(self) -> Layout {
        Layout::new(self.columns, self.scheme.group_size() as usize, phases(self.scheme.bits()))
    }
}

/// What the biases of a symmetric matrix are, in scales.
pub(crate) fn symmetric_bias(bits: u32) -> f32 {
    -((1_u32 << (bits - 1)) as f32)
}

/// Words and factors of a matrix in panels of `lanes` rows.
pub(crate) fn sizes(scheme: QuantScheme, rows: usize, columns: usize, lanes: usize) -> [usize; 2] {
    let padded = rows.next_multiple_of(HALVES * lanes);
    [padded * (columns / BLOCK) * scheme.bits() as usize, padded * (columns / scheme.group_size() as usize)]
}

/// Low bits that lie in words of their own.
pub(crate) const fn low_bits(bits: usize) -> usize {
    match bits {
        2 | 3 => 2,
        4 | 5 => 4,
        bits => bits,
    }
}

/// Numbers in a byte of the low bits' words.
pub(crate) const fn phases(bits: u32) -> usize {
    8 / low_bits(bits as usize)
}

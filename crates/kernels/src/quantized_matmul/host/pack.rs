//! Packing: rows of a quantized matrix, as MLX stores them, into panels ([`Panels`]), and back.

use super::super::Quantized;
use super::super::panels::{HALVES, Panels, low_bits, sizes};
use super::activations::BLOCK;
use crate::host::Element;
use crate::host::element::{Floats, each_float};
use crate::host::pool::{self, Disjoint};
use smallvec::{SmallVec, smallvec};

/// Writes `words`, and `scales` and `biases` (in their own type), of a stack of matrices for vectors of `lanes`.
///
/// # Panics
/// When the buffers have other sizes than the matrices need.
pub(crate) fn pack<E: Copy + Default + Send + Sync>(
    matrix: Quantized<'_>,
    [from_scales, from_biases]: [&[E]; 2],
    lanes: usize,
    words: &mut [u32],
    [scales, biases]: [&mut [E]; 2],
) {
    let (rows, columns, bits) = (matrix.rows(), matrix.columns(), matrix.scheme().bits() as usize);
    let needed = sizes(matrix.scheme(), rows, columns, lanes).map(|size| matrix.count() * size);
    assert_eq!([words.len(), scales.len()], needed);
    assert_eq!(scales.len(), biases.len());
    let (blocks, groups) = (columns / BLOCK, matrix.groups());
    let width = HALVES * lanes;
    let panels = rows.div_ceil(width);
    let (words_of_panel, factors_of_panel) = (blocks * bits * width, groups * width);
    let (scales, biases) = (Disjoint::new(scales), Disjoint::new(biases));
    pool::parallel_chunks(words, words_of_panel, |panel, words| {
        let range = panel * factors_of_panel..(panel + 1) * factors_of_panel;
        // SAFETY: each panel has factors of its own.
        #[allow(unsafe_code)]
        let (scales, biases) = unsafe { (scales.range(range.clone()), biases.range(range)) };
        words.fill(0);
        for place in 0..width {
            let (half, lane, row) = (place / lanes, place % lanes, panel % panels * width + place);
            let (known, row) = (row < rows, panel / panels * rows + row);
            for group in 0..groups {
                let at = group * width + place;
                let from = row * groups + group;
                scales[at] = if known { from_scales[from] } else { E::default() };
                biases[at] = if known { from_biases[from] } else { E::default() };
            }
            if known {
                let from = &matrix.packed[row * matrix.row_words()..][..matrix.row_words()];
                let blocks = from.chunks_exact(bits).zip(words.chunks_exact_mut(bits * width));
                for (from, to) in blocks {
                    let to = &mut to[half * bits * lanes..][..bits * lanes];
                    match bits {
                        2 | 4 | 8 => {
                            for (v, word) in from.iter().enumerate() {
                                to[v * lanes + lane] = *word;
                            }
                        }
                        _ => split(from, bits, to, lanes, lane),
                    }
                }
            }
        }
    });
}

/// A block of 3-, 5- or 6-bit numbers of one row.
fn split(from: &[u32], bits: usize, to: &mut [u32], lanes: usize, lane: usize) {
    for column in 0..BLOCK {
        let at = column * bits;
        let pair = u64::from(from[at / 32]) | u64::from(from.get(at / 32 + 1).copied().unwrap_or(0)) << 32;
        let number = (pair >> (at % 32)) as u32;
        for part in parts(column, bits, lanes, lane) {
            to[part.word] |= (number >> part.from & part.mask) << part.to;
        }
    }
}

/// What [`split`] was given.
fn join(from: &[u32], bits: usize, to: &mut [u32], lanes: usize, lane: usize) {
    for column in 0..BLOCK {
        let parts = parts(column, bits, lanes, lane).into_iter();
        let number: u32 = parts.map(|part| (from[part.word] >> part.to & part.mask) << part.from).sum();
        let at = column * bits;
        let pair = u64::from(number) << (at % 32);
        to[at / 32] |= pair as u32;
        if let Some(next) = to.get_mut(at / 32 + 1) {
            *next |= (pair >> 32) as u32;
        }
    }
}

/// Some bits of a number: those of `mask` from bit `from` on lie in a word from bit `to` on.
struct Part {
    word: usize,
    from: usize,
    to: usize,
    mask: u32,
}

/// Where the number of a column of a block of 3-, 5- or 6-bit numbers lies.
fn parts(column: usize, bits: usize, lanes: usize, lane: usize) -> SmallVec<[Part; 3]> {
    let own = |word: usize| word * lanes + lane;
    if bits == 6 {
        let (first, quad, byte) = (column / 16 * 3, column % 16 / 4, column % 4);
        if quad < 3 {
            return smallvec![Part { word: own(first + quad), from: 0, to: 8 * byte, mask: 63 }];
        }
        let third = |word| Part { word: own(first + word), from: 4 - 2 * word, to: 8 * byte + 6, mask: 3 };
        return (0..3).map(third).collect();
    }
    let low = low_bits(bits);
    let phases = 8 / low;
    let (word, byte, phase) = (column / (4 * phases), column % (4 * phases) / phases, column % phases);
    let bit = (word * phases + phase) * 4 * lanes + 4 * lane + byte;
    smallvec![
        Part { word: own(word), from: 0, to: 8 * byte + low * phase, mask: (1 << low) - 1 },
        Part { word: low * lanes + bit / 32, from: low, to: bit % 32, mask: 1 },
    ]
}

/// One row of panels as it was before: its numbers as MLX packs them, and scales and biases in float32.
///
/// # Panics
/// When there is no such row, or the buffers have other sizes than it needs.
pub(crate) fn row(panels: Panels<'_>, row: usize, words: &mut [u32], [scales, biases]: [&mut [f32]; 2]) {
    let (columns, bits, lanes) = (panels.columns(), panels.scheme().bits() as usize, panels.lanes());
    let (blocks, groups, width) = (columns / BLOCK, panels.groups(), HALVES * lanes);
    assert!(row < panels.rows() && panels.count() == 1, "row {row} of a matrix of {}", panels.rows());
    assert_eq!([words.len(), scales.len(), biases.len()], [blocks * bits, groups, groups]);
    let (panel, place) = (row / width, row % width);
    let (half, lane) = (place / lanes, place % lanes);
    let wide = |values: Floats<'_>, at: usize| each_float!(values, values => values[at].to_f32());
    for (group, (scale, bias)) in scales.iter_mut().zip(biases).enumerate() {
        let at = (panel * groups + group) * width + place;
        *scale = wide(panels.scales(), at);
        *bias = match panels.biases() {
            Some(biases) => wide(biases, at),
            None => panels.symmetric_bias() * *scale,
        };
    }
    let from = panels.words()[panel * blocks * bits * width..].chunks_exact(bits * width);
    for (from, to) in from.zip(words.chunks_exact_mut(bits)) {
        let from = &from[half * bits * lanes..][..bits * lanes];
        match bits {
            2 | 4 | 8 => to.iter_mut().enumerate().for_each(|(v, word)| *word = from[v * lanes + lane]),
            _ => {
                to.fill(0);
                join(from, bits, to, lanes, lane);
            }
        }
    }
}

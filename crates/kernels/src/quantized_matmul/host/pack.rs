//! Packing: rows of a quantized matrix, as MLX stores them, into panels ([`Panels`]), and back.

use super::super::Quantized;
use super::super::panels::{HALVES, Panels, low_bits, sizes};
use super::activations::BLOCK;
use crate::host::Element;
use crate::host::element::{Floats, each_float};
use crate::host::pool::{self, Disjoint};

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
                        3 => split::<3>(from, to, lanes, lane),
                        5 => split::<5>(from, to, lanes, lane),
                        _ => split::<6>(from, to, lanes, lane),
                    }
                }
            }
        }
    });
}

/// A block of 3-, 5- or 6-bit numbers of one row.
fn split<const BITS: usize>(from: &[u32], to: &mut [u32], lanes: usize, lane: usize) {
    for column in 0..BLOCK {
        let at = column * BITS;
        let pair = u64::from(from[at / 32]) | u64::from(from.get(at / 32 + 1).copied().unwrap_or(0)) << 32;
        let number = (pair >> (at % 32)) as u32;
        for part in parts::<BITS>(column, lanes, lane) {
            to[part.word] |= (number >> part.from & part.mask) << part.to;
        }
    }
}

/// What [`split`] was given.
fn join<const BITS: usize>(from: &[u32], to: &mut [u32], lanes: usize, lane: usize) {
    to.fill(0);
    for column in 0..BLOCK {
        let parts = parts::<BITS>(column, lanes, lane).into_iter();
        let number: u32 = parts.map(|part| (from[part.word] >> part.to & part.mask) << part.from).sum();
        let at = column * BITS;
        let pair = u64::from(number) << (at % 32);
        to[at / 32] |= pair as u32;
        if let Some(next) = to.get_mut(at / 32 + 1) {
            *next |= (pair >> 32) as u32;
        }
    }
}

/// Some bits of a number: those of `mask` from bit `from` on lie in a word from bit `to` on.
#[derive(Clone, Copy)]
struct Part {
    word: usize,
    from: usize,
    to: usize,
    mask: u32,
}

/// Where the number of a column of a block of 3-, 5- or 6-bit numbers lies; parts without a mask are none.
#[inline(always)]
#[allow(clippy::inline_always, reason = "in a loop over columns all of it is constant")]
fn parts<const BITS: usize>(column: usize, lanes: usize, lane: usize) -> [Part; 3] {
    let own = |word: usize| word * lanes + lane;
    let none = Part { word: own(0), from: 0, to: 0, mask: 0 };
    if BITS == 6 {
        let (first, quad, byte) = (column / 16 * 3, column % 16 / 4, column % 4);
        if quad < 3 {
            return [Part { word: own(first + quad), from: 0, to: 8 * byte, mask: 63 }, none, none];
        }
        let third = |word| Part { word: own(first + word), from: 4 - 2 * word, to: 8 * byte + 6, mask: 3 };
        return [third(0), third(1), third(2)];
    }
    let low = low_bits(BITS);
    let phases = 8 / low;
    let (word, byte, phase) = (column / (4 * phases), column % (4 * phases) / phases, column % phases);
    let bit = (word * phases + phase) * 4 * lanes + 4 * lane + byte;
    [
        Part { word: own(word), from: 0, to: 8 * byte + low * phase, mask: (1 << low) - 1 },
        Part { word: low * lanes + bit / 32, from: low, to: bit % 32, mask: 1 },
        none,
    ]
}

/// One row of panels (of a stack: of all matrices, one below the other) as it was before: its numbers as MLX packs them, and scales and biases in float32.
///
/// # Panics
/// When there is no such row, or the buffers have other sizes than it needs.
pub(crate) fn row(panels: Panels<'_>, row: usize, words: &mut [u32], [scales, biases]: [&mut [f32]; 2]) {
    let (columns, bits, lanes) = (panels.columns(), panels.scheme().bits() as usize, panels.lanes());
    let (blocks, groups, width) = (columns / BLOCK, panels.groups(), HALVES * lanes);
    let rows = panels.rows();
    assert!(row < panels.count() * rows, "row {row} of {} x {rows}", panels.count());
    assert_eq!([words.len(), scales.len(), biases.len()], [blocks * bits, groups, groups]);
    let (panel, place) = (row / rows * rows.div_ceil(width) + row % rows / width, row % rows % width);
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
            3 => join::<3>(from, to, lanes, lane),
            5 => join::<5>(from, to, lanes, lane),
            _ => join::<6>(from, to, lanes, lane),
        }
    }
}

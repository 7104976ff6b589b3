//! Packing: rows of a quantized matrix, as MLX stores them, into panels ([`Panels`](super::super::Panels)).

use super::super::Quantized;
use super::super::panels::{HALVES, low_bits, sizes};
use super::activations::BLOCK;
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
                        _ => split(from, bits, to, lanes, lane),
                    }
                }
            }
        }
    });
}

/// A block of 3-, 5- or 6-bit numbers of one row.
fn split(from: &[u32], bits: usize, to: &mut [u32], lanes: usize, lane: usize) {
    let low = low_bits(bits);
    let phases = 8 / low;
    let mut put = |word: usize, bits: u32| to[word] |= bits;
    let own = |word: usize| word * lanes + lane;
    for column in 0..BLOCK {
        let at = column * bits;
        let pair = u64::from(from[at / 32]) | u64::from(from.get(at / 32 + 1).copied().unwrap_or(0)) << 32;
        let number = (pair >> (at % 32)) as u32 & ((1 << bits) - 1);
        if bits == 6 {
            let (first, quad, byte) = (column / 16 * 3, column % 16 / 4, column % 4);
            if quad < 3 {
                put(own(first + quad), number << (8 * byte));
            } else {
                for word in 0..3 {
                    put(own(first + word), (number >> (4 - 2 * word) & 3) << (8 * byte + 6));
                }
            }
        } else {
            let (word, byte, phase) =
                (column / (4 * phases), column % (4 * phases) / phases, column % phases);
            put(own(word), (number & ((1 << low) - 1)) << (8 * byte + low * phase));
            let bit = (word * phases + phase) * 4 * lanes + 4 * lane + byte;
            put(low * lanes + bit / 32, (number >> low) << (bit % 32));
        }
    }
}

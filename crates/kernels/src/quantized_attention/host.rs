//! Attention over quantized keys and values on the CPU: the tasks of [`crate::attention::host`] over another storage.

mod store;

use crate::Error;
use crate::attention::host::{Options, run};
use crate::host::Level;
use crate::host::heads::extent;
pub use crate::host::heads::{Heads, Layout};
use crate::host::lanes::Lane;
pub(crate) use store::Packed;

/// Keys or values `[B, H, S, D]`, affine-quantized.
#[derive(Debug, Clone, Copy)]
pub struct Quantized<'a, E> {
    words: &'a [u32],
    scales: &'a [E],
    biases: &'a [E],
    shape: [usize; 4],
    /// Of the words, of the scales and of the biases: batch, head, position.
    strides: [[usize; 3]; 3],
    bits: u32,
    group: usize,
}

impl<'a, E> Quantized<'a, E> {
    /// Takes words `[B, H, S, D * bits / 32]`, scales and biases `[B, H, S, D / group]`, and for each the strides of its
    /// first three axes; the last is contiguous. `shape` is `[B, H, S, D]`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other bits or group sizes than the contract's; [`Error::Shape`] when `D` is not whole
    /// groups or a row would end past its data.
    pub fn new(
        (words, scales, biases): (&'a [u32], &'a [E], &'a [E]),
        shape: [usize; 4],
        strides: [[usize; 3]; 3],
        bits: u32,
        group: usize,
    ) -> Result<Self, Error> {
        const KERNEL: &str = "quantized_attention";
        if !matches!(bits, 2..=6 | 8) || !matches!(group, 32 | 64 | 128) {
            return Err(Error::Unsupported {
                kernel: KERNEL,
                what: format!("{bits} bits in groups of {group}"),
            });
        }
        let [batch, heads, length, width] = shape;
        let shape_error =
            |operand, expected, got| Err(Error::Shape { kernel: KERNEL, operand, expected, got });
        if !width.is_multiple_of(group) {
            return shape_error("a row", format!("whole groups of {group} values"), format!("{width}"));
        }
        let operands = [
            ("words", words.len(), width / 32 * bits as usize),
            ("scales", scales.len(), width / group),
            ("biases", biases.len(), width / group),
        ];
        for ((operand, held, width), [b, h, s]) in operands.into_iter().zip(strides) {
            let shape = [batch, heads, length, width];
            if extent(&shape, &[b, h, s, 1]).is_none_or(|needed| needed > held) {
                let expected = format!("data for shape {shape:?} at strides {:?}", [b, h, s]);
                return shape_error(operand, expected, format!("{held} elements"));
            }
        }
        Ok(Self { words, scales, biases, shape, strides, bits, group })
    }

    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }
}

/// Attention into `out`, contiguous in `layout`.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit each other.
pub fn quantized_attention<E: Lane>(
    level: Level,
    q: Heads<'_, E>,
    k: Quantized<'_, E>,
    v: Quantized<'_, E>,
    options: &Options<'_, E>,
    layout: Layout,
    out: &mut [E],
) -> Result<(), Error> {
    const KERNEL: &str = "quantized_attention";
    // The common widths have bodies of their own; 0 finds the width out at each vector.
    match (k.bits, v.bits) {
        (4, 4) => run(KERNEL, level, q, Packed::<E, 4>(k), Packed::<E, 4>(v), options, layout, out),
        (8, 8) => run(KERNEL, level, q, Packed::<E, 8>(k), Packed::<E, 8>(v), options, layout, out),
        _ => run(KERNEL, level, q, Packed::<E, 0>(k), Packed::<E, 0>(v), options, layout, out),
    }
}

#[cfg(test)]
mod tests;

//! Packed rows as lanes.
#![allow(unsafe_code)]

use super::Quantized;
use crate::attention::host::store::{Rows, Store};
use crate::host::lanes::{Lane, MAX_LANES, Simd};

/// Keys or values with `BITS` bits, or with what the storage says when `BITS` is 0.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a, E, const BITS: u32>(pub(crate) Quantized<'a, E>);

/// One head's rows.
#[derive(Clone, Copy)]
pub(crate) struct PackedRows<E, const BITS: u32> {
    words: *const u32,
    scales: *const E,
    biases: *const E,
    /// From one position to the next: words, scales, biases.
    strides: [usize; 3],
    bits: u32,
    /// Group size as a power of two.
    group_shift: u32,
}

impl<E: Lane, const BITS: u32> Store for Packed<'_, E, BITS> {
    type Rows = PackedRows<E, BITS>;

    fn shape(&self) -> [usize; 4] {
        self.0.shape
    }

    #[inline]
    fn rows(&self, batch: usize, head: usize, position: usize) -> (PackedRows<E, BITS>, usize) {
        let x = &self.0;
        let start = |[b, h, s]: [usize; 3]| batch * b + head * h + position * s;
        let [words, scales, biases] = x.strides;
        let rows = PackedRows {
            words: x.words[start(words)..].as_ptr(),
            scales: x.scales[start(scales)..].as_ptr(),
            biases: x.biases[start(biases)..].as_ptr(),
            strides: [words[2], scales[2], biases[2]],
            bits: x.bits,
            group_shift: x.group.trailing_zeros(),
        };
        (rows, x.shape[2] - position)
    }
}

impl<E: Lane, const BITS: u32> Rows for PackedRows<E, BITS> {
    const DIRECT: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, position: usize, at: usize) -> S::V {
        // SAFETY: the caller's promise; `Quantized` proved that the shape's rows lie within the data. A vector lies
        // within one group.
        unsafe {
            let row = self.words.add(position * self.strides[0]);
            let group = at >> self.group_shift;
            let scale = s.splat((*self.scales.add(position * self.strides[1] + group)).to_f32());
            let bias = s.splat((*self.biases.add(position * self.strides[2] + group)).to_f32());
            let numbers = match if BITS == 0 { self.bits } else { BITS } {
                2 => s.unpack::<2>(row, at),
                4 => s.unpack::<4>(row, at),
                8 => s.unpack::<8>(row, at),
                bits => unaligned(s, row, bits as usize, at),
            };
            s.fma(numbers, scale, bias)
        }
    }

    #[inline(always)]
    unsafe fn load_tail<S: Simd>(self, s: S, position: usize, at: usize) -> S::V {
        // SAFETY: rows are whole groups, hence whole vectors: this is never a tail.
        unsafe { self.load(s, position, at) }
    }
}

/// Numbers of 3, 5 or 6 bits, which may cross bytes.
#[inline(always)]
unsafe fn unaligned<S: Simd>(s: S, row: *const u32, bits: usize, at: usize) -> S::V {
    let mut numbers = [0.0_f32; MAX_LANES];
    let bytes = row.cast::<u8>();
    for (lane, number) in numbers.iter_mut().enumerate().take(S::LANES) {
        let bit = (at + lane) * bits;
        let (byte, shift) = (bit / 8, bit % 8);
        // SAFETY: the number lies within the row, and so do the bytes that hold it.
        let pair = unsafe {
            let high = if shift + bits > 8 { bytes.add(byte + 1).read() } else { 0 };
            u16::from_le_bytes([bytes.add(byte).read(), high])
        };
        *number = f32::from(pair >> shift & ((1 << bits) - 1));
    }
    f32::get(s, &numbers, 0)
}

//! Codes and norms as lanes.
#![allow(unsafe_code)]

use super::{Stored, levels};
use crate::attention::host::store::{Rows, Store};
use crate::host::lanes::Simd;

/// Keys or values, rotated as they are stored.
#[derive(Clone, Copy)]
pub(super) struct Rotated<'a> {
    stored: Stored<'a>,
    /// The codebook over `sqrt(D)`, then zeros.
    levels: [f32; 16],
}

impl<'a> Rotated<'a> {
    pub(super) fn new(stored: Stored<'a>) -> Self {
        let mut table = [0.0; 16];
        let scale = 1.0 / (stored.shape[3] as f32).sqrt();
        table.iter_mut().zip(levels(stored.bits)).for_each(|(to, level)| *to = level * scale);
        Self { stored, levels: table }
    }
}

/// One head's rows.
#[derive(Clone, Copy)]
pub(super) struct RotatedRows {
    codes: *const u32,
    norms: *const f32,
    /// From one position to the next: codes, norms.
    strides: [usize; 2],
    /// Words of a bit plane.
    plane: usize,
    bits: u8,
    levels: [f32; 16],
}

impl Store for Rotated<'_> {
    type Rows = RotatedRows;

    fn shape(&self) -> [usize; 4] {
        self.stored.shape
    }

    #[inline]
    fn rows(&self, batch: usize, head: usize, position: usize) -> (RotatedRows, usize) {
        let x = &self.stored;
        let start = |[b, h, s]: [usize; 3]| batch * b + head * h + position * s;
        let [codes, norms] = x.strides;
        let rows = RotatedRows {
            codes: x.codes[start(codes)..].as_ptr(),
            norms: x.norms[start(norms)..].as_ptr(),
            strides: [codes[2], norms[2]],
            plane: x.shape[3] / 32,
            bits: x.bits,
            levels: self.levels,
        };
        (rows, x.shape[2] - position)
    }
}

impl Rows for RotatedRows {
    const DIRECT: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, position: usize, at: usize) -> S::V {
        // SAFETY: the caller's promise; `Stored` proved that the shape's rows lie within the data. Vectors do not cross words.
        unsafe {
            let row = self.codes.add(position * self.strides[0] + at / 32);
            let mut bits = [0; 4];
            for (plane, bits) in bits.iter_mut().enumerate().take(self.bits as usize) {
                *bits = row.add(plane * self.plane).read() >> (at % 32);
            }
            let norm = s.splat(*self.norms.add(position * self.strides[1]));
            s.mul(s.choose(&self.levels, bits), norm)
        }
    }

    #[inline(always)]
    unsafe fn load_tail<S: Simd>(self, s: S, position: usize, at: usize) -> S::V {
        // SAFETY: rows are whole words, hence whole vectors: this is never a tail.
        unsafe { self.load(s, position, at) }
    }
}

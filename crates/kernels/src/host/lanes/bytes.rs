//! Byte work on the same lanes: a lane is also a 32-bit integer or four bytes. What quantized products are made of.
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::wildcard_imports,
    reason = "the token proves the features, pointers are the caller's promise; intrinsics come by the dozen"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use super::{Lane, MAX_LANES, Simd};

/// Integer operations of an instruction set.
pub trait Bytes: Simd {
    /// `LANES` 32-bit integers, or `4 * LANES` bytes.
    type I: Copy;

    /// All zero.
    fn zeros(self) -> Self::I;
    /// Loads `4 * LANES` bytes.
    ///
    /// # Safety
    /// `from` is valid for reading that many bytes; no alignment is needed.
    unsafe fn load_bytes(self, from: *const u8) -> Self::I;
    /// The four bytes at `from` in every lane.
    ///
    /// # Safety
    /// They are valid for reading.
    unsafe fn splat_four(self, from: *const i8) -> Self::I;
    /// Stores `4 * LANES` bytes.
    ///
    /// # Safety
    /// `to` is valid for writing them.
    unsafe fn store_bytes(self, to: *mut u8, bytes: Self::I);
    /// Of each byte, the `phase`th `BITS`-bit number, counted from the low end (`BITS` 2, 4 or 8).
    fn phase<const BITS: u32>(self, bytes: Self::I, phase: usize) -> Self::I;
    /// `4 * LANES` numbers of `BITS` bits (3, 5 or 6; lowest bits first), one to a byte. Only the first `count` bytes of
    /// the `LANES * BITS / 2` that hold them are read; numbers beyond them are zero.
    ///
    /// # Safety
    /// `from` is valid for reading `count` bytes; `count` is a multiple of `BITS`.
    unsafe fn load_odd<const BITS: u32>(self, from: *const u8, count: usize) -> Self::I;
    /// The bytes, with bit `BIT` set in those whose bit in the mask is: `4 * LANES` bits from `mask` on, lowest first.
    ///
    /// # Safety
    /// `mask` is valid for reading them.
    #[inline(always)]
    unsafe fn with_bit<const BIT: u32>(self, bytes: Self::I, mask: *const u8) -> Self::I {
        let mut words = [0_u32; MAX_LANES];
        unsafe {
            self.store_bytes(words.as_mut_ptr().cast(), bytes);
            for (lane, word) in words.iter_mut().enumerate().take(Self::LANES) {
                let bits = u32::from(mask.add(lane / 2).read() >> (4 * (lane % 2)));
                for byte in 0..4 {
                    *word |= (bits >> byte & 1) << (8 * byte + BIT);
                }
            }
            self.load_bytes(words.as_ptr().cast())
        }
    }
    /// The low 6 bits of each byte.
    fn low_six(self, bytes: Self::I) -> Self::I;
    /// The two highest bits of each byte of three vectors as one number of 6 bits, the first vector's highest.
    fn high_twos(self, three: [Self::I; 3]) -> Self::I;
    /// The lowest byte of each lane, to the front of `to`.
    #[inline(always)]
    fn low_bytes(self, numbers: Self::I, to: &mut [i8]) {
        let mut bytes = [0; 4 * MAX_LANES];
        // SAFETY: a vector has at most so many bytes.
        unsafe { self.store_bytes(bytes.as_mut_ptr(), numbers) };
        to[..Self::LANES]
            .iter_mut()
            .zip(bytes.iter().step_by(4))
            .for_each(|(to, &byte)| *to = byte.cast_signed());
    }
    /// Deals 32 bytes to the phases (1, 2 or 4) of each word of `4 * phases`: first every `phases`th from the first on, then
    /// every `phases`th from the second on, and so on.
    #[inline(always)]
    fn deal(self, bytes: &[i8; 32], phases: usize, to: &mut [i8; 32]) {
        let source = |phases: usize, at: usize| {
            let (word, phase, byte) = (at / (4 * phases), at % (4 * phases) / 4, at % 4);
            word * 4 * phases + byte * phases + phase
        };
        *to = match phases {
            1 => *bytes,
            2 => std::array::from_fn(|at| bytes[source(2, at)]),
            _ => std::array::from_fn(|at| bytes[source(4, at)]),
        };
    }
    /// `sums + u * s` over the four bytes of each lane, `u` unsigned and `s` signed (never -128), exact in 32 bits.
    /// Without `WIDE`, bytes of `u` are below 128.
    fn dot<const WIDE: bool>(self, sums: Self::I, u: Self::I, s: Self::I) -> Self::I;
    /// Byte `byte` of each lane, 0 the lowest, as floats.
    fn byte_to_floats(self, bytes: Self::I, byte: usize) -> Self::V;
    /// 32-bit integers as floats.
    fn to_floats(self, integers: Self::I) -> Self::V;
    /// Asks for the cache line at an address that may be anywhere, into the second-level cache: the first one waits for too few lines
    /// at a time to keep memory busy.
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
    /// The same bits as bytes.
    fn as_bytes(self, floats: Self::V) -> Self::I;
    /// Loads and widens the first `count` values; the other lanes are zero.
    ///
    /// # Safety
    /// `from` is valid for reading `count` values.
    #[inline(always)]
    unsafe fn load_some<E: Lane>(self, from: *const E, count: usize) -> Self::V {
        if count >= Self::LANES {
            return unsafe { E::load(self, from) };
        }
        let mut buffer = [E::default(); MAX_LANES];
        unsafe {
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), count);
            E::load(self, buffer.as_ptr())
        }
    }
}

#[cfg(test)]
mod tests;

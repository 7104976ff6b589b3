//! Vectors of float32 lanes: one kernel body, compiled for each instruction set.
//!
//! A kernel that computes in float32 is written once as a [`Body`] over [`Simd`]; [`dispatch`] compiles it for AVX-512,
//! AVX2, NEON and plain Rust, and picks one at run time. [`Lane`] widens what memory holds (float32, float16, bfloat16)
//! to lanes and rounds it back, so that a body does not know its element type either.
//!
//! A token (`s: impl Simd`) proves that its instructions exist, hence arithmetic is safe; only loads and stores through
//! pointers are `unsafe`. Everything here is `inline(always)`: a body must end up inside the one function that has
//! the instructions enabled. [`Bytes`] adds what products of quantized numbers need.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bytes;
mod lane;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

pub use bytes::Bytes;
pub use lane::Lane;

use super::Level;
use half::{bf16, f16};

/// Largest number of lanes of any instruction set.
pub const MAX_LANES: usize = 16;

/// One kernel body with its operands.
pub trait Body {
    /// What it returns.
    type Out;

    /// Runs it; implementations are `inline(always)`.
    fn run<S: Bytes>(self, s: S) -> Self::Out;
}

/// Runs a body with the instructions of `level`.
#[inline]
pub fn dispatch<B: Body>(level: Level, body: B) -> B::Out {
    match level {
        // SAFETY: a level is only handed out where its features exist.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512::enter(body) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2::enter(body) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Level::Neon => unsafe { neon::enter(body) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Level::NeonDot => unsafe { neon::enter_dot(body) },
        _ => body.run(portable::Portable),
    }
}

/// Proof that an instruction set exists, and its operations on `LANES` float32 values.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Lanes of a vector: 4, 8 or 16.
    const LANES: usize;
    /// Vectors that a tile of accumulators may hold in registers.
    const TILE: usize;
    /// A vector.
    type V: Copy;
    /// A truth value for each lane.
    type M: Copy;

    /// `x` in each lane.
    fn splat(self, x: f32) -> Self::V;
    /// Loads `LANES` values.
    ///
    /// # Safety
    /// `from` is valid for reading `LANES` values; no alignment is needed. The same holds for the loads below.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// Loads and widens `LANES` values.
    ///
    /// # Safety
    /// As `load`.
    unsafe fn load_f16(self, from: *const f16) -> Self::V;
    /// Loads and widens `LANES` values.
    ///
    /// # Safety
    /// As `load`.
    unsafe fn load_bf16(self, from: *const bf16) -> Self::V;
    /// Stores `LANES` values.
    ///
    /// # Safety
    /// `to` is valid for writing `LANES` values; no alignment is needed. The same holds for the stores below.
    unsafe fn store(self, to: *mut f32, x: Self::V);
    /// Rounds (to nearest, ties to even) and stores `LANES` values.
    ///
    /// # Safety
    /// As `store`.
    unsafe fn store_f16(self, to: *mut f16, x: Self::V);
    /// Rounds (to nearest, ties to even) and stores `LANES` values.
    ///
    /// # Safety
    /// As `store`.
    unsafe fn store_bf16(self, to: *mut bf16, x: Self::V);
    /// Values `index .. index + LANES` of a row of unsigned `BITS`-bit numbers (2, 4 or 8; lowest bits first), as floats.
    ///
    /// # Safety
    /// `index` is a multiple of `LANES` and the row holds that many values from there.
    unsafe fn unpack<const BITS: u32>(self, row: *const u32, index: usize) -> Self::V;
    /// Lane `i` is `table[n]`, where bit `j` of `n` is bit `i` of `bits[j]`.
    #[inline(always)]
    fn choose(self, table: &[f32; 16], bits: [u32; 4]) -> Self::V {
        let number = |lane: usize| (0..4).map(|j| (bits[j] >> lane & 1) << j).sum::<u32>();
        let values: [f32; MAX_LANES] = std::array::from_fn(|lane| table[number(lane) as usize]);
        // SAFETY: a vector has at most so many lanes.
        unsafe { self.load(values.as_ptr()) }
    }

    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The smaller; `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `|a|`.
    fn abs(self, a: Self::V) -> Self::V;
    /// `|magnitude|` with the sign of `sign`.
    fn copysign(self, magnitude: Self::V, sign: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// `a * 2^n` for integral `n` of `-252 ..= 252`, subnormal results included.
    fn scale(self, a: Self::V, n: Self::V) -> Self::V;
    /// `a < b`; false where either is NaN.
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    /// `yes` where `m` holds, else `no`.
    fn select(self, m: Self::M, yes: Self::V, no: Self::V) -> Self::V;
    /// Whether any lane holds.
    fn any(self, m: Self::M) -> bool;
    /// Sum of the lanes, in a fixed order.
    fn sum(self, a: Self::V) -> f32;
    /// Largest lane; NaN lanes may be passed over.
    fn largest(self, a: Self::V) -> f32;
    /// Lane `i` of the result is the sum of `rows[i]`, for `i < LANES`; the rest of `rows` is not looked at.
    fn sums(self, rows: &[Self::V; MAX_LANES]) -> Self::V;
}

/// Sum over `at` in steps of a vector of `term(at)`, with four chains, then over the lanes.
#[inline(always)]
pub(crate) fn sum_over<S: Simd>(s: S, length: usize, term: impl Fn(usize, S::V) -> S::V) -> f32 {
    let mut chains = [s.splat(0.0); 4];
    // One place that calls `term`: it must be inlined to be compiled with the instruction set's features.
    for start in (0..length).step_by(4 * S::LANES) {
        for (i, chain) in chains.iter_mut().enumerate() {
            let at = start + i * S::LANES;
            if at < length {
                *chain = term(at, *chain);
            }
        }
    }
    s.sum(s.add(s.add(chains[0], chains[1]), s.add(chains[2], chains[3])))
}

#[cfg(test)]
mod tests;

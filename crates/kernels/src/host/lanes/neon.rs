//! Four lanes with NEON (aarch64), with and without its extension for dot products of bytes.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the token proves the features; pointers are the caller's promise"
)]
#![allow(clippy::wildcard_imports, reason = "the instructions are the vocabulary of this file")]

use super::{Body, MAX_LANES, Simd};
use half::{bf16, f16};
use std::arch::aarch64::*;
use std::arch::asm;

/// Proof of NEON, and of its dot products of bytes if `DOT`.
#[derive(Clone, Copy)]
pub(super) struct Neon<const DOT: bool>(());

/// Runs a body with the features enabled.
///
/// # Safety
/// The machine has them.
#[target_feature(enable = "neon")]
pub(super) unsafe fn enter<B: Body>(body: B) -> B::Out {
    body.run(Neon::<false>(()))
}

/// [`enter`] with dot products of bytes.
///
/// # Safety
/// The machine has the features.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn enter_dot<B: Body>(body: B) -> B::Out {
    body.run(Neon::<true>(()))
}

impl<const DOT: bool> Simd for Neon<DOT> {
    const LANES: usize = 4;
    const TILE: usize = 24;
    type V = float32x4_t;
    type M = uint32x4_t;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> float32x4_t {
        // The intrinsic over float16 vectors is not stable; the instruction is in every NEON.
        unsafe {
            let half = vld1_u16(from.cast());
            let wide: float32x4_t;
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) half, options(pure, nomem, nostack));
            wide
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: float32x4_t) {
        unsafe { vst1q_f32(to, x) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, x: float32x4_t) {
        unsafe {
            let half: uint16x4_t;
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) half, in(vreg) x, options(pure, nomem, nostack));
            vst1_u16(to.cast(), half);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, x: float32x4_t) {
        // Half a unit in the last place, less one when the kept part is even, then truncate.
        unsafe {
            let bits = vreinterpretq_u32_f32(x);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
            let number = vceqq_f32(x, x);
            vst1_u16(to.cast(), vshrn_n_u32::<16>(vbslq_u32(number, rounded, quiet)));
        }
    }
    #[inline(always)]
    unsafe fn unpack<const BITS: u32>(self, row: *const u32, index: usize) -> float32x4_t {
        unsafe {
            let at = row.cast::<u8>().add(index * BITS as usize / 8);
            let word = match BITS {
                8 => at.cast::<u32>().read_unaligned(),
                4 => u32::from(at.cast::<u16>().read_unaligned()),
                _ => u32::from(at.read()),
            };
            let step = -(BITS as i32);
            let shifts = vld1q_s32([0, step, 2 * step, 3 * step].as_ptr());
            let values = vandq_u32(vshlq_u32(vdupq_n_u32(word), shifts), vdupq_n_u32((1 << BITS) - 1));
            vcvtq_f32_u32(values)
        }
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn fnma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmsq_f32(c, a, b) }
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn abs(self, a: float32x4_t) -> float32x4_t {
        unsafe { vabsq_f32(a) }
    }
    #[inline(always)]
    fn copysign(self, magnitude: float32x4_t, sign: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vdupq_n_u32(1 << 31), sign, magnitude) }
    }
    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    fn scale(self, a: float32x4_t, n: float32x4_t) -> float32x4_t {
        // Two factors of about 2^(n/2), so that neither leaves the normal range.
        unsafe {
            let n = vcvtq_s32_f32(n);
            let first = vshrq_n_s32::<1>(n);
            let second = vsubq_s32(n, first);
            let power = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127))));
            vmulq_f32(vmulq_f32(a, power(first)), power(second))
        }
    }
    #[inline(always)]
    fn lt(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        unsafe { vcltq_f32(a, b) }
    }
    #[inline(always)]
    fn select(self, m: uint32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(m, yes, no) }
    }
    #[inline(always)]
    fn any(self, m: uint32x4_t) -> bool {
        unsafe { vmaxvq_u32(m) != 0 }
    }
    #[inline(always)]
    fn sum(self, a: float32x4_t) -> f32 {
        unsafe { vaddvq_f32(a) }
    }
    #[inline(always)]
    fn largest(self, a: float32x4_t) -> f32 {
        unsafe { vmaxnmvq_f32(a) }
    }
    #[inline(always)]
    fn sums(self, rows: &[float32x4_t; MAX_LANES]) -> float32x4_t {
        unsafe { vpaddq_f32(vpaddq_f32(rows[0], rows[1]), vpaddq_f32(rows[2], rows[3])) }
    }
}

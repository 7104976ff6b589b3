//! Four lanes with NEON: widening products, since byte dot products are not in stable Rust's `std::arch`.

use super::super::neon::Neon;
use super::{Bytes, portable};
use std::arch::aarch64::*;

impl Bytes for Neon {
    type I = uint8x16_t;

    #[inline(always)]
    fn zeros(self) -> uint8x16_t {
        unsafe { vdupq_n_u8(0) }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> uint8x16_t {
        unsafe { vld1q_u8(from) }
    }
    #[inline(always)]
    unsafe fn splat_four(self, from: *const i8) -> uint8x16_t {
        unsafe { vreinterpretq_u8_u32(vdupq_n_u32(from.cast::<u32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, bytes: uint8x16_t) {
        unsafe { vst1q_u8(to, bytes) }
    }
    #[inline(always)]
    fn phase<const BITS: u32>(self, bytes: uint8x16_t, phase: usize) -> uint8x16_t {
        unsafe {
            let shifted = vshlq_u8(bytes, vdupq_n_s8(-((phase as u32 * BITS) as i8)));
            vandq_u8(shifted, vdupq_n_u8(((1_u32 << BITS) - 1) as u8))
        }
    }
    #[inline(always)]
    unsafe fn load_odd<const BITS: u32>(self, from: *const u8, count: usize) -> uint8x16_t {
        unsafe { vld1q_u8(portable::odd::<BITS, 16>(from, count).as_ptr()) }
    }
    #[inline(always)]
    fn low_six(self, bytes: uint8x16_t) -> uint8x16_t {
        unsafe { vandq_u8(bytes, vdupq_n_u8(0x3f)) }
    }
    #[inline(always)]
    fn high_twos(self, [a, b, c]: [uint8x16_t; 3]) -> uint8x16_t {
        // Each keeps its two highest bits; what is shifted right goes below them.
        unsafe { vshrq_n_u8::<2>(vsriq_n_u8::<2>(a, vsriq_n_u8::<2>(b, c))) }
    }
    #[inline(always)]
    fn dot<const WIDE: bool>(self, sums: uint8x16_t, u: uint8x16_t, s: uint8x16_t) -> uint8x16_t {
        unsafe {
            let s = vreinterpretq_s8_u8(s);
            // Products of 16 bits would overflow for bytes above 127: their factors are widened first.
            let wide = |u: uint8x8_t, s: int8x8_t| {
                let (u, s) = (vreinterpretq_s16_u16(vmovl_u8(u)), vmovl_s8(s));
                let low = vmull_s16(vget_low_s16(u), vget_low_s16(s));
                vpaddq_s32(low, vmull_high_s16(u, s))
            };
            let pairs =
                vpaddq_s32(wide(vget_low_u8(u), vget_low_s8(s)), wide(vget_high_u8(u), vget_high_s8(s)));
            vreinterpretq_u8_s32(vaddq_s32(vreinterpretq_s32_u8(sums), pairs))
        }
    }
    #[inline(always)]
    fn byte_to_floats(self, bytes: uint8x16_t, byte: usize) -> float32x4_t {
        unsafe {
            let shifted = vshlq_u32(vreinterpretq_u32_u8(bytes), vdupq_n_s32(-8 * byte as i32));
            vcvtq_f32_u32(vandq_u32(shifted, vdupq_n_u32(0xff)))
        }
    }
    #[inline(always)]
    fn to_floats(self, integers: uint8x16_t) -> float32x4_t {
        unsafe { vcvtq_f32_s32(vreinterpretq_s32_u8(integers)) }
    }
    #[inline(always)]
    fn as_bytes(self, floats: float32x4_t) -> uint8x16_t {
        unsafe { vreinterpretq_u8_f32(floats) }
    }
}

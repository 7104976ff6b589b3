//! Four lanes with NEON, whose dot products of bytes are an extension: where it is missing, widening products.

use super::super::neon::Neon;
use super::{Bytes, portable};
use std::arch::aarch64::*;
use std::arch::asm;

impl<const DOT: bool> Bytes for Neon<DOT> {
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
    unsafe fn with_bit<const BIT: u32>(self, bytes: uint8x16_t, mask: *const u8) -> uint8x16_t {
        unsafe {
            let mask = vcombine_u8(vld1_dup_u8(mask), vld1_dup_u8(mask.add(1)));
            let own = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            vorrq_u8(bytes, vandq_u8(vtstq_u8(mask, own), vdupq_n_u8(1 << BIT)))
        }
    }
    #[inline(always)]
    fn low_bytes(self, numbers: uint8x16_t, to: &mut [i8]) {
        unsafe {
            let halves = vmovn_u32(vreinterpretq_u32_u8(numbers));
            let bytes = vmovn_u16(vcombine_u16(halves, halves));
            let four = vget_lane_u32::<0>(vreinterpret_u32_u8(bytes)).to_le_bytes();
            to[..4].copy_from_slice(&four.map(u8::cast_signed));
        }
    }
    #[inline(always)]
    fn deal(self, bytes: &[i8; 32], phases: usize, to: &mut [i8; 32]) {
        let order: [u8; 16] = match phases {
            1 => return to.copy_from_slice(bytes),
            2 => [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15],
            _ => [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15],
        };
        for (from, to) in bytes.as_chunks::<16>().0.iter().zip(to.as_chunks_mut::<16>().0) {
            unsafe {
                vst1q_s8(to.as_mut_ptr(), vqtbl1q_s8(vld1q_s8(from.as_ptr()), vld1q_u8(order.as_ptr())))
            };
        }
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
            let (sums, s) = (vreinterpretq_s32_u8(sums), vreinterpretq_s8_u8(s));
            let signed = |sums, u| if DOT { sdot(sums, u, s) } else { widened_dot(sums, u, s) };
            vreinterpretq_u8_s32(if WIDE {
                // u s = (u - 128) s + 128 s
                let less = vreinterpretq_s8_u8(veorq_u8(u, vdupq_n_u8(0x80)));
                let rest = vshlq_n_s32::<7>(vpaddlq_s16(vpaddlq_s8(s)));
                vaddq_s32(signed(sums, less), rest)
            } else {
                signed(sums, vreinterpretq_s8_u8(u))
            })
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

/// `sums + a * b` over the four bytes of each lane. The intrinsic is not stable.
#[inline]
#[target_feature(enable = "dotprod")]
fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inlateout(vreg) sums,
            in(vreg) a,
            in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// The same for `b` without -128: sums of two products fit 16 bits, 2 * 128 * 127.
#[inline(always)]
unsafe fn widened_dot(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    unsafe {
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        vpadalq_s16(sums, vpaddq_s16(low, vmull_high_s8(a, b)))
    }
}

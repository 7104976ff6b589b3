//! Eight lanes with AVX2.

use super::super::avx2::Avx2;
use super::{Bytes, portable};
use std::arch::x86_64::*;

impl Bytes for Avx2 {
    type I = __m256i;

    #[inline(always)]
    fn zeros(self) -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_four(self, from: *const i8) -> __m256i {
        unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, bytes: __m256i) {
        unsafe { _mm256_storeu_si256(to.cast(), bytes) }
    }
    #[inline(always)]
    fn phase<const BITS: u32>(self, bytes: __m256i, phase: usize) -> __m256i {
        unsafe {
            let shifted = match phase as u32 * BITS {
                0 => bytes,
                2 => _mm256_srli_epi16::<2>(bytes),
                4 => _mm256_srli_epi16::<4>(bytes),
                _ => _mm256_srli_epi16::<6>(bytes),
            };
            if BITS == 8 { shifted } else { _mm256_and_si256(shifted, _mm256_set1_epi8((1 << BITS) - 1)) }
        }
    }
    #[inline(always)]
    unsafe fn load_odd<const BITS: u32>(self, from: *const u8, count: usize) -> __m256i {
        unsafe { self.load_bytes(portable::odd::<BITS, 32>(from, count).as_ptr()) }
    }
    #[inline(always)]
    unsafe fn with_bit<const BIT: u32>(self, bytes: __m256i, mask: *const u8) -> __m256i {
        unsafe {
            let mask = _mm256_set1_epi32(mask.cast::<i32>().read_unaligned());
            // Byte `i` gets byte `i / 8` of the mask, of which bit `i % 8` is its own.
            let (low, high) = (0x0101_0101_0101_0101, 0x0303_0303_0303_0303);
            let source = _mm256_setr_epi64x(0, low, 2 * low, high);
            let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(mask, source), own), own);
            _mm256_or_si256(bytes, _mm256_and_si256(set, _mm256_set1_epi8(1 << BIT)))
        }
    }
    #[inline(always)]
    fn low_six(self, bytes: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(bytes, _mm256_set1_epi8(0x3f)) }
    }
    #[inline(always)]
    fn high_twos(self, [a, b, c]: [__m256i; 3]) -> __m256i {
        unsafe {
            let a = _mm256_and_si256(_mm256_srli_epi16::<2>(a), _mm256_set1_epi8(0x30));
            let b = _mm256_and_si256(_mm256_srli_epi16::<4>(b), _mm256_set1_epi8(0x0c));
            let c = _mm256_and_si256(_mm256_srli_epi16::<6>(c), _mm256_set1_epi8(0x03));
            _mm256_or_si256(_mm256_or_si256(a, b), c)
        }
    }
    #[inline(always)]
    fn dot<const WIDE: bool>(self, sums: __m256i, u: __m256i, s: __m256i) -> __m256i {
        unsafe {
            // The pair sums of `maddubs` saturate at 16 bits: 2 * 127 * 127 fits, 2 * 255 * 127 does not.
            let pairs = |u| _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1));
            if WIDE {
                let low = _mm256_and_si256(u, _mm256_set1_epi8(0x7f));
                let high = _mm256_and_si256(_mm256_srli_epi16::<7>(u), _mm256_set1_epi8(1));
                let high = _mm256_slli_epi32::<7>(pairs(high));
                _mm256_add_epi32(sums, _mm256_add_epi32(pairs(low), high))
            } else {
                _mm256_add_epi32(sums, pairs(u))
            }
        }
    }
    #[inline(always)]
    fn byte_to_floats(self, bytes: __m256i, byte: usize) -> __m256 {
        unsafe {
            let low = match byte {
                0 => bytes,
                1 => _mm256_srli_epi32::<8>(bytes),
                2 => _mm256_srli_epi32::<16>(bytes),
                _ => return _mm256_cvtepi32_ps(_mm256_srli_epi32::<24>(bytes)),
            };
            _mm256_cvtepi32_ps(_mm256_and_si256(low, _mm256_set1_epi32(0xff)))
        }
    }
    #[inline(always)]
    fn to_floats(self, integers: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(integers) }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[inline(always)]
    fn as_bytes(self, floats: __m256) -> __m256i {
        unsafe { _mm256_castps_si256(floats) }
    }
}

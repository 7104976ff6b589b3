//! Sixteen lanes with AVX-512 BW, VNNI and VBMI.

use super::super::avx512::Avx512;
use super::{Bytes, Lane};
use std::arch::x86_64::*;
use strata_contracts::Dtype;

impl Bytes for Avx512 {
    type I = __m512i;

    #[inline(always)]
    fn zeros(self) -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_four(self, from: *const i8) -> __m512i {
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, bytes: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), bytes) }
    }
    #[inline(always)]
    fn phase<const BITS: u32>(self, bytes: __m512i, phase: usize) -> __m512i {
        unsafe {
            let shifted = match phase as u32 * BITS {
                0 => bytes,
                2 => _mm512_srli_epi16::<2>(bytes),
                4 => _mm512_srli_epi16::<4>(bytes),
                _ => _mm512_srli_epi16::<6>(bytes),
            };
            if BITS == 8 { shifted } else { _mm512_and_si512(shifted, _mm512_set1_epi8((1 << BITS) - 1)) }
        }
    }
    #[inline(always)]
    unsafe fn load_odd<const BITS: u32>(self, from: *const u8, count: usize) -> __m512i {
        // Eight numbers are BITS bytes: move those to the low end of each 64-bit part, then take eight fields from it.
        unsafe {
            let packed = _mm512_maskz_loadu_epi8(first(count), from.cast());
            let parts = _mm512_permutexvar_epi8(spread_index(BITS), packed);
            let fields = _mm512_multishift_epi64_epi8(shifts(BITS), parts);
            _mm512_and_si512(fields, _mm512_set1_epi8((1 << BITS) - 1))
        }
    }
    #[inline(always)]
    unsafe fn with_bit<const BIT: u32>(self, bytes: __m512i, mask: *const u8) -> __m512i {
        unsafe {
            let mask = mask.cast::<u64>().read_unaligned();
            _mm512_mask_add_epi8(bytes, mask, bytes, _mm512_set1_epi8(1 << BIT))
        }
    }
    #[inline(always)]
    fn low_six(self, bytes: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(bytes, _mm512_set1_epi8(0x3f)) }
    }
    #[inline(always)]
    fn high_twos(self, [a, b, c]: [__m512i; 3]) -> __m512i {
        // Where the first operand has ones the second, elsewhere the third.
        const CHOOSE: i32 = 0xca;
        unsafe {
            let (a, b, c) = (_mm512_srli_epi16::<2>(a), _mm512_srli_epi16::<4>(b), _mm512_srli_epi16::<6>(c));
            let two = _mm512_ternarylogic_epi64::<CHOOSE>(_mm512_set1_epi8(0x30), a, b);
            self.low_six(_mm512_ternarylogic_epi64::<CHOOSE>(_mm512_set1_epi8(0x03), c, two))
        }
    }
    #[inline(always)]
    fn low_bytes(self, numbers: __m512i, to: &mut [i8]) {
        // SAFETY: the slice has room for 16 bytes.
        unsafe { _mm_storeu_si128(to[..16].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(numbers)) }
    }
    #[inline(always)]
    fn deal(self, bytes: &[i8; 32], phases: usize, to: &mut [i8; 32]) {
        // Words of 4, 8 or 16 bytes: each half holds whole ones.
        const ORDER: [[i8; 16]; 3] = [
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15],
            [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15],
        ];
        let (from, to) = (bytes.as_ptr(), to.as_mut_ptr());
        // SAFETY: each half is 16 bytes.
        unsafe {
            let order = _mm_loadu_si128(ORDER[phases / 2].as_ptr().cast());
            for half in [0, 16] {
                let bytes = _mm_loadu_si128(from.add(half).cast());
                _mm_storeu_si128(to.add(half).cast(), _mm_shuffle_epi8(bytes, order));
            }
        }
    }
    #[inline(always)]
    fn dot<const WIDE: bool>(self, sums: __m512i, u: __m512i, s: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, u, s) }
    }
    #[inline(always)]
    fn byte_to_floats(self, bytes: __m512i, byte: usize) -> __m512 {
        unsafe {
            let low = match byte {
                0 => bytes,
                1 => _mm512_srli_epi32::<8>(bytes),
                2 => _mm512_srli_epi32::<16>(bytes),
                _ => return _mm512_cvtepi32_ps(_mm512_srli_epi32::<24>(bytes)),
            };
            _mm512_cvtepi32_ps(_mm512_and_si512(low, _mm512_set1_epi32(0xff)))
        }
    }
    #[inline(always)]
    fn to_floats(self, integers: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(integers) }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[inline(always)]
    fn as_bytes(self, floats: __m512) -> __m512i {
        unsafe { _mm512_castps_si512(floats) }
    }
    #[inline(always)]
    unsafe fn load_some<E: Lane>(self, from: *const E, count: usize) -> __m512 {
        unsafe {
            let mask = if count >= 16 { 0xffff } else { (1_u16 << count) - 1 };
            match E::DTYPE {
                Dtype::Float16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from.cast())),
                Dtype::Bfloat16 => {
                    let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
                }
                _ => _mm512_maskz_loadu_ps(mask, from.cast()),
            }
        }
    }
}

/// Mask of the first `count` bytes.
#[inline(always)]
fn first(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Byte `j` of 64-bit part `i` is byte `BITS * i + j` of the source.
#[inline(always)]
fn spread_index(bits: u32) -> __m512i {
    const fn table(bits: usize) -> [u8; 64] {
        let (mut index, mut at) = ([0; 64], 0);
        while at < 64 {
            index[at] = (bits * (at / 8) + at % 8) as u8;
            at += 1;
        }
        index
    }
    const TABLES: [[u8; 64]; 7] = [table(0), table(1), table(2), table(3), table(4), table(5), table(6)];
    unsafe { _mm512_loadu_si512(TABLES[bits as usize].as_ptr().cast()) }
}

/// Bit offsets of eight consecutive fields.
#[inline(always)]
fn shifts(bits: u32) -> __m512i {
    const fn word(bits: u64) -> i64 {
        let (mut word, mut at) = (0, 0);
        while at < 8 {
            word |= (bits * at) << (8 * at);
            at += 1;
        }
        word as i64
    }
    const WORDS: [i64; 7] = [word(0), word(1), word(2), word(3), word(4), word(5), word(6)];
    unsafe { _mm512_set1_epi64(WORDS[bits as usize]) }
}

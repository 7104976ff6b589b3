//! Sixteen lanes with AVX-512 F, BW, DQ and VL.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the token proves the features; pointers are the caller's promise"
)]
#![allow(clippy::wildcard_imports, reason = "the instructions are the vocabulary of this file")]

use super::{Body, MAX_LANES, Simd};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// Proof of AVX-512 F, BW, DQ, VL, VNNI, VBMI, AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Runs a body with the features enabled.
///
/// # Safety
/// The machine has them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn enter<B: Body>(body: B) -> B::Out {
    body.run(Avx512(()))
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    const TILE: usize = 24;
    type V = __m512;
    type M = __mmask16;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: __m512) {
        unsafe { _mm512_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, x: __m512) {
        unsafe {
            _mm256_storeu_si256(
                to.cast(),
                _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x),
            );
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, x: __m512) {
        // Half a unit in the last place, less one when the kept part is even, then truncate. (The AVX-512 BF16
        // conversion flushes subnormals, so it is not used.)
        unsafe {
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let kept = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(kept));
        }
    }
    #[inline(always)]
    unsafe fn unpack<const BITS: u32>(self, row: *const u32, index: usize) -> __m512 {
        unsafe {
            let at = row.cast::<u8>().add(index * BITS as usize / 8);
            let values = match BITS {
                8 => _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())),
                4 => {
                    // Each byte to two lanes; the odd one shifted down by a nibble.
                    let bytes = _mm_loadl_epi64(at.cast());
                    let pairs = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
                    let shifts = _mm512_set1_epi64(4 << 32);
                    _mm512_and_si512(_mm512_srlv_epi32(pairs, shifts), _mm512_set1_epi32(15))
                }
                _ => {
                    let word = _mm512_set1_epi32(at.cast::<i32>().read_unaligned());
                    let shifts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
                    _mm512_and_si512(_mm512_srlv_epi32(word, shifts), _mm512_set1_epi32(3))
                }
            };
            _mm512_cvtepi32_ps(values)
        }
    }
    #[inline(always)]
    fn choose(self, table: &[f32; 16], bits: [u32; 4]) -> __m512 {
        unsafe {
            let number = _mm512_maskz_set1_epi32(bits[0] as __mmask16, 1);
            let with = |number, mask: u32, bit| {
                _mm512_mask_or_epi32(number, mask as __mmask16, number, _mm512_set1_epi32(bit))
            };
            let number = with(with(with(number, bits[1], 2), bits[2], 4), bits[3], 8);
            _mm512_permutexvar_ps(number, _mm512_loadu_ps(table.as_ptr()))
        }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn copysign(self, magnitude: __m512, sign: __m512) -> __m512 {
        // Truth table 0xca: the first operand chooses between the second and the third.
        unsafe {
            _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xca>(
                _mm512_set1_epi32(i32::MIN),
                _mm512_castps_si512(sign),
                _mm512_castps_si512(magnitude),
            ))
        }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn scale(self, a: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn select(self, m: __mmask16, yes: __m512, no: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(m, no, yes) }
    }
    #[inline(always)]
    fn any(self, m: __mmask16) -> bool {
        m != 0
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    fn sums(self, rows: &[__m512; MAX_LANES]) -> __m512 {
        // Four rows to one vector whose 128-bit parts each hold four partial sums; then four such vectors to one.
        let four = |i: usize| unsafe {
            let pair = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (ab, cd) = (pair(rows[i], rows[i + 1]), pair(rows[i + 2], rows[i + 3]));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
            _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
        };
        let parts = |a, b| unsafe {
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
        };
        parts(parts(four(0), four(4)), parts(four(8), four(12)))
    }
}

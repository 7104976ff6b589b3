//! Eight lanes with AVX2, FMA and F16C.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the token proves the features; pointers are the caller's promise"
)]
#![allow(clippy::wildcard_imports, reason = "the instructions are the vocabulary of this file")]

use super::{Body, MAX_LANES, Simd};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// Runs a body with the features enabled.
///
/// # Safety
/// The machine has them.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn enter<B: Body>(body: B) -> B::Out {
    body.run(Avx2(()))
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    const TILE: usize = 12;
    type V = __m256;
    type M = __m256;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: __m256) {
        unsafe { _mm256_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, x: __m256) {
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, x: __m256) {
        // Half a unit in the last place, less one when the kept part is even, then truncate.
        unsafe {
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let kept = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(kept, kept));
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
        }
    }
    #[inline(always)]
    unsafe fn unpack<const BITS: u32>(self, row: *const u32, index: usize) -> __m256 {
        unsafe {
            let at = row.cast::<u8>().add(index * BITS as usize / 8);
            let values = match BITS {
                8 => _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())),
                4 => {
                    let word = _mm256_set1_epi32(at.cast::<i32>().read_unaligned());
                    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
                    _mm256_and_si256(_mm256_srlv_epi32(word, shifts), _mm256_set1_epi32(15))
                }
                _ => {
                    let word = _mm256_set1_epi32(i32::from(at.cast::<u16>().read_unaligned()));
                    let shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
                    _mm256_and_si256(_mm256_srlv_epi32(word, shifts), _mm256_set1_epi32(3))
                }
            };
            _mm256_cvtepi32_ps(values)
        }
    }
    #[inline(always)]
    fn choose(self, table: &[f32; 16], bits: [u32; 4]) -> __m256 {
        unsafe {
            let lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let holds = |bits: u32| {
                let own = _mm256_and_si256(_mm256_set1_epi32(bits.cast_signed()), lane);
                _mm256_cmpeq_epi32(own, lane)
            };
            let of = |bits, value| _mm256_and_si256(holds(bits), _mm256_set1_epi32(value));
            let number = _mm256_or_si256(_mm256_or_si256(of(bits[0], 1), of(bits[1], 2)), of(bits[2], 4));
            let half = |at: usize| _mm256_permutevar8x32_ps(_mm256_loadu_ps(table[at..].as_ptr()), number);
            _mm256_blendv_ps(half(0), half(8), _mm256_castsi256_ps(holds(bits[3])))
        }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fnma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    fn copysign(self, magnitude: __m256, sign: __m256) -> __m256 {
        unsafe {
            let bit = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign))
        }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn scale(self, a: __m256, n: __m256) -> __m256 {
        // Two factors of about 2^(n/2), so that neither leaves the normal range.
        unsafe {
            let n = _mm256_cvtps_epi32(n);
            let first = _mm256_srai_epi32::<1>(n);
            let second = _mm256_sub_epi32(n, first);
            let power =
                |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
            _mm256_mul_ps(_mm256_mul_ps(a, power(first)), power(second))
        }
    }
    #[inline(always)]
    fn lt(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn select(self, m: __m256, yes: __m256, no: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(no, yes, m) }
    }
    #[inline(always)]
    fn any(self, m: __m256) -> bool {
        unsafe { _mm256_movemask_ps(m) != 0 }
    }
    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn sums(self, rows: &[__m256; MAX_LANES]) -> __m256 {
        // Four rows to one vector whose two halves each hold four partial sums; then two such vectors to one.
        let four = |i: usize| unsafe {
            let pair = |a, b| _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (ab, cd) = (pair(rows[i], rows[i + 1]), pair(rows[i + 2], rows[i + 3]));
            let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
            let (low, high) = (_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
            _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high))
        };
        let (a, b) = (four(0), four(4));
        unsafe { _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b)) }
    }
}

//! Four lanes in plain Rust, for machines without one of the other instruction sets, and as the plainest of the forms
//! that tests compare.
#![allow(clippy::undocumented_unsafe_blocks, reason = "pointers are the caller's promise")]

use super::{MAX_LANES, Simd};
use half::{bf16, f16};
use std::array::from_fn;

/// Needs nothing.
#[derive(Clone, Copy)]
pub(super) struct Portable;

type Four = [f32; 4];

impl Simd for Portable {
    const LANES: usize = 4;
    const TILE: usize = 8;
    type V = Four;
    type M = [bool; 4];

    #[inline(always)]
    fn splat(self, x: f32) -> Four {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Four {
        unsafe { from.cast::<Four>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> Four {
        from_fn(|i| unsafe { (*from.add(i)).to_f32() })
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> Four {
        from_fn(|i| unsafe { (*from.add(i)).to_f32() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, x: Four) {
        unsafe { to.cast::<Four>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16, x: Four) {
        for (i, x) in x.into_iter().enumerate() {
            unsafe { *to.add(i) = f16::from_f32(x) };
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, x: Four) {
        for (i, x) in x.into_iter().enumerate() {
            unsafe { *to.add(i) = bf16::from_f32(x) };
        }
    }
    #[inline(always)]
    unsafe fn unpack<const BITS: u32>(self, row: *const u32, index: usize) -> Four {
        let per_word = 32 / BITS as usize;
        from_fn(|i| {
            let at = index + i;
            let word = unsafe { row.add(at / per_word).read_unaligned() };
            (word >> (at % per_word * BITS as usize) & ((1 << BITS) - 1)) as f32
        })
    }
    #[inline(always)]
    fn add(self, a: Four, b: Four) -> Four {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Four, b: Four) -> Four {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Four, b: Four) -> Four {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Four, b: Four) -> Four {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Four, b: Four, c: Four) -> Four {
        from_fn(|i| fused(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn fnma(self, a: Four, b: Four, c: Four) -> Four {
        from_fn(|i| fused(-a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn min(self, a: Four, b: Four) -> Four {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn max(self, a: Four, b: Four) -> Four {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn abs(self, a: Four) -> Four {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn copysign(self, magnitude: Four, sign: Four) -> Four {
        from_fn(|i| magnitude[i].copysign(sign[i]))
    }
    #[inline(always)]
    fn round(self, a: Four) -> Four {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn scale(self, a: Four, n: Four) -> Four {
        // Two factors of about 2^(n/2), so that neither leaves the normal range.
        from_fn(|i| {
            let n = n[i] as i32;
            let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
            a[i] * power(n >> 1) * power(n - (n >> 1))
        })
    }
    #[inline(always)]
    fn lt(self, a: Four, b: Four) -> [bool; 4] {
        from_fn(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn select(self, m: [bool; 4], yes: Four, no: Four) -> Four {
        from_fn(|i| if m[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn any(self, m: [bool; 4]) -> bool {
        m.contains(&true)
    }
    #[inline(always)]
    fn sum(self, a: Four) -> f32 {
        (a[0] + a[1]) + (a[2] + a[3])
    }
    #[inline(always)]
    fn largest(self, a: Four) -> f32 {
        a[0].max(a[1]).max(a[2].max(a[3]))
    }
    #[inline(always)]
    fn sums(self, rows: &[Four; MAX_LANES]) -> Four {
        from_fn(|i| self.sum(rows[i]))
    }
}

/// `a * b + c` with one rounding (but for ties that the float64 sum makes): the product is exact in float64.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    (f64::from(a) * f64::from(b) + f64::from(c)) as f32
}

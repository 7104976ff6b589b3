//! What memory holds, as lanes: float32, float16 and bfloat16, whole vectors and tails.

use super::{MAX_LANES, Simd};
use crate::host::Element;
use half::{bf16, f16};

/// An element type that vectors load and store.
pub trait Lane: Element {
    /// Loads one vector.
    ///
    /// # Safety
    /// `from` is valid for reading `S::LANES` values.
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V;

    /// Rounds and stores one vector.
    ///
    /// # Safety
    /// `to` is valid for writing `S::LANES` values.
    unsafe fn store<S: Simd>(s: S, to: *mut Self, x: S::V);

    /// Values `at ..` of a slice; lanes past its end are zero.
    #[inline(always)]
    fn get<S: Simd>(s: S, from: &[Self], at: usize) -> S::V {
        let rest = &from[at..];
        if rest.len() >= S::LANES {
            // SAFETY: the slice holds a whole vector.
            unsafe { Self::load(s, rest.as_ptr()) }
        } else {
            let mut buffer = [Self::default(); MAX_LANES];
            buffer[..rest.len()].copy_from_slice(rest);
            // SAFETY: the buffer holds a vector of any level.
            unsafe { Self::load(s, buffer.as_ptr()) }
        }
    }

    /// Rounds and stores at `at ..`; lanes past the slice's end are dropped.
    #[inline(always)]
    fn put<S: Simd>(s: S, to: &mut [Self], at: usize, x: S::V) {
        let rest = &mut to[at..];
        if rest.len() >= S::LANES {
            // SAFETY: the slice holds a whole vector.
            unsafe { Self::store(s, rest.as_mut_ptr(), x) };
        } else {
            let mut buffer = [Self::default(); MAX_LANES];
            // SAFETY: the buffer holds a vector of any level.
            unsafe { Self::store(s, buffer.as_mut_ptr(), x) };
            let length = rest.len();
            rest.copy_from_slice(&buffer[..length]);
        }
    }

    /// What a value becomes when it is stored and loaded again.
    #[inline(always)]
    fn rounded<S: Simd>(s: S, x: S::V) -> S::V {
        let mut buffer = [Self::default(); MAX_LANES];
        // SAFETY: the buffer holds a vector of any level.
        unsafe {
            Self::store(s, buffer.as_mut_ptr(), x);
            Self::load(s, buffer.as_ptr())
        }
    }
}

impl Lane for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load(from) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, to: *mut Self, x: S::V) {
        // SAFETY: the caller's promise.
        unsafe { s.store(to, x) }
    }

    #[inline(always)]
    fn rounded<S: Simd>(_: S, x: S::V) -> S::V {
        x
    }
}

impl Lane for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_f16(from) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, to: *mut Self, x: S::V) {
        // SAFETY: the caller's promise.
        unsafe { s.store_f16(to, x) }
    }
}

impl Lane for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16(from) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, to: *mut Self, x: S::V) {
        // SAFETY: the caller's promise.
        unsafe { s.store_bf16(to, x) }
    }
}

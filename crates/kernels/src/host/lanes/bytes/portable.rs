//! Four lanes in plain Rust.

use super::super::portable::Portable;
use super::Bytes;
use std::array::from_fn;

type Sixteen = [u8; 16];

impl Bytes for Portable {
    type I = Sixteen;

    #[inline(always)]
    fn zeros(self) -> Sixteen {
        [0; 16]
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Sixteen {
        unsafe { from.cast::<Sixteen>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat_four(self, from: *const i8) -> Sixteen {
        from_fn(|i| unsafe { *from.add(i % 4) }.cast_unsigned())
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, bytes: Sixteen) {
        unsafe { to.cast::<Sixteen>().write_unaligned(bytes) }
    }
    #[inline(always)]
    fn phase<const BITS: u32>(self, bytes: Sixteen, phase: usize) -> Sixteen {
        let mask = ((1_u32 << BITS) - 1) as u8;
        bytes.map(|byte| byte >> (phase as u32 * BITS) & mask)
    }
    #[inline(always)]
    unsafe fn load_odd<const BITS: u32>(self, from: *const u8, count: usize) -> Sixteen {
        unsafe { odd::<BITS, 16>(from, count) }
    }
    #[inline(always)]
    fn low_six(self, bytes: Sixteen) -> Sixteen {
        bytes.map(|byte| byte & 0x3f)
    }
    #[inline(always)]
    fn high_twos(self, [a, b, c]: [Sixteen; 3]) -> Sixteen {
        from_fn(|i| a[i] >> 6 << 4 | b[i] >> 6 << 2 | c[i] >> 6)
    }
    #[inline(always)]
    fn dot<const WIDE: bool>(self, sums: Sixteen, u: Sixteen, s: Sixteen) -> Sixteen {
        let old = integers(sums);
        bytes(from_fn(|lane| {
            let products = (4 * lane..4 * lane + 4).map(|i| i32::from(u[i]) * i32::from(s[i].cast_signed()));
            old[lane] + products.sum::<i32>()
        }))
    }
    #[inline(always)]
    fn byte_to_floats(self, bytes: Sixteen, byte: usize) -> [f32; 4] {
        from_fn(|lane| f32::from(bytes[4 * lane + byte]))
    }
    #[inline(always)]
    fn to_floats(self, bytes: Sixteen) -> [f32; 4] {
        integers(bytes).map(|x| x as f32)
    }
    #[inline(always)]
    fn as_bytes(self, floats: [f32; 4]) -> Sixteen {
        bytes(floats.map(|x| x.to_bits().cast_signed()))
    }
}

#[inline(always)]
fn integers(bytes: Sixteen) -> [i32; 4] {
    from_fn(|lane| i32::from_le_bytes(from_fn(|i| bytes[4 * lane + i])))
}

#[inline(always)]
fn bytes(integers: [i32; 4]) -> Sixteen {
    from_fn(|i| integers[i / 4].to_le_bytes()[i % 4])
}

/// `N` numbers of `BITS` bits from the first `count` bytes, zero beyond.
///
/// # Safety
/// `from` is valid for reading `count` bytes; `count` is a multiple of `BITS`.
#[inline(always)]
pub(super) unsafe fn odd<const BITS: u32, const N: usize>(from: *const u8, count: usize) -> [u8; N] {
    let mut out = [0; N];
    for (part, eight) in out.chunks_exact_mut(8).enumerate() {
        let at = part * BITS as usize;
        if at >= count {
            break;
        }
        let mut word = 0_u64;
        for i in 0..BITS as usize {
            word |= u64::from(unsafe { *from.add(at + i) }) << (8 * i);
        }
        for (i, x) in eight.iter_mut().enumerate() {
            *x = (word >> (i as u32 * BITS)) as u8 & ((1 << BITS) - 1);
        }
    }
    out
}

//! Byte work against plain Rust integers, at every level of the machine.

use super::super::{Body, dispatch};
use super::*;
use crate::host::Level;
use std::any::type_name;
use std::array::from_fn;

/// Most bytes that a vector of any level holds.
const MOST: usize = 4 * MAX_LANES;

/// Checks a rule for many seeds with the token of every level.
macro_rules! each_level {
    (|$s:ident: $token:ident, $seed:ident| $rule:block) => {
        struct Rule(u32);
        impl Body for Rule {
            type Out = ();
            #[inline(always)]
            fn run<$token: Bytes>(self, $s: $token) {
                let $seed = self.0;
                // SAFETY: every pointer is to `MOST` bytes or more.
                unsafe { $rule }
            }
        }
        for level in Level::available() {
            for seed in 0..200 {
                dispatch(level, Rule(seed));
            }
        }
    };
}

/// Bytes of a generator that starts with `seed`.
fn bytes(seed: u32) -> [u8; MOST] {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    from_fn(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
}

/// The bytes of a vector, zeros after them.
#[inline(always)]
fn stored<S: Bytes>(s: S, vector: S::I) -> [u8; MOST] {
    let mut out = [0; MOST];
    // SAFETY: a vector has at most so many bytes.
    unsafe { s.store_bytes(out.as_mut_ptr(), vector) };
    out
}

/// What `stored` gives if byte `i` of the vector is `byte(i)`.
fn vector_of<S: Bytes>(byte: impl Fn(usize) -> u8) -> [u8; MOST] {
    from_fn(|at| if at < 4 * S::LANES { byte(at) } else { 0 })
}

fn words(bytes: &[u8; MOST]) -> [i32; MAX_LANES] {
    from_fn(|lane| i32::from_le_bytes(from_fn(|at| bytes[4 * lane + at])))
}

#[test]
fn dot_products_are_exact_up_to_the_largest_bytes() {
    each_level!(|s: S, seed| {
        let (u, x) = match seed {
            0 => ([255; MOST], [127; MOST]),
            1 => ([255; MOST], [0x81; MOST]),
            2 => ([128; MOST], [0x81; MOST]),
            3 => ([0; MOST], [127; MOST]),
            _ => (bytes(seed), bytes(seed + 1000).map(|byte| byte.max(1) ^ 0x80)),
        };
        let sums = bytes(seed + 2000);
        let expected = |u: &[u8; MOST]| {
            let term = |at: usize| i32::from(u[at]) * i32::from(x[at].cast_signed());
            let lane = |at: usize| words(&sums)[at].wrapping_add((4 * at..4 * at + 4).map(term).sum::<i32>());
            vector_of::<S>(|at| lane(at / 4).to_le_bytes()[at % 4])
        };
        let load = |bytes: &[u8; MOST]| s.load_bytes(bytes.as_ptr());
        let wide = stored(s, s.dot::<true>(load(&sums), load(&u), load(&x)));
        assert_eq!(wide, expected(&u), "{} {seed}", type_name::<S>());
        let low = u.map(|byte| byte & 0x7f);
        let narrow = stored(s, s.dot::<false>(load(&sums), load(&low), load(&x)));
        assert_eq!(narrow, expected(&low), "{} {seed}", type_name::<S>());
    });
}

#[test]
fn loads_take_what_they_are_given_and_zeros() {
    each_level!(|s: S, seed| {
        let from = bytes(seed);
        assert_eq!(stored(s, s.zeros()), [0; MOST]);
        assert_eq!(stored(s, s.load_bytes(from.as_ptr())), vector_of::<S>(|at| from[at]));
        let four = vector_of::<S>(|at| from[7 + at % 4]);
        assert_eq!(stored(s, s.splat_four(from.as_ptr().add(7).cast())), four);
        for count in 0..=S::LANES {
            let values: [f32; MAX_LANES] = from_fn(|lane| lane as f32 + 1.0);
            let mut some = [0.0; MAX_LANES];
            s.store(some.as_mut_ptr(), s.load_some(values.as_ptr(), count));
            assert_eq!(some, from_fn(|lane| if lane < count { values[lane] } else { 0.0 }));
        }
    });
}

#[test]
fn numbers_of_each_width_come_out_of_their_bits() {
    /// The `at`th number of `bits` bits.
    fn number(from: &[u8; MOST], bits: usize, at: usize) -> u8 {
        (0..bits).fold(0, |number, bit| {
            let at = at * bits + bit;
            number | (from[at / 8] >> (at % 8) & 1) << bit
        })
    }
    #[inline(always)]
    unsafe fn odd<S: Bytes, const BITS: u32>(s: S, from: &[u8; MOST], seed: u32) {
        let bits = BITS as usize;
        let count = seed as usize % (S::LANES / 2 + 1) * bits;
        // SAFETY: `count` bytes are there.
        let got = stored(s, unsafe { s.load_odd::<BITS>(from.as_ptr(), count) });
        let expected = vector_of::<S>(|at| if at < count * 8 / bits { number(from, bits, at) } else { 0 });
        assert_eq!(got, expected, "{} {BITS} bits, {count} bytes", type_name::<S>());
    }
    #[inline(always)]
    unsafe fn phases<S: Bytes, const BITS: u32>(s: S, from: &[u8; MOST]) {
        for phase in 0..8 / BITS as usize {
            // SAFETY: a vector is there.
            let got = stored(s, unsafe { s.phase::<BITS>(s.load_bytes(from.as_ptr()), phase) });
            let mask = ((1_u32 << BITS) - 1) as u8;
            let expected = vector_of::<S>(|at| from[at] >> (phase as u32 * BITS) & mask);
            assert_eq!(got, expected, "{} {BITS} bits, phase {phase}", type_name::<S>());
        }
    }
    each_level!(|s: S, seed| {
        let from = bytes(seed);
        phases::<S, 2>(s, &from);
        phases::<S, 4>(s, &from);
        phases::<S, 8>(s, &from);
        odd::<S, 3>(s, &from, seed);
        odd::<S, 5>(s, &from, seed);
        odd::<S, 6>(s, &from, seed);
    });
}

#[test]
fn high_bits_join_the_bytes_they_belong_to() {
    each_level!(|s: S, seed| {
        let (from, mask) = (bytes(seed), bytes(seed + 1000));
        let low = |bits: u32| from.map(|byte| byte & ((1 << bits) - 1));
        let bit = |at: usize| mask[at / 8] >> (at % 8) & 1;
        let third = stored(s, s.with_bit::<2>(s.load_bytes(low(2).as_ptr()), mask.as_ptr()));
        assert_eq!(third, vector_of::<S>(|at| low(2)[at] | bit(at) << 2), "{}", type_name::<S>());
        let fifth = stored(s, s.with_bit::<4>(s.load_bytes(low(4).as_ptr()), mask.as_ptr()));
        assert_eq!(fifth, vector_of::<S>(|at| low(4)[at] | bit(at) << 4), "{}", type_name::<S>());
        assert_eq!(stored(s, s.low_six(s.load_bytes(from.as_ptr()))), vector_of::<S>(|at| from[at] & 0x3f));
        let three = [from, mask, bytes(seed + 2000)];
        let [a, b, c] = three;
        let twos = stored(s, s.high_twos(three.map(|bytes| s.load_bytes(bytes.as_ptr()))));
        assert_eq!(twos, vector_of::<S>(|at| a[at] >> 6 << 4 | b[at] >> 6 << 2 | c[at] >> 6));
    });
}

#[test]
fn bytes_move_to_their_places() {
    each_level!(|s: S, seed| {
        let from = bytes(seed);
        let mut low = [0; MAX_LANES];
        s.low_bytes(s.load_bytes(from.as_ptr()), &mut low);
        let expected = from_fn(|lane| if lane < S::LANES { from[4 * lane].cast_signed() } else { 0 });
        assert_eq!(low, expected, "{}", type_name::<S>());
        let undealt: [i8; 32] = from_fn(|at| from[at].cast_signed());
        for phases in [1, 2, 4] {
            let mut dealt = [0; 32];
            s.deal(&undealt, phases, &mut dealt);
            for (word, got) in undealt.chunks(4 * phases).zip(dealt.chunks(4 * phases)) {
                let each = (0..phases).flat_map(|phase| word.iter().skip(phase).step_by(phases));
                assert!(each.eq(got), "{} {phases} phases", type_name::<S>());
            }
        }
    });
}

#[test]
fn integers_become_floats_and_floats_show_their_bits() {
    each_level!(|s: S, seed| {
        let from = bytes(seed);
        let mut floats = [0.0; MAX_LANES];
        s.store(floats.as_mut_ptr(), s.to_floats(s.load_bytes(from.as_ptr())));
        let expected = from_fn(|lane| if lane < S::LANES { words(&from)[lane] as f32 } else { 0.0 });
        assert_eq!(floats, expected, "{}", type_name::<S>());
        for byte in 0..4 {
            s.store(floats.as_mut_ptr(), s.byte_to_floats(s.load_bytes(from.as_ptr()), byte));
            let expected =
                from_fn(|lane| if lane < S::LANES { f32::from(from[4 * lane + byte]) } else { 0.0 });
            assert_eq!(floats, expected, "{}", type_name::<S>());
        }
        let bits =
            stored(s, s.as_bytes(s.load(from_fn::<_, MAX_LANES, _>(|lane| lane as f32 + 0.1).as_ptr())));
        let expected = vector_of::<S>(|at| ((at / 4) as f32 + 0.1).to_le_bytes()[at % 4]);
        assert_eq!(bits, expected, "{}", type_name::<S>());
    });
}

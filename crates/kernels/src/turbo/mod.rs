//! Vectors rounded to a codebook after a random rotation (TurboQuant, arXiv 2504.19874, the variant for mean squared error),
//! and attention over keys and values that are stored so.
//!
//! # Contract
//! A vector `x` of `D` values, a power of two from 32 on, becomes its norm (float32) and, of the rotated unit vector
//! `sqrt(D) H S x / |x|`, the nearest level of a scalar codebook for each coordinate: these coordinates are near to independent
//! normal variables whatever `x` is. `S` flips signs at random and `H` is the Walsh-Hadamard transform over `sqrt(D)`, so the
//! rotation costs `D log D`. Codes of 1 to 4 bits are stored as planes of single bits, uint32 `[..., D * bits / 32]`: word `j` of
//! plane `i` has bit `i` of coordinates `32 j .. 32 j + 32`, the first in the lowest place.
//!
//! The rotation keeps inner products. Attention therefore rotates each query once, reads keys and values rotated as they are
//! stored, and rotates the result back, also once; otherwise it is [`crate::attention`]. Queries are rounded to their type once
//! rotated, and results before they are rotated back.

pub mod host;
mod node;
pub mod reference;

use crate::attention::Options;
use crate::host::heads::Layout;
use strata_tensor::host::apply;
use strata_tensor::{Array, Result};

/// Positive halves of the codebooks of 1 to 4 bits: the Lloyd-Max quantizers of the standard normal distribution (Max 1960),
/// computed to convergence.
const CODEBOOKS: [&[f32]; 4] = [
    &[0.797_884_6],
    &[0.452_780_04, 1.510_417_6],
    &[0.245_094_18, 0.756_005_3, 1.343_909_3, 2.151_945_7],
    &[
        0.128_395_03,
        0.388_048_3,
        0.656_759_1,
        0.942_340_46,
        1.256_231_2,
        1.618_046_4,
        2.069_017_2,
        2.732_589_6,
    ],
];

/// Bits of one word of a bit plane.
const WORD: usize = 32;

/// Words that hold `values` codes of `bits` bits.
pub fn words(values: usize, bits: u8) -> usize {
    values / WORD * bits as usize
}

/// Why vectors of `values` values cannot be stored with `bits` bits, if so.
///
/// # Errors
/// The reason, as a sentence.
pub fn check(values: usize, bits: u8) -> Result<(), String> {
    if !(1..=4).contains(&bits) {
        return Err(format!("there are codebooks of 1 to 4 bits, none of {bits}"));
    }
    if !values.is_power_of_two() || values < WORD {
        return Err(format!("vectors of {values} values are not a power of two from 32 on"));
    }
    Ok(())
}

/// All levels of a codebook of 1 to 4 bits, ascending.
fn levels(bits: u8) -> Vec<f32> {
    let half = CODEBOOKS[bits as usize - 1];
    half.iter().rev().map(|level| -level).chain(half.iter().copied()).collect()
}

/// Midpoints between levels.
fn bounds(bits: u8) -> Vec<f32> {
    levels(bits).windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect()
}

/// Sign `index` of the rotation: the same for every process, or files could not be read again (splitmix64 of the index).
fn sign(index: usize) -> f32 {
    let mut z = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    if (z ^ (z >> 31)) & 1 == 0 { 1.0 } else { -1.0 }
}

/// Stored keys or values.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// uint32 `[B, H, S, D * bits / 32]`.
    pub codes: &'a Array,
    /// float32 `[B, H, S, 1]`.
    pub norms: &'a Array,
    /// Bits of a code.
    pub bits: u8,
}

/// Codes uint32 `[..., D * bits / 32]` and norms float32 `[..., 1]` of `x` `[..., D]`, with the host kernel.
///
/// # Errors
/// What [`check`] says, or a type that is not float32, float16 or bfloat16.
#[track_caller]
pub fn encode(x: &Array, bits: u8) -> Result<[Array; 2]> {
    let mut parts = apply(node::Encode { bits }, &[x])?.into_iter();
    let mut next = || parts.next().expect("two outputs");
    Ok([next(), next()])
}

/// Attention of queries `[B, Hq, L, D]` with the host kernel, into an array of the given layout: `[B, Hq, L, Dv]` or
/// `[B, L, Hq * Dv]`.
///
/// # Errors
/// Operands that do not fit each other, or a type that is not one of the contract's.
#[track_caller]
pub fn turbo_attention(
    q: &Array,
    k: Stored<'_>,
    v: Stored<'_>,
    options: &Options<'_>,
    layout: Layout,
) -> Result<Array> {
    let (kernel, extra) = node::TurboAttention::new(options, layout, q.dtype(), [k.bits, v.bits])?;
    let inputs: Vec<&Array> = [q, k.codes, k.norms, v.codes, v.norms].into_iter().chain(&extra).collect();
    Ok(apply(kernel, &inputs)?.remove(0))
}

//! Keys and values rounded to a codebook after a random rotation (TurboQuant, arXiv 2504.19874, the variant for mean squared
//! error). A vector `x` of length `d` becomes its norm and, of the rotated unit vector `√d · H S x / |x|`, the nearest entry
//! of a scalar codebook for each coordinate: these coordinates are near to independent normal variables whatever `x` is.
//! `S` flips signs at random and `H` is the Walsh–Hadamard transform, so the rotation costs `d log d`.
//!
//! The rotation keeps inner products. Attention therefore rotates each query once, reads keys and values rotated as they
//! are stored, and rotates the result back, also once.
//!
//! Codes of `b` bits are stored as `b` planes of single bits: word `j` of plane `i` has bit `i` of coordinates `32 j` to
//! `32 j + 31`, the first in the lowest place.

use crate::error::Result;
use strata_tensor::{Array, Dtype, ops};

/// Positive halves of the codebooks of 1 to 4 bits: the Lloyd–Max quantizers of the standard normal distribution (Max 1960),
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
pub(crate) fn words(values: usize, bits: u8) -> usize {
    values / WORD * bits as usize
}

/// Why vectors of `values` values cannot be stored with `bits` bits, if so.
pub(crate) fn check(values: usize, bits: u8) -> Result<(), String> {
    if !(1..=4).contains(&bits) {
        return Err(format!("there are codebooks of 1 to 4 bits, none of {bits}"));
    }
    if !values.is_power_of_two() || values < WORD {
        return Err(format!("vectors of {values} values are not a power of two from 32 on"));
    }
    Ok(())
}

/// `[…, D]` -> codes, uint32 `[…, D · bits / 32]`, and norms, float32 `[…, 1]`.
pub(crate) fn encode(x: &Array, bits: u8) -> Result<[Array; 2]> {
    let d = x.dim(-1) as usize;
    let x = x.astype(Dtype::Float32)?;
    let norm = x.square()?.sum(-1, true)?.sqrt()?;
    // A zero vector has zero coordinates and stays zero through its norm.
    let unit = x.divide(&norm.maximum(&Array::from_f32(f32::MIN_POSITIVE))?)?;
    let coordinates = rotate(&unit)?.multiply_number((d as f32).sqrt())?;
    let bounds = bounds(bits);
    let bounds = Array::from_slice(&bounds, [bounds.len() as i32])?;
    let above = coordinates.expand_dims(&[-1])?.greater(&bounds)?; // […, D, 2^bits - 1]
    let code = above.astype(Dtype::Uint32)?.sum(-1, false)?;
    let mut shape = code.shape().to_vec();
    shape.pop();
    let of_words = [&shape[..], &[(d / WORD) as i32, WORD as i32]].concat();
    let places = places()?;
    let planes = (0..u32::from(bits)).map(|bit| {
        let plane = code.right_shift(&Array::scalar(bit))?.bitwise_and(&Array::scalar(1u32))?;
        plane.reshape(of_words.as_slice())?.left_shift(&places)?.sum(-1, false)
    });
    let planes = planes.collect::<strata_tensor::Result<Vec<_>>>()?;
    Ok([ops::concatenate(&planes.iter().collect::<Vec<_>>(), -1)?, norm])
}

/// The rotated vectors that codes and norms stand for, `[…, D]` of `dtype`.
pub(crate) fn decode(codes: &Array, norms: &Array, bits: u8, dtype: Dtype) -> Result<Array> {
    let words = codes.dim(-1) / i32::from(bits);
    let d = words * WORD as i32;
    let mut shape = codes.shape().to_vec();
    shape.pop();
    let of_planes = [&shape[..], &[i32::from(bits), words, 1]].concat();
    let bit =
        codes.reshape(of_planes.as_slice())?.right_shift(&places()?)?.bitwise_and(&Array::scalar(1u32))?;
    let weights: Vec<u32> = (0..u32::from(bits)).collect();
    let weights = Array::from_slice(&weights, [i32::from(bits), 1, 1])?;
    let code = bit.left_shift(&weights)?.sum(-3, false)?; // […, words, 32]
    shape.push(d);
    let levels = levels(bits);
    let values =
        Array::from_slice(&levels, [levels.len() as i32])?.take(&code.reshape(shape.as_slice())?, 0)?;
    let scale = norms.multiply_number(1.0 / (d as f32).sqrt())?;
    Ok(values.multiply(&scale)?.astype(dtype)?)
}

/// `H S x` along the last axis, in `x`'s type.
pub(crate) fn rotate(x: &Array) -> Result<Array> {
    let signs = signs(x.dim(-1))?;
    Ok(x.astype(Dtype::Float32)?.multiply(&signs)?.hadamard(None)?.astype(x.dtype())?)
}

/// The inverse of [`rotate`].
pub(crate) fn rotate_back(x: &Array) -> Result<Array> {
    let signs = signs(x.dim(-1))?;
    Ok(x.astype(Dtype::Float32)?.hadamard(None)?.multiply(&signs)?.astype(x.dtype())?)
}

/// `0…31`, the places of a word's bits.
fn places() -> strata_tensor::Result<Array> {
    ops::arange(0.0, WORD as f64, 1.0, Dtype::Uint32)
}

/// All levels of a codebook, ascending.
fn levels(bits: u8) -> Vec<f32> {
    let half = CODEBOOKS[bits as usize - 1];
    half.iter().rev().map(|level| -level).chain(half.iter().copied()).collect()
}

/// Midpoints between levels.
fn bounds(bits: u8) -> Vec<f32> {
    levels(bits).windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect()
}

/// Signs of the rotation, ±1: the same for every process, or files could not be read again (splitmix64 of the index).
fn signs(values: i32) -> strata_tensor::Result<Array> {
    let sign = |index: i32| {
        let mut z = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        if (z ^ (z >> 31)) & 1 == 0 { 1.0 } else { -1.0 }
    };
    Array::from_slice(&(0..values).map(sign).collect::<Vec<f32>>(), [values])
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_tensor::random;

    fn normal(shape: [i32; 4]) -> Array {
        random::normal(0.0, 3.0, shape, Dtype::Float32, &random::Key::new(5).unwrap()).unwrap()
    }

    #[test]
    fn the_error_is_that_of_the_paper() {
        // Mean squared errors of the codebooks on normal variables; the paper rounds them to 0.36, 0.117, 0.03, 0.009.
        // Coordinates of short vectors have lighter tails, so fine codebooks do a few hundredths better on them.
        for (bits, expected) in [(1, 0.363_38), (2, 0.117_48), (3, 0.034_548), (4, 0.009_501)] {
            for d in [64, 128] {
                let x = normal([2, 3, 400, d]);
                let [codes, norms] = encode(&x, bits).unwrap();
                assert_eq!(codes.dim(-1) as usize, words(d as usize, bits));
                let back = rotate_back(&decode(&codes, &norms, bits, Dtype::Float32).unwrap()).unwrap();
                let error = back.subtract(&x).unwrap().square().unwrap().sum(-1, true).unwrap();
                let relative = error.divide(&norms.square().unwrap()).unwrap().to_vec::<f32>().unwrap();
                let mean = relative.iter().sum::<f32>() / relative.len() as f32;
                let ratio = mean / expected;
                assert!((0.95..1.03).contains(&ratio), "{bits} bits, {d} values: {mean}");
            }
        }
    }

    #[test]
    fn every_code_survives_its_bit_planes() {
        for bits in 1..=4u8 {
            let levels = levels(bits);
            let x: Vec<f32> = (0..64).map(|i| levels[i * 7 % levels.len()]).collect();
            let rotated = Array::from_slice(&x, [1, 1, 1, 64]).unwrap();
            let [codes, norms] = encode(&rotate_back(&rotated).unwrap(), bits).unwrap();
            let norm = norms.to_vec::<f32>().unwrap()[0];
            let back = decode(&codes, &norms, bits, Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
            let scale = norm / 8.0;
            let nearest = |v: f32| {
                let near = |a: &&f32, b: &&f32| (*a * scale - v).abs().total_cmp(&(*b * scale - v).abs());
                levels.iter().min_by(near).copied().unwrap()
            };
            for (i, (found, original)) in back.iter().zip(&x).enumerate() {
                assert!((found - nearest(*original) * scale).abs() < 1e-5, "{bits} bits, value {i}");
            }
        }
    }

    #[test]
    fn the_rotation_keeps_lengths_and_turns_back() {
        let x = normal([1, 2, 5, 32]);
        let turned = rotate(&x).unwrap();
        let length = |a: &Array| a.square().unwrap().sum(-1, true).unwrap().to_vec::<f32>().unwrap();
        assert!(length(&x).iter().zip(length(&turned)).all(|(a, b)| (a / b - 1.0).abs() < 1e-5));
        let back = rotate_back(&turned).unwrap().to_vec::<f32>().unwrap();
        assert!(back.iter().zip(x.to_vec::<f32>().unwrap()).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    #[test]
    fn zeros_stay_zeros() {
        let x = ops::zeros([1, 1, 2, 32], Dtype::Float16).unwrap();
        let [codes, norms] = encode(&x, 3).unwrap();
        let back = decode(&codes, &norms, 3, Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
        assert!(back.iter().all(|&v| v == 0.0));
    }
}

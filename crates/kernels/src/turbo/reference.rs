//! The same in tensor operations.

use super::{Stored, WORD, bounds, levels, sign};
use crate::attention::{Options, reference};
use crate::host::heads::Layout;
use strata_tensor::{Array, Dtype, Result, ops};

/// `[..., D]` -> codes, uint32 `[..., D * bits / 32]`, and norms, float32 `[..., 1]`.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn encode(x: &Array, bits: u8) -> Result<[Array; 2]> {
    let d = x.dim(-1) as usize;
    let x = x.astype(Dtype::Float32)?;
    let norm = x.square()?.sum(-1, true)?.sqrt()?;
    // A zero vector has zero coordinates and stays zero through its norm.
    let unit = x.divide(&norm.maximum(&Array::from_f32(f32::MIN_POSITIVE))?)?;
    let coordinates = rotate(&unit)?.multiply_number((d as f32).sqrt())?;
    let bounds = bounds(bits);
    let bounds = Array::from_slice(&bounds, [bounds.len() as i32])?;
    let above = coordinates.expand_dims(&[-1])?.greater(&bounds)?; // [..., D, 2^bits - 1]
    let code = above.astype(Dtype::Uint32)?.sum(-1, false)?;
    let mut shape = code.shape().to_vec();
    shape.pop();
    let of_words = [&shape[..], &[(d / WORD) as i32, WORD as i32]].concat();
    let places = places()?;
    let planes = (0..u32::from(bits)).map(|bit| {
        let plane = code.right_shift(&Array::scalar(bit))?.bitwise_and(&Array::scalar(1u32))?;
        plane.reshape(of_words.as_slice())?.left_shift(&places)?.sum(-1, false)
    });
    let planes = planes.collect::<Result<Vec<_>>>()?;
    Ok([ops::concatenate(&planes.iter().collect::<Vec<_>>(), -1)?, norm])
}

/// The rotated vectors that codes and norms stand for, `[..., D]` of `dtype`.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn decode(codes: &Array, norms: &Array, bits: u8, dtype: Dtype) -> Result<Array> {
    let words = codes.dim(-1) / i32::from(bits);
    let d = words * WORD as i32;
    let mut shape = codes.shape().to_vec();
    shape.pop();
    let of_planes = [&shape[..], &[i32::from(bits), words, 1]].concat();
    let bit =
        codes.reshape(of_planes.as_slice())?.right_shift(&places()?)?.bitwise_and(&Array::scalar(1u32))?;
    let weights: Vec<u32> = (0..u32::from(bits)).collect();
    let weights = Array::from_slice(&weights, [i32::from(bits), 1, 1])?;
    let code = bit.left_shift(&weights)?.sum(-3, false)?; // [..., words, 32]
    shape.push(d);
    let levels = levels(bits);
    let values =
        Array::from_slice(&levels, [levels.len() as i32])?.take(&code.reshape(shape.as_slice())?, 0)?;
    let scale = norms.multiply_number(1.0 / (d as f32).sqrt())?;
    values.multiply(&scale)?.astype(dtype)
}

/// `H S x` along the last axis, in `x`'s type.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn rotate(x: &Array) -> Result<Array> {
    let signs = signs(x.dim(-1))?;
    x.astype(Dtype::Float32)?.multiply(&signs)?.hadamard(None)?.astype(x.dtype())
}

/// The inverse of [`rotate`].
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn rotate_back(x: &Array) -> Result<Array> {
    let signs = signs(x.dim(-1))?;
    x.astype(Dtype::Float32)?.hadamard(None)?.multiply(&signs)?.astype(x.dtype())
}

/// As [`turbo_attention`](super::turbo_attention).
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn turbo_attention(
    q: &Array,
    k: Stored<'_>,
    v: Stored<'_>,
    options: &Options<'_>,
    layout: Layout,
) -> Result<Array> {
    let keys = decode(k.codes, k.norms, k.bits, q.dtype())?;
    let values = decode(v.codes, v.norms, v.bits, q.dtype())?;
    let out = rotate_back(&reference::attention(&rotate(q)?, &keys, &values, options, Layout::HeadsFirst)?)?;
    match layout {
        Layout::HeadsFirst => Ok(out),
        Layout::PositionsFirst => out.transpose(&[0, 2, 1, 3])?.flatten(2, 3),
    }
}

/// `0 .. 32`, the places of a word's bits.
fn places() -> Result<Array> {
    ops::arange(0.0, WORD as f64, 1.0, Dtype::Uint32)
}

fn signs(values: i32) -> Result<Array> {
    Array::from_slice(&(0..values as usize).map(sign).collect::<Vec<f32>>(), [values])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turbo::words;
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

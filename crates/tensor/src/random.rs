//! Random draws from explicit keys (counter-based Threefry, as in MLX and JAX): equal keys draw equal values, and there
//! is no hidden state.

use crate::error::Result;
use crate::raw::{self, Array};
use crate::shape::Shape;
use strata_contracts::Dtype;

/// A key, uint32 `[2]`.
#[derive(Debug, Clone)]
pub struct Key(Array);

impl Key {
    /// The key of a seed.
    ///
    /// # Errors
    /// What MLX reports.
    #[track_caller]
    pub fn new(seed: u64) -> Result<Self> {
        raw::mlx_random_key(seed).map(Self)
    }

    /// `count` independent keys; this one should not be used again.
    ///
    /// # Errors
    /// MLX's refusal of a negative count.
    #[track_caller]
    pub fn split(&self, count: i32) -> Result<Vec<Self>> {
        raw::mlx_random_split_num(&self.0, count)?
            .split(count, 0)?
            .iter()
            .map(|k| k.squeeze(&[0]).map(Self))
            .collect()
    }

    /// The key as an array, for compiled functions.
    pub fn array(&self) -> &Array {
        &self.0
    }
}

/// uint32: index along `axis`, drawn with probability `softmax(logits)`; the axis goes.
///
/// # Errors
/// MLX's refusal of an axis that does not exist.
#[track_caller]
pub fn categorical(logits: &Array, axis: i32, key: &Key) -> Result<Array> {
    raw::mlx_random_categorical(logits, axis, Some(&key.0))
}

/// Uniform in `[low, high)`, of a floating-point type.
///
/// # Errors
/// MLX's refusal of an integer type.
#[track_caller]
pub fn uniform(low: f32, high: f32, shape: impl Into<Shape>, dtype: Dtype, key: &Key) -> Result<Array> {
    raw::mlx_random_uniform(&Array::from_f32(low), &Array::from_f32(high), &shape.into(), dtype, Some(&key.0))
}

/// Normal with mean `loc` and deviation `scale`, of a floating-point type.
///
/// # Errors
/// MLX's refusal of an integer type.
#[track_caller]
pub fn normal(loc: f32, scale: f32, shape: impl Into<Shape>, dtype: Dtype, key: &Key) -> Result<Array> {
    raw::mlx_random_normal(&shape.into(), dtype, loc, scale, Some(&key.0))
}

/// Gumbel: `-ln(-ln(u))`.
///
/// # Errors
/// MLX's refusal of an integer type.
#[track_caller]
pub fn gumbel(shape: impl Into<Shape>, dtype: Dtype, key: &Key) -> Result<Array> {
    raw::mlx_random_gumbel(&shape.into(), dtype, Some(&key.0))
}

/// Integers in `[low, high)`.
///
/// # Errors
/// MLX's refusal of a floating-point type.
#[track_caller]
pub fn randint(low: i32, high: i32, shape: impl Into<Shape>, dtype: Dtype, key: &Key) -> Result<Array> {
    raw::mlx_random_randint(&Array::from_i32(low), &Array::from_i32(high), &shape.into(), dtype, Some(&key.0))
}

/// bool: true with probability `p` (broadcast to `shape`).
///
/// # Errors
/// MLX's refusal of shapes that do not broadcast.
#[track_caller]
pub fn bernoulli(p: &Array, shape: impl Into<Shape>, key: &Key) -> Result<Array> {
    raw::mlx_random_bernoulli(p, &shape.into(), Some(&key.0))
}

/// Uniform bits in unsigned integers of `width` bytes (1, 2 or 4).
///
/// # Errors
/// MLX's refusal of another width.
#[track_caller]
pub fn bits(shape: impl Into<Shape>, width: i32, key: &Key) -> Result<Array> {
    raw::mlx_random_bits(&shape.into(), width, Some(&key.0))
}

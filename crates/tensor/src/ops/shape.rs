//! Shapes and layout: no arithmetic, and no copies where a view will do.

use crate::error::{Error, Result};
use crate::raw::{self, Array};
use crate::shape::Shape;

/// Shape and layout.
impl Array {
    /// The same elements in row-major order under another shape; one length may be -1 and is worked out.
    ///
    /// # Errors
    /// MLX's refusal when the number of elements differs.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        raw::mlx_reshape(self, &shape.into())
    }

    /// Dimensions in the order `axes`.
    ///
    /// # Errors
    /// MLX's refusal when `axes` is not a permutation.
    #[track_caller]
    pub fn transpose(&self, axes: &[i32]) -> Result<Self> {
        raw::mlx_transpose_axes(self, axes)
    }

    /// Two dimensions exchanged.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn swapaxes(&self, first: i32, second: i32) -> Result<Self> {
        raw::mlx_swapaxes(self, first, second)
    }

    /// Dimensions `start..=end` made one.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn flatten(&self, start: i32, end: i32) -> Result<Self> {
        raw::mlx_flatten(self, start, end)
    }

    /// Dimension `axis` made several.
    ///
    /// # Errors
    /// MLX's refusal when the product differs.
    #[track_caller]
    pub fn unflatten(&self, axis: i32, shape: impl Into<Shape>) -> Result<Self> {
        raw::mlx_unflatten(self, axis, &shape.into())
    }

    /// New dimensions of length 1 at these places of the result.
    ///
    /// # Errors
    /// MLX's refusal of a place that does not exist.
    #[track_caller]
    pub fn expand_dims(&self, axes: &[i32]) -> Result<Self> {
        raw::mlx_expand_dims_axes(self, axes)
    }

    /// Without these dimensions of length 1.
    ///
    /// # Errors
    /// MLX's refusal of a dimension that is longer.
    #[track_caller]
    pub fn squeeze(&self, axes: &[i32]) -> Result<Self> {
        raw::mlx_squeeze_axes(self, axes)
    }

    /// Repeated along dimensions of length 1, without a copy.
    ///
    /// # Errors
    /// MLX's refusal of a shape it does not broadcast to.
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Result<Self> {
        raw::mlx_broadcast_to(self, &shape.into())
    }

    /// A view of this array's memory by strides and an offset, in elements, as if it were flat.
    ///
    /// # Errors
    /// [`Error::View`] for lists of different length and for a view beyond the memory, both of which MLX would take.
    #[track_caller]
    pub fn as_strided(&self, shape: impl Into<Shape>, strides: &[i64], offset: usize) -> Result<Self> {
        let shape = shape.into();
        let elements = shape.elements()?;
        if strides.len() != shape.len() {
            return Err(Error::View { shape, offset, len: self.size() });
        }
        if elements > 0 {
            let (mut low, mut high) = (offset as i128, offset as i128);
            for (&n, &stride) in shape.iter().zip(strides) {
                let reach = i128::from(n - 1) * i128::from(stride);
                if reach < 0 { low += reach } else { high += reach }
            }
            if low < 0 || high >= self.size() as i128 {
                return Err(Error::View { shape, offset, len: self.size() });
            }
        }
        raw::mlx_as_strided(self, &shape, strides, offset)
    }

    /// The same elements laid out in row-major order; a copy only if they are not.
    ///
    /// # Errors
    /// What MLX reports.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Self> {
        raw::mlx_contiguous(self, false)
    }

    /// `low[i]` and `high[i]` times `value` before and after dimension `axes[i]`.
    ///
    /// # Errors
    /// MLX's refusal of lists of different length.
    #[track_caller]
    pub fn pad(&self, axes: &[i32], low: &[i32], high: &[i32], value: &Self) -> Result<Self> {
        raw::mlx_pad(self, axes, low, high, value, "constant")
    }

    /// The whole array repeated along each dimension.
    ///
    /// # Errors
    /// What MLX reports.
    #[track_caller]
    pub fn tile(&self, repetitions: &[i32]) -> Result<Self> {
        raw::mlx_tile(self, repetitions)
    }

    /// Each element repeated along `axis`.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn repeat(&self, repeats: i32, axis: i32) -> Result<Self> {
        raw::mlx_repeat_axis(self, repeats, axis)
    }

    /// Elements moved by `shift` along `axis`, round the end.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn roll(&self, shift: i32, axis: i32) -> Result<Self> {
        raw::mlx_roll_axis(self, &[shift], axis)
    }

    /// `parts` arrays of equal length along `axis`.
    ///
    /// # Errors
    /// MLX's refusal when the length does not divide.
    #[track_caller]
    pub fn split(&self, parts: i32, axis: i32) -> Result<Vec<Self>> {
        raw::mlx_split(self, parts, axis)
    }

    /// Cut along `axis` before each of `indices`.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn split_at(&self, indices: &[i32], axis: i32) -> Result<Vec<Self>> {
        raw::mlx_split_sections(self, indices, axis)
    }

    /// Elements at and below diagonal `k` of the last two dimensions, zeros above.
    ///
    /// # Errors
    /// MLX's refusal of fewer than two dimensions.
    #[track_caller]
    pub fn tril(&self, k: i32) -> Result<Self> {
        raw::mlx_tril(self, k)
    }

    /// Elements at and above diagonal `k` of the last two dimensions, zeros below.
    ///
    /// # Errors
    /// MLX's refusal of fewer than two dimensions.
    #[track_caller]
    pub fn triu(&self, k: i32) -> Result<Self> {
        raw::mlx_triu(self, k)
    }

    /// Walsh–Hadamard transform of the last dimension times `scale` (`None`: `1 / sqrt(n)`); `n = m · 2^k` with `m` in
    /// 1, 12, 20, 28.
    ///
    /// # Errors
    /// MLX's refusal of another length.
    #[track_caller]
    pub fn hadamard(&self, scale: Option<f32>) -> Result<Self> {
        raw::mlx_hadamard_transform(self, scale)
    }
}

/// One after the other along `axis`; all other lengths equal.
///
/// # Errors
/// MLX's refusal of no arrays or other lengths that differ.
#[track_caller]
pub fn concatenate(arrays: &[&Array], axis: i32) -> Result<Array> {
    raw::mlx_concatenate_axis(arrays, axis)
}

/// Side by side along a new dimension at `axis`; shapes equal.
///
/// # Errors
/// MLX's refusal of no arrays or shapes that differ.
#[track_caller]
pub fn stack(arrays: &[&Array], axis: i32) -> Result<Array> {
    raw::mlx_stack_axis(arrays, axis)
}

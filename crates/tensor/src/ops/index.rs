//! Reading and writing parts of arrays. MLX does not check indices that are themselves arrays: out-of-range ones
//! read or write elsewhere, so whoever takes indices from outside checks them on the host first.

use crate::error::{Error, Result};
use crate::raw::{self, Array};
use crate::shape::Shape;
use std::panic::Location;

/// Parts of arrays.
impl Array {
    /// Elements `start..stop` of every dimension, each `strides` apart. Bounds are clamped; negative ones count from
    /// the end.
    ///
    /// # Errors
    /// MLX's refusal when the lists are not one entry a dimension.
    #[track_caller]
    pub fn slice(&self, start: &[i32], stop: &[i32], strides: &[i32]) -> Result<Self> {
        raw::mlx_slice(self, start, stop, strides)
    }

    /// Elements `start..stop` of dimension `axis`, everything of the others.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn slice_axis(&self, axis: i32, start: i32, stop: i32) -> Result<Self> {
        let (from, to, step) = self.axis_bounds("slice", axis, start, stop)?;
        raw::mlx_slice(self, &from, &to, &step)
    }

    /// As [`Array::slice`] of length `size`, from positions given by the int32 array `start`, one an entry of `axes`.
    /// The compiled graph stays the same for all positions.
    ///
    /// # Errors
    /// MLX's refusal of lists that do not fit.
    #[track_caller]
    pub fn slice_dynamic(&self, start: &Self, axes: &[i32], size: &[i32]) -> Result<Self> {
        raw::mlx_slice_dynamic(self, start, axes, size)
    }

    /// This array with `update` in place of the slice; in place when nobody else holds this array.
    ///
    /// # Errors
    /// MLX's refusal when `update` does not broadcast to the slice.
    #[track_caller]
    pub fn slice_update(&self, update: &Self, start: &[i32], stop: &[i32], strides: &[i32]) -> Result<Self> {
        raw::mlx_slice_update(self, update, start, stop, strides)
    }

    /// [`Array::slice_update`] of `start..stop` in dimension `axis`.
    ///
    /// # Errors
    /// As [`Array::slice_update`].
    #[track_caller]
    pub fn slice_update_axis(&self, update: &Self, axis: i32, start: i32, stop: i32) -> Result<Self> {
        let (from, to, step) = self.axis_bounds("slice_update", axis, start, stop)?;
        raw::mlx_slice_update(self, update, &from, &to, &step)
    }

    /// [`Array::slice_update`] at positions given by the int32 array `start`, one an entry of `axes`.
    ///
    /// # Errors
    /// MLX's refusal of lists that do not fit.
    #[track_caller]
    pub fn slice_update_dynamic(&self, update: &Self, start: &Self, axes: &[i32]) -> Result<Self> {
        raw::mlx_slice_update_dynamic(self, update, start, axes)
    }

    /// Entries of dimension `axis` at `indices` (any shape), which takes the dimension's place.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn take(&self, indices: &Self, axis: i32) -> Result<Self> {
        raw::mlx_take_axis(self, indices, axis)
    }

    /// `out[i][j] = self[i][indices[i][j]]` along `axis`; the other lengths broadcast.
    ///
    /// # Errors
    /// MLX's refusal of ranks that differ.
    #[track_caller]
    pub fn take_along_axis(&self, indices: &Self, axis: i32) -> Result<Self> {
        raw::mlx_take_along_axis(self, indices, axis)
    }

    /// This array with `self[i][indices[i][j]] = values[i][j]` along `axis`.
    ///
    /// # Errors
    /// MLX's refusal of shapes that do not fit.
    #[track_caller]
    pub fn put_along_axis(&self, indices: &Self, values: &Self, axis: i32) -> Result<Self> {
        raw::mlx_put_along_axis(self, indices, values, axis)
    }

    /// This array with `values` added at `indices` along `axis`; equal indices add up.
    ///
    /// # Errors
    /// MLX's refusal of shapes that do not fit.
    #[track_caller]
    pub fn scatter_add_axis(&self, indices: &Self, values: &Self, axis: i32) -> Result<Self> {
        raw::mlx_scatter_add_axis(self, indices, values, axis)
    }

    /// Slices of `slice_sizes` whose corners stand in `indices`, one array for each of `axes`: shape is the indices'
    /// broadcast shape followed by `slice_sizes`.
    ///
    /// # Errors
    /// MLX's refusal of lists that do not fit.
    #[track_caller]
    pub fn gather(&self, indices: &[&Self], axes: &[i32], slice_sizes: &[i32]) -> Result<Self> {
        raw::mlx_gather(self, indices, axes, slice_sizes)
    }

    /// Starts, ends and steps of `start..stop` in dimension `axis` of everything.
    #[track_caller]
    fn axis_bounds(
        &self,
        op: &'static str,
        axis: i32,
        start: i32,
        stop: i32,
    ) -> Result<(Shape, Shape, Shape)> {
        let mut to = self.shape().to_vec();
        let ndim = to.len();
        let at =
            usize::try_from(if axis < 0 { axis + ndim as i32 } else { axis }).ok().filter(|&at| at < ndim);
        let Some(at) = at else {
            // MLX takes whole lists and so never sees the axis.
            let message = format!("axis {axis} does not exist in an array with {ndim} dimensions");
            return Err(Error::mlx(op, message, Location::caller()));
        };
        let mut from = vec![0; ndim];
        (from[at], to[at]) = (start, stop);
        Ok((from.as_slice().into(), to.as_slice().into(), vec![1; ndim].as_slice().into()))
    }
}

/// `a` with slices of `updates` written at `indices` (one array for each of `axes`); the opposite of
/// [`Array::gather`].
///
/// # Errors
/// MLX's refusal of shapes that do not fit.
#[track_caller]
pub fn scatter(a: &Array, indices: &[&Array], updates: &Array, axes: &[i32]) -> Result<Array> {
    raw::mlx_scatter(a, indices, updates, axes)
}

/// As [`scatter`], adding instead of writing.
///
/// # Errors
/// As [`scatter`].
#[track_caller]
pub fn scatter_add(a: &Array, indices: &[&Array], updates: &Array, axes: &[i32]) -> Result<Array> {
    raw::mlx_scatter_add(a, indices, updates, axes)
}

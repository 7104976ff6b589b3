//! Crossing between host memory and arrays: contiguity is demanded, copies are named.

use crate::error::{Error, Result};
use crate::raw::{Array, Element};
use crate::{Dtype, Shape, ops};
use bytemuck::NoUninit;
use std::ops::Range;

impl Array {
    /// An array with a copy of `data` in row-major order.
    ///
    /// # Errors
    /// [`Error::HostSize`] when `shape` does not hold exactly `data.len()` elements.
    #[track_caller]
    pub fn from_slice<T: Element + NoUninit>(data: &[T], shape: impl Into<Shape>) -> Result<Self> {
        Self::copied(bytemuck::cast_slice(data), &shape.into(), T::DTYPE)
    }

    /// An array with a copy of raw little-endian `bytes` of `dtype`.
    ///
    /// # Errors
    /// [`Error::HostSize`] when `shape` of `dtype` does not take exactly these bytes.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], shape: impl Into<Shape>, dtype: Dtype) -> Result<Self> {
        Self::copied(bytes, &shape.into(), dtype)
    }

    /// An array over `owner`'s bytes in `range`, without a copy where MLX's allocator can adopt memory (Metal, for
    /// page-aligned bytes), with one elsewhere. The owner is dropped when MLX needs the bytes no more.
    ///
    /// # Errors
    /// [`Error::HostRange`] outside the bytes, [`Error::HostSize`] when shape and range differ.
    #[track_caller]
    pub fn from_owner<O: AsRef<[u8]> + Send + Sync + 'static>(
        owner: O,
        range: Range<usize>,
        shape: impl Into<Shape>,
        dtype: Dtype,
    ) -> Result<Self> {
        Self::adopted(owner, range, &shape.into(), dtype)
    }

    /// A 0-d float32.
    pub fn from_f32(value: f32) -> Self {
        Self::scalar(value)
    }

    /// A 0-d int32.
    pub fn from_i32(value: i32) -> Self {
        Self::scalar(value)
    }

    /// A 0-d array of `value`'s own type.
    pub fn scalar<T: Element + NoUninit>(value: T) -> Self {
        Self::from_slice(&[value], []).expect("one value is a 0-d array")
    }

    /// A 0-d array of `value` in this array's type, so that arithmetic with it does not change the type (what MLX's
    /// Python does with a plain number).
    ///
    /// # Errors
    /// What MLX reports of the conversion.
    #[track_caller]
    pub fn number(&self, value: f32) -> Result<Self> {
        match self.dtype() {
            Dtype::Float32 => Ok(Self::from_f32(value)),
            Dtype::Float16 => Ok(Self::scalar(half::f16::from_f32(value))),
            Dtype::Bfloat16 => Ok(Self::scalar(half::bf16::from_f32(value))),
            other => ops::astype(&Self::from_f32(value), other),
        }
    }

    /// All elements in row-major order, copied to the host; evaluates the array and makes it contiguous if needed.
    ///
    /// # Errors
    /// [`Error::Dtype`] when the elements are not of type `T`; what MLX reports of the evaluation.
    #[track_caller]
    pub fn to_vec<T: Element + NoUninit>(&self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            return Err(Error::Dtype { found: self.dtype(), wanted: T::DTYPE });
        }
        let mut out: Vec<T> = vec![T::zeroed(); self.size()];
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
        self.contiguous()?.with_bytes(|bytes| target.copy_from_slice(bytes))?;
        Ok(out)
    }

    /// The bytes of all elements in row-major order, copied to the host; evaluates the array.
    ///
    /// # Errors
    /// What MLX reports of the evaluation.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.contiguous()?.with_bytes(<[u8]>::to_vec)
    }

    /// The value of an array with one element; evaluates it.
    ///
    /// # Errors
    /// [`Error::NotScalar`], [`Error::Dtype`]; what MLX reports of the evaluation.
    #[track_caller]
    pub fn item<T: Element + NoUninit>(&self) -> Result<T> {
        match self.to_vec::<T>()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(Error::NotScalar { shape: self.shape() }),
        }
    }
}

//! Shapes: lengths of dimensions, on the stack for the ranks that models use.

use crate::error::{Error, Result};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;
use strata_contracts::Dtype;

/// Lengths of an array's dimensions, outermost first. Reads as a slice of `i32`, MLX's own index type.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[i32; 6]>);

impl Shape {
    /// The lengths.
    pub fn as_slice(&self) -> &[i32] {
        &self.0
    }

    /// Number of elements, if no length is negative and the product fits.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn elements(&self) -> Result<usize> {
        self.0
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?))
            .ok_or_else(|| Error::Shape { shape: self.clone() })
    }

    /// Checks that `bytes` bytes are exactly this shape's elements of `dtype`.
    pub(crate) fn check_bytes(&self, dtype: Dtype, bytes: usize) -> Result<()> {
        let needed = self.elements()?.checked_mul(dtype.size());
        if needed == Some(bytes) {
            return Ok(());
        }
        Err(Error::HostSize { shape: self.clone(), dtype, bytes })
    }
}

impl Deref for Shape {
    type Target = [i32];

    fn deref(&self) -> &[i32] {
        &self.0
    }
}

impl From<&[i32]> for Shape {
    fn from(dims: &[i32]) -> Self {
        Self(SmallVec::from_slice(dims))
    }
}

impl<const N: usize> From<[i32; N]> for Shape {
    fn from(dims: [i32; N]) -> Self {
        Self(SmallVec::from_slice(&dims))
    }
}

impl<const N: usize> From<&[i32; N]> for Shape {
    fn from(dims: &[i32; N]) -> Self {
        Self(SmallVec::from_slice(dims))
    }
}

impl<const N: usize> PartialEq<[i32; N]> for Shape {
    fn eq(&self, other: &[i32; N]) -> bool {
        self.0.as_slice() == other
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

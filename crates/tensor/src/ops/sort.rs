//! Sorting and partial sorting along one axis. NaN sorts last.

use crate::error::Result;
use crate::raw::{self, Array};

/// Sorting.
impl Array {
    /// Ascending order; the shape stays.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn sort(&self, axis: i32) -> Result<Self> {
        raw::mlx_sort_axis(self, axis)
    }

    /// uint32: places of the elements in ascending order.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn argsort(&self, axis: i32) -> Result<Self> {
        raw::mlx_argsort_axis(self, axis)
    }

    /// Element `kth` as in sorted order, none larger before it, none smaller after it.
    ///
    /// # Errors
    /// MLX's refusal of `kth` or `axis` out of range.
    #[track_caller]
    pub fn partition(&self, kth: i32, axis: i32) -> Result<Self> {
        raw::mlx_partition_axis(self, kth, axis)
    }

    /// uint32: places that [`Array::partition`] would take elements from.
    ///
    /// # Errors
    /// MLX's refusal of `kth` or `axis` out of range.
    #[track_caller]
    pub fn argpartition(&self, kth: i32, axis: i32) -> Result<Self> {
        raw::mlx_argpartition_axis(self, kth, axis)
    }

    /// The `k` largest elements, in no order; the axis has length `k`.
    ///
    /// # Errors
    /// MLX's refusal of `k` or `axis` out of range.
    #[track_caller]
    pub fn topk(&self, k: i32, axis: i32) -> Result<Self> {
        raw::mlx_topk_axis(self, k, axis)
    }
}

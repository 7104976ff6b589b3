//! Reductions and running sums along one axis.

use crate::error::Result;
use crate::raw::{self, Array};

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident => $f:ident;)*) => {
        /// Reductions: the axis goes, or stays with length 1 under `keepdims`.
        impl Array {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// MLX's refusal of an axis that does not exist or has nothing to reduce.
            #[track_caller]
            pub fn $name(&self, axis: i32, keepdims: bool) -> Result<Self> {
                raw::$f(self, axis, keepdims)
            }
        )*}
    };
}

reductions! {
    /// uint32: place of the largest, the first of equals.
    argmax => mlx_argmax_axis;
    /// uint32: place of the smallest, the first of equals.
    argmin => mlx_argmin_axis;
    /// `ln Σ e^x`.
    logsumexp => mlx_logsumexp_axis;
    /// The largest.
    max => mlx_max_axis;
    /// The mean.
    mean => mlx_mean_axis;
    /// The smallest.
    min => mlx_min_axis;
    /// The product.
    prod => mlx_prod_axis;
    /// The sum.
    sum => mlx_sum_axis;
}

/// Reductions of all elements, and running ones.
impl Array {
    /// 0-d bool: every element is nonzero.
    ///
    /// # Errors
    /// What MLX reports.
    #[track_caller]
    pub fn all(&self) -> Result<Self> {
        raw::mlx_all(self, false)
    }

    /// 0-d bool: some element is nonzero.
    ///
    /// # Errors
    /// What MLX reports.
    #[track_caller]
    pub fn any(&self) -> Result<Self> {
        raw::mlx_any(self, false)
    }

    /// 0-d bool: same shape and equal values (NaN equals NaN under `equal_nan`).
    ///
    /// # Errors
    /// What MLX reports.
    #[track_caller]
    pub fn array_equal(&self, other: &Self, equal_nan: bool) -> Result<Self> {
        raw::mlx_array_equal(self, other, equal_nan)
    }

    /// `e^x / Σ e^x` along `axis`; `precise` computes in float32 whatever the type.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn softmax(&self, axis: i32, precise: bool) -> Result<Self> {
        raw::mlx_softmax_axis(self, axis, precise)
    }

    /// Running sum along `axis`, from the end under `reverse`; without `inclusive`, of what stands before.
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn cumsum(&self, axis: i32, reverse: bool, inclusive: bool) -> Result<Self> {
        raw::mlx_cumsum_axis(self, axis, reverse, inclusive, None)
    }

    /// Running product, as [`Array::cumsum`].
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn cumprod(&self, axis: i32, reverse: bool, inclusive: bool) -> Result<Self> {
        raw::mlx_cumprod_axis(self, axis, reverse, inclusive, None)
    }

    /// Running maximum, as [`Array::cumsum`].
    ///
    /// # Errors
    /// MLX's refusal of an axis that does not exist.
    #[track_caller]
    pub fn cummax(&self, axis: i32, reverse: bool, inclusive: bool) -> Result<Self> {
        raw::mlx_cummax_axis(self, axis, reverse, inclusive)
    }
}

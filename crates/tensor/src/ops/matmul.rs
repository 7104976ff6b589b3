//! Matrix products and convolution.

use crate::error::Result;
use crate::raw::{self, Array};

impl Array {
    /// `[…, M, K] × […, K, N] -> […, M, N]`; leading dimensions broadcast, a 1-d operand is a row or a column.
    ///
    /// # Errors
    /// MLX's refusal when the inner lengths differ or the types are integers.
    #[track_caller]
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        raw::mlx_matmul(self, other)
    }
}

/// `alpha · a × b + beta · c`; `c` broadcasts to the product's shape.
///
/// # Errors
/// As [`Array::matmul`].
#[track_caller]
pub fn addmm(c: &Array, a: &Array, b: &Array, alpha: f32, beta: f32) -> Result<Array> {
    raw::mlx_addmm(c, a, b, alpha, beta)
}

/// Products of gathered matrices: `a[lhs] × b[rhs]`, where the uint32 indices count the leading dimensions' matrices.
/// `sorted` says that the indices ascend, which lets MLX read each matrix once.
///
/// # Errors
/// MLX's refusal when inner lengths or index shapes differ.
#[track_caller]
pub fn gather_mm(
    a: &Array,
    b: &Array,
    lhs: Option<&Array>,
    rhs: Option<&Array>,
    sorted: bool,
) -> Result<Array> {
    raw::mlx_gather_mm(a, b, lhs, rhs, sorted)
}

/// Convolution: input `[B, L, C]`, weight `[O, K, C / groups]` -> `[B, L', O]`, where
/// `L' = (L + 2 · padding - dilation · (K - 1) - 1) / stride + 1`.
///
/// # Errors
/// MLX's refusal of lengths that do not fit.
#[track_caller]
pub fn conv1d(
    input: &Array,
    weight: &Array,
    stride: i32,
    padding: i32,
    dilation: i32,
    groups: i32,
) -> Result<Array> {
    raw::mlx_conv1d(input, weight, stride, padding, dilation, groups)
}

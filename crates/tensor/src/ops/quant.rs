//! Quantized matrices. Rows are quantized along their columns, in groups; see [`QuantScheme`] for the legal forms.

use crate::error::Result;
use crate::raw::{self, Array, Device};
use strata_contracts::{Dtype, QuantScheme};

/// A quantized matrix `[…, N, K]` as MLX stores it.
#[derive(Debug, Clone)]
pub struct Quantized {
    /// uint32 `[…, N, K · bits / 32]`, the first value in the lowest bits.
    pub weight: Array,
    /// `[…, N, K / group_size]`: one a group (float for affine, uint8 codes for the fp modes).
    pub scales: Array,
    /// Affine only: `[…, N, K / group_size]`.
    pub biases: Option<Array>,
    /// The number format.
    pub scheme: QuantScheme,
}

fn settings(scheme: QuantScheme) -> (Option<i32>, Option<i32>, &'static str) {
    (Some(scheme.group_size() as i32), Some(scheme.bits() as i32), scheme.mode().name())
}

/// Quantizes `[…, N, K]`.
///
/// # Errors
/// MLX's refusal when `K` is not a whole number of groups.
#[track_caller]
pub fn quantize(w: &Array, scheme: QuantScheme) -> Result<Quantized> {
    let (group_size, bits, mode) = settings(scheme);
    let mut parts = raw::mlx_quantize(w, group_size, bits, mode, None)?.into_iter();
    let mut next = || parts.next();
    let (weight, scales) = (next(), next());
    let (Some(weight), Some(scales)) = (weight, scales) else {
        return Err(crate::Error::Closure { message: "quantize gave fewer than two arrays".to_owned() });
    };
    Ok(Quantized { weight, scales, biases: next(), scheme })
}

/// The matrix's values, as `dtype` or, with `None`, in the type of its scales (bfloat16 for the fp modes).
///
/// # Errors
/// MLX's refusal of parts that do not fit each other.
#[track_caller]
pub fn dequantize(q: &Quantized, dtype: Option<Dtype>) -> Result<Array> {
    let (group_size, bits, mode) = settings(q.scheme);
    raw::mlx_dequantize(&q.weight, &q.scales, q.biases.as_ref(), group_size, bits, mode, None, dtype)
}

/// `x × wᵀ` (`transpose`, `w` is `[N, K]`) or `x × w` (`w` is `[K, N]`, quantized along `N`).
///
/// On CUDA a stack of matrices is dequantized first. MLX's kernels refuse a slice of one there, such as the live part of a
/// cache, and read the first matrix in place of all where a stack is broadcast to more heads (mlx/backend/cuda/quantized/qmm,
/// 0.32.2).
///
/// # Errors
/// MLX's refusal when inner lengths differ.
#[track_caller]
pub fn quantized_matmul(x: &Array, w: &Quantized, transpose: bool) -> Result<Array> {
    if w.weight.ndim() > 2 && Device::current()?.is_cuda()? {
        let w = dequantize(w, None)?;
        return x.matmul(&if transpose { w.swapaxes(-1, -2)? } else { w });
    }
    let (group_size, bits, mode) = settings(w.scheme);
    raw::mlx_quantized_matmul(x, &w.weight, &w.scales, w.biases.as_ref(), transpose, group_size, bits, mode)
}

/// [`quantized_matmul`] of gathered matrices, with indices as in [`gather_mm`](crate::ops::gather_mm).
///
/// # Errors
/// MLX's refusal when inner lengths or index shapes differ.
#[track_caller]
pub fn gather_qmm(
    x: &Array,
    w: &Quantized,
    lhs: Option<&Array>,
    rhs: Option<&Array>,
    transpose: bool,
    sorted: bool,
) -> Result<Array> {
    let (group_size, bits, mode) = settings(w.scheme);
    raw::mlx_gather_qmm(
        x,
        &w.weight,
        &w.scales,
        w.biases.as_ref(),
        lhs,
        rhs,
        transpose,
        group_size,
        bits,
        mode,
        sorted,
    )
}

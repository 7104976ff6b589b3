//! Norm and rotation of queries and keys in tensor operations.

use super::Norms;
use crate::Offset;
use crate::rope::reference;
use strata_tensor::{Array, Result, fast};

/// As [`super::qk_norm_rope`], with MLX's operations: reshape, transpose, norm, rotate.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn qk_norm_rope(
    q: &Array,
    k: &Array,
    v: &Array,
    width: i32,
    norms: Option<Norms<'_>>,
    rope: &fast::Rope,
    offset: Offset<'_>,
) -> Result<[Array; 3]> {
    let split = |x: &Array| {
        if x.ndim() == 3 {
            x.unflatten(-1, [x.dim(-1) / width, width])?.transpose(&[0, 2, 1, 3])
        } else {
            Ok(x.clone())
        }
    };
    let one = |x: &Array, weight: Option<&Array>| {
        let mut x = split(x)?;
        if let (Some(weight), Some(norms)) = (weight, norms) {
            x = fast::rms_norm(&x, Some(weight), norms.eps)?;
        }
        reference::rope(&x, rope, offset)
    };
    Ok([one(q, norms.map(|n| n.q))?, one(k, norms.map(|n| n.k))?, split(v)?])
}

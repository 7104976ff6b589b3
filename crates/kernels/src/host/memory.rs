//! Views of MLX's memory as slices.

use super::element::Floats;
use std::borrow::Cow;
use strata_contracts::Dtype;
use strata_tensor::Element;
use strata_tensor::host::View;

/// Elements in row-major order, copied only where they are not.
pub(crate) fn row_major<'a, T: Element>(view: &View<'a>) -> Result<Cow<'a, [T]>, String> {
    if view.is_row_contiguous() {
        return Ok(Cow::Borrowed(view.slice()?));
    }
    let span = view.span::<T>()?;
    let mut starts = vec![0_usize];
    for (&length, &stride) in view.shape().iter().zip(view.strides()) {
        starts = starts
            .iter()
            .flat_map(|&at| (0..length as usize).map(move |i| at + i * stride as usize))
            .collect();
    }
    Ok(Cow::Owned(starts.into_iter().map(|at| span[at]).collect()))
}

pub(crate) fn floats<'a>(view: &View<'a>) -> Result<Floats<'a>, String> {
    match view.dtype() {
        Dtype::Float32 => view.slice().map(Floats::F32),
        Dtype::Float16 => view.slice().map(Floats::F16),
        Dtype::Bfloat16 => view.slice().map(Floats::Bf16),
        other => Err(format!("weights must be float32, float16 or bfloat16, not {other}")),
    }
}

//! The host forms as nodes of MLX's graph.

use super::{Draw, host};
use crate::host::Level;
use crate::host::node::{Float, Strided, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_tensor::Dtype;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};

/// Input: logits.
#[derive(PartialEq)]
pub(super) struct Argmax;

impl HostKernel for Argmax {
    const NAME: &'static CStr = c"argmax";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let (rows, _) = rows(inputs, 1)?;
        Ok(smallvec![Meta { dtype: Dtype::Uint32, shape: rows.as_slice().into() }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        fn typed<E: Float>(inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
            let x = Strided::<E>::new(&inputs[0])?.folded();
            host::argmax(Level::best(), x.rows("argmax", "logits")?, outputs[0].slice_mut()?)
                .map_err(|e| e.to_string())
        }
        with_float!(inputs[0].dtype(), E => typed::<E>(inputs, outputs))
    }
}

/// Input: logits. Outputs: values and indices.
#[derive(PartialEq)]
pub(super) struct TopK {
    pub(super) k: usize,
}

impl HostKernel for TopK {
    const NAME: &'static CStr = c"top_k";
    const OUTPUTS: &'static [Output] = &[Output::Fresh, Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let (mut shape, dtype) = rows(inputs, self.k)?;
        shape.push(self.k as i32);
        let indices = Meta { dtype: Dtype::Uint32, shape: shape.as_slice().into() };
        Ok(smallvec![Meta { dtype, shape: shape.as_slice().into() }, indices])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl TopK {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let x = Strided::<E>::new(&inputs[0])?.folded();
        let [values, indices] = outputs else { return Err("has two outputs".to_owned()) };
        let (values, indices) = (values.slice_mut()?, indices.slice_mut()?);
        host::top_k(Level::best(), x.rows("top_k", "logits")?, self.k, values, indices)
            .map_err(|e| e.to_string())
    }
}

/// Inputs: logits, and a uniform number for each row.
#[derive(PartialEq)]
pub(super) struct Drawn(pub(super) Draw);

impl HostKernel for Drawn {
    const NAME: &'static CStr = c"draw";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [logits, uniform] = inputs else { return Err("takes logits and uniform numbers".to_owned()) };
        let (rows, _) = rows(std::slice::from_ref(logits), 1)?;
        if uniform.dtype != Dtype::Float32 || uniform.shape.as_slice() != rows {
            return Err(format!(
                "needs float32 numbers {rows:?} but has {} {}",
                uniform.dtype, uniform.shape
            ));
        }
        Ok(smallvec![Meta { dtype: Dtype::Uint32, shape: rows.as_slice().into() }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl Drawn {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let x = Strided::<E>::new(&inputs[0])?.folded();
        let uniform = Strided::<f32>::new(&inputs[1])?.contiguous();
        let rows = x.rows("draw", "logits")?;
        host::draw(Level::best(), rows, uniform.slice(), self.0, outputs[0].slice_mut()?)
            .map_err(|e| e.to_string())
    }
}

/// Shape of the leading axes and type of the logits, whose rows hold at least `k`.
fn rows(inputs: &[Meta], k: usize) -> Result<(Vec<i32>, Dtype), String> {
    let dtype = one_float_type(inputs)?;
    let Some((&width, rows)) = inputs[0].shape.as_slice().split_last() else {
        return Err("logits must have at least 1 dimension".to_owned());
    };
    if k == 0 || k > width as usize {
        return Err(format!("needs between 1 and {width} values of a row but k is {k}"));
    }
    Ok((rows.to_vec(), dtype))
}

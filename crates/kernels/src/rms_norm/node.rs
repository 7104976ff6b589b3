//! The host form as nodes of MLX's graph.

use super::{Overflow, host};
use crate::host::Level;
use crate::host::node::{Float, Strided, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};

/// Inputs: `x`, and the weight if there is one.
#[derive(PartialEq)]
pub(super) struct RmsNorm {
    pub(super) eps: f32,
}

impl HostKernel for RmsNorm {
    const NAME: &'static CStr = c"rms_norm";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        check(inputs, 1)?;
        Ok(smallvec![inputs[0].clone()])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl RmsNorm {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let x = Strided::<E>::new(&inputs[0])?.folded();
        let weight = inputs.get(1).map(Strided::<E>::new).transpose()?;
        let (x, weight) = (x.rows("rms_norm", "x")?, weight.as_ref().map(Strided::slice));
        host::rms_norm(Level::best(), x, weight, self.eps, outputs[0].slice_mut()?).map_err(|e| e.to_string())
    }
}

/// Inputs: the residual, `x`, and the weight if there is one.
#[derive(PartialEq)]
pub(super) struct RmsNormOnto {
    pub(super) eps: f32,
    pub(super) overflow: Overflow,
}

impl HostKernel for RmsNormOnto {
    const NAME: &'static CStr = c"rms_norm_onto";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        check(inputs, 2)?;
        if inputs[0].shape != inputs[1].shape {
            return Err(format!("residual needs shape {} but has {}", inputs[1].shape, inputs[0].shape));
        }
        Ok(smallvec![inputs[0].clone()])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl RmsNormOnto {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let (residual, x) =
            (Strided::<E>::new(&inputs[0])?.folded(), Strided::<E>::new(&inputs[1])?.folded());
        let weight = inputs.get(2).map(Strided::<E>::new).transpose()?;
        let (residual, x) = (residual.rows("rms_norm_onto", "residual")?, x.rows("rms_norm_onto", "x")?);
        let weight = weight.as_ref().map(Strided::slice);
        let out = outputs[0].slice_mut()?;
        host::rms_norm_onto(Level::best(), residual, x, weight, self.eps, self.overflow, out)
            .map_err(|e| e.to_string())
    }
}

/// `count` operands like `x`, then perhaps a weight.
fn check(inputs: &[Meta], count: usize) -> Result<(), String> {
    one_float_type(inputs)?;
    let x = &inputs[0];
    let Some(&width) = x.shape.as_slice().last() else {
        return Err("x must have at least 1 dimension".to_owned());
    };
    match inputs.get(count) {
        Some(weight) if weight.shape.as_slice() != [width] => {
            Err(format!("weight needs shape [{width}] but has {}", weight.shape))
        }
        _ => Ok(()),
    }
}

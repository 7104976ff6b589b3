//! The host form as a node of MLX's graph.

use super::host;
use crate::host::Level;
use crate::host::node::{Float, Strided, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};

/// Inputs: `x`, then weight and bias as far as there are any.
#[derive(PartialEq)]
pub(super) struct LayerNorm {
    pub(super) eps: f32,
    pub(super) weight: bool,
    pub(super) bias: bool,
}

impl HostKernel for LayerNorm {
    const NAME: &'static CStr = c"layer_norm";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        one_float_type(inputs)?;
        let x = &inputs[0];
        let Some(&width) = x.shape.as_slice().last() else {
            return Err("x must have at least 1 dimension".to_owned());
        };
        match inputs[1..].iter().find(|other| other.shape.as_slice() != [width]) {
            Some(other) => Err(format!("weight and bias need shape [{width}] but one has {}", other.shape)),
            None => Ok(smallvec![x.clone()]),
        }
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl LayerNorm {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let x = Strided::<E>::new(&inputs[0])?.folded();
        let mut rest = inputs[1..].iter();
        let mut next =
            |there: bool| if there { rest.next().map(Strided::<E>::new).transpose() } else { Ok(None) };
        let (weight, bias) = (next(self.weight)?, next(self.bias)?);
        let (weight, bias) = (weight.as_ref().map(Strided::slice), bias.as_ref().map(Strided::slice));
        let x = x.rows("layer_norm", "x")?;
        host::layer_norm(Level::best(), x, weight, bias, self.eps, outputs[0].slice_mut()?)
            .map_err(|e| e.to_string())
    }
}

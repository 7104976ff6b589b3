//! The host form as a node of MLX's graph.

use super::{Activation, host};
use crate::host::Level;
use crate::host::node::{Float, Strided, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};

/// Inputs: gate and up.
#[derive(PartialEq)]
pub(super) struct Gated {
    pub(super) activation: Activation,
}

impl HostKernel for Gated {
    const NAME: &'static CStr = c"gated_activation";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        one_float_type(inputs)?;
        match inputs {
            [gate, up] if gate.shape == up.shape => Ok(smallvec![gate.clone()]),
            [gate, up] => Err(format!("up needs shape {} but has {}", gate.shape, up.shape)),
            _ => Err("takes gate and up".to_owned()),
        }
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl Gated {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let (gate, up) = (Strided::<E>::new(&inputs[0])?.folded(), Strided::<E>::new(&inputs[1])?.folded());
        let (gate, up) = (gate.rows("gated_activation", "gate")?, up.rows("gated_activation", "up")?);
        host::gated_activation(Level::best(), self.activation, gate, up, outputs[0].slice_mut()?)
            .map_err(|e| e.to_string())
    }
}

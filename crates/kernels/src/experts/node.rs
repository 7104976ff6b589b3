//! The host forms as nodes of MLX's graph.

use super::host;
use crate::host::Level;
use crate::host::node::{Float, Strided, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Dtype, Shape};

/// Input: logits.
#[derive(PartialEq)]
pub(super) struct Route {
    pub(super) k: usize,
    pub(super) normalised: bool,
}

impl HostKernel for Route {
    const NAME: &'static CStr = c"route";
    const OUTPUTS: &'static [Output] = &[Output::Fresh; 2];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [logits] = inputs else { return Err("takes logits".to_owned()) };
        let dtype = one_float_type(inputs)?;
        let Some((&experts, leading)) = logits.shape.as_slice().split_last() else {
            return Err("logits must have at least 1 dimension".to_owned());
        };
        if self.k == 0 || self.k > experts as usize {
            return Err(format!("cannot choose {} of {experts} experts", self.k));
        }
        let shape: Shape = leading.iter().copied().chain([self.k as i32]).collect::<Vec<_>>()[..].into();
        Ok(smallvec![Meta { dtype: Dtype::Uint32, shape: shape.clone() }, Meta { dtype, shape }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl Route {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let [chosen, shares] = outputs else { return Err("has two outputs".to_owned()) };
        let logits = Strided::<E>::new(&inputs[0])?.folded();
        let logits = logits.rows("route", "logits")?;
        let (chosen, shares) = (chosen.slice_mut()?, shares.slice_mut()?);
        host::route(Level::best(), logits, self.k, self.normalised, chosen, shares).map_err(|e| e.to_string())
    }
}

/// Inputs: the residual, what was said, and the shares.
#[derive(PartialEq)]
pub(super) struct Combine;

impl HostKernel for Combine {
    const NAME: &'static CStr = c"combine";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        one_float_type(inputs)?;
        let [residual, said, shares] = inputs else {
            return Err("takes a residual, what was said, and shares".to_owned());
        };
        let fits = match (residual.shape.as_slice(), shares.shape.as_slice()) {
            ([leading @ .., width], [same @ .., k]) => {
                leading == same && said.shape[..] == [leading, &[*k, *width]].concat()
            }
            _ => false,
        };
        if !fits {
            return Err(format!(
                "a residual {}, what was said {} and shares {} do not fit",
                residual.shape, said.shape, shares.shape
            ));
        }
        Ok(smallvec![residual.clone()])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => Self::typed::<E>(inputs, outputs))
    }
}

impl Combine {
    fn typed<E: Float>(inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let of = |index: usize| Ok::<_, String>(Strided::<E>::new(&inputs[index])?.folded());
        let (residual, said, shares) = (of(0)?, of(1)?, of(2)?);
        let residual = residual.rows("combine", "residual")?;
        let (said, shares) = (said.rows("combine", "said")?, shares.rows("combine", "shares")?);
        host::combine(Level::best(), residual, said, shares, outputs[0].slice_mut()?)
            .map_err(|e| e.to_string())
    }
}

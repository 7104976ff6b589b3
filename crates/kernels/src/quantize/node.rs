//! The host form as a node of MLX's graph.

use super::host;
use crate::host::Level;
use crate::host::node::{Float, Strided, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_contracts::{QuantMode, QuantScheme};
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Dtype, Shape};

/// Input: rows.
#[derive(PartialEq)]
pub(super) struct Quantize {
    pub(super) scheme: QuantScheme,
}

impl HostKernel for Quantize {
    const NAME: &'static CStr = c"quantize";
    const OUTPUTS: &'static [Output] = &[Output::Fresh; 3];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [x] = inputs else { return Err("takes rows".to_owned()) };
        let dtype = one_float_type(inputs)?;
        if self.scheme.mode() != QuantMode::Affine {
            return Err(format!("has no form for {}", self.scheme.mode().name()));
        }
        let Some((&columns, leading)) = x.shape.as_slice().split_last() else {
            return Err("x must have at least 1 dimension".to_owned());
        };
        let words = self.scheme.packed_columns(columns as usize).map_err(|error| error.to_string())?;
        let with = |last: usize| -> Shape {
            leading.iter().copied().chain([last as i32]).collect::<SmallVec<[i32; 4]>>()[..].into()
        };
        let factors = Meta { dtype, shape: with(columns as usize / self.scheme.group_size() as usize) };
        Ok(smallvec![Meta { dtype: Dtype::Uint32, shape: with(words) }, factors.clone(), factors])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl Quantize {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let [words, scales, biases] = outputs else { return Err("has three outputs".to_owned()) };
        let x = Strided::<E>::new(&inputs[0])?.folded();
        let x = x.rows("quantize", "x")?;
        let (words, factors) = (words.slice_mut()?, [scales.slice_mut()?, biases.slice_mut()?]);
        host::quantize(Level::best(), x, self.scheme, words, factors).map_err(|e| e.to_string())
    }
}

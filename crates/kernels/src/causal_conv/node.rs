//! The host form as a node of MLX's graph.

use super::host::{self, Operands};
use crate::host::Level;
use crate::host::node::{Float, Strided, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_tensor::Dtype;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};

/// Inputs: `x`, weight, carried inputs, and lengths if there are any. Outputs: `y` and the new carried inputs.
#[derive(PartialEq)]
pub(super) struct CausalConv {
    pub(super) silu: bool,
}

impl HostKernel for CausalConv {
    const NAME: &'static CStr = c"causal_conv";
    const OUTPUTS: &'static [Output] = &[Output::Fresh, Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [x, weight, carried, lengths @ ..] = inputs else {
            return Err("takes x, a weight and carried inputs".to_owned());
        };
        one_float_type(&inputs[..3])?;
        let (&[b, _, c], &[taps, channels]) = (x.shape.as_slice(), weight.shape.as_slice()) else {
            return Err(format!(
                "needs x [B, T, C] and a weight [K, C] but has {} and {}",
                x.shape, weight.shape
            ));
        };
        if taps < 1 || channels != c || carried.shape.as_slice() != [b, taps - 1, c] {
            return Err(format!(
                "x {}, weight {} and carried {} do not fit",
                x.shape, weight.shape, carried.shape
            ));
        }
        if let Some(lengths) = lengths.iter().find(|x| x.dtype != Dtype::Int32 || x.shape.as_slice() != [b]) {
            return Err(format!("lengths need int32 [{b}] but are {} {}", lengths.dtype, lengths.shape));
        }
        Ok(smallvec![x.clone(), carried.clone()])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl CausalConv {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let floats = |i: usize| Strided::<E>::new(&inputs[i]).map(Strided::contiguous);
        let (x, weight, carried) = (floats(0)?, floats(1)?, floats(2)?);
        let lengths = inputs.get(3).map(View::slice::<i32>).transpose()?;
        let &[batch, length, channels] = inputs[0].shape() else {
            return Err("x has 3 dimensions".to_owned());
        };
        let operands = Operands {
            x: x.slice(),
            weight: weight.slice(),
            carried: carried.slice(),
            lengths,
            batch: batch as usize,
            length: length as usize,
            channels: channels as usize,
            silu: self.silu,
        };
        let [y, last] = outputs else { return Err("has two outputs".to_owned()) };
        host::causal_conv(Level::best(), operands, y.slice_mut()?, last.slice_mut()?)
            .map_err(|e| e.to_string())
    }
}

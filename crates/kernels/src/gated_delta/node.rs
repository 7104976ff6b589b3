//! The host form as a node of MLX's graph.

use super::host::{self, Operands, Sizes};
use crate::host::Level;
use crate::host::node::{Float, Strided, four, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_tensor::Dtype;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};

/// Inputs: `q`, `k`, `v`, `g`, `beta`, the state, and the mask if there is one. Outputs: `y` and the last state.
#[derive(PartialEq)]
pub(super) struct GatedDelta;

impl HostKernel for GatedDelta {
    const NAME: &'static CStr = c"gated_delta";
    const OUTPUTS: &'static [Output] = &[Output::Fresh, Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [q, k, v, g, beta, state, mask @ ..] = inputs else {
            return Err("takes q, k, v, g, beta and a state".to_owned());
        };
        let dtype = one_float_type(&inputs[..3])?;
        let ([b, t, key_heads, width], [_, _, heads, rows]) = (four("q", q)?, four("v", v)?);
        let numbers: &[i32] = &[b, t, heads];
        let fits = k.shape == q.shape
            && v.shape.as_slice()[..2] == [b, t]
            && key_heads > 0
            && heads % key_heads == 0
            && (g.shape.as_slice() == numbers || g.shape.as_slice() == [b, t, heads, width])
            && beta.shape.as_slice() == numbers
            && state.shape.as_slice() == [b, heads, rows, width]
            && mask.iter().all(|mask| mask.dtype == Dtype::Bool && mask.shape.as_slice() == [b, t]);
        let floats = [g, beta, state].iter().all(|x| x.dtype == Dtype::Float32);
        if !fits || !floats {
            let shapes: Vec<String> = inputs.iter().map(|x| format!("{} {}", x.dtype, x.shape)).collect();
            return Err(format!("operands do not fit each other: {}", shapes.join(", ")));
        }
        Ok(smallvec![Meta { dtype, shape: v.shape.clone() }, state.clone()])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => typed::<E>(inputs, outputs))
    }
}

fn typed<E: Float>(inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
    let floats = |i: usize| Strided::<E>::new(&inputs[i]).map(Strided::contiguous);
    let numbers = |i: usize| Strided::<f32>::new(&inputs[i]).map(Strided::contiguous);
    let (q, k, v, g, beta, state) =
        (floats(0)?, floats(1)?, floats(2)?, numbers(3)?, numbers(4)?, numbers(5)?);
    let mask = inputs.get(6).map(|mask| Strided::of_bytes(mask).contiguous());
    let (q_shape, v_shape) = (q.four()?.0, v.four()?.0);
    let sizes = Sizes {
        batch: q_shape[0],
        length: q_shape[1],
        key_heads: q_shape[2],
        value_heads: v_shape[2],
        key_width: q_shape[3],
        value_width: v_shape[3],
    };
    let operands = Operands {
        q: q.slice(),
        k: k.slice(),
        v: v.slice(),
        g: g.slice(),
        beta: beta.slice(),
        state: state.slice(),
        mask: mask.as_ref().map(Strided::slice),
    };
    let [y, last] = outputs else { return Err("has two outputs".to_owned()) };
    host::gated_delta(Level::best(), sizes, operands, y.slice_mut()?, last.slice_mut()?)
        .map_err(|e| e.to_string())
}

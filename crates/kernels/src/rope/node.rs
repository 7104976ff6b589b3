//! The host form as a node of MLX's graph, for one array or several that share their positions.

use super::{Rope, host};
use crate::Offset;
use crate::host::Level;
use crate::host::node::{Float, Strided, one_float_type, with_float};
use smallvec::SmallVec;
use std::ffi::CStr;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Array, Dtype};

/// Inputs: `N` arrays, a weight for each that turns if there is a norm, and the offset if it is an array.
#[derive(PartialEq)]
pub(crate) struct Rotate<const N: usize> {
    rope: Rope,
    /// So many of the arrays turn; the others are only split into heads.
    turning: usize,
    /// Epsilon of a norm before the rotation.
    norm: Option<f32>,
    /// `None`: the last input.
    offset: Option<i32>,
    /// Values of a head.
    width: i32,
}

impl<const N: usize> Rotate<N> {
    /// The kernel, and the offset if it is an input.
    pub(crate) fn new<'a>(
        rope: &Rope,
        turning: usize,
        offset: Offset<'a>,
        norm: Option<f32>,
        width: i32,
    ) -> (Self, Option<&'a Array>) {
        let (offset, array) = match offset {
            Offset::At(offset) => (Some(offset), None),
            Offset::Array(array) => (None, Some(array)),
        };
        (Self { rope: rope.clone(), turning, norm, offset, width }, array)
    }

    fn weights(&self) -> usize {
        if self.norm.is_some() { self.turning } else { 0 }
    }

    /// `[B, H, L, D]` of an operand given so, or as `[B, L, H * D]`.
    fn shape(&self, x: &Meta) -> Result<[i32; 4], String> {
        match *x.shape.as_slice() {
            [b, h, l, d] if d == self.width => Ok([b, h, l, d]),
            [b, l, all] if self.width > 0 && all % self.width == 0 => {
                Ok([b, all / self.width, l, self.width])
            }
            _ => Err(format!(
                "x needs shape [B, H, L, {0}] or [B, L, H * {0}] but has {1}",
                self.width, x.shape
            )),
        }
    }
}

impl<const N: usize> HostKernel for Rotate<N> {
    const NAME: &'static CStr = c"rope";
    const OUTPUTS: &'static [Output] = &[Output::Fresh; N];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let floats = N + self.weights();
        let expected = floats + usize::from(self.offset.is_none());
        if inputs.len() != expected {
            return Err(format!("takes {expected} inputs but has {}", inputs.len()));
        }
        let dtype = one_float_type(&inputs[..floats])?;
        let first = self.shape(&inputs[0])?;
        if let Some(offset) = inputs.get(floats)
            && (offset.dtype != Dtype::Int32
                || !matches!(*offset.shape.as_slice(), [] | [1]) && offset.shape.as_slice() != [first[0]])
        {
            return Err(format!(
                "offset needs int32 [] or [{}] but is {} {}",
                first[0], offset.dtype, offset.shape
            ));
        }
        if let Some(weight) = inputs[N..floats].iter().find(|w| w.shape.as_slice() != [self.width]) {
            return Err(format!("weight needs shape [{}] but has {}", self.width, weight.shape));
        }
        if self.rope.frequencies.pairs() * 2 > self.width as usize {
            return Err(format!(
                "rotates {} values but a head has {}",
                2 * self.rope.frequencies.pairs(),
                self.width
            ));
        }
        inputs[..N]
            .iter()
            .map(|x| {
                let shape = self.shape(x)?;
                if shape[0] != first[0] || shape[2] != first[2] {
                    return Err(format!(
                        "arrays of one batch and length are needed, not {first:?} and {shape:?}"
                    ));
                }
                Ok(Meta { dtype, shape: shape.into() })
            })
            .collect()
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl<const N: usize> Rotate<N> {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let floats = N + self.weights();
        let strided: SmallVec<[Strided<'_, E>; 4]> =
            inputs[..floats].iter().map(Strided::new).collect::<Result<_, String>>()?;
        let offsets = inputs.get(floats).map(View::slice::<i32>).transpose()?;
        let offset = match (self.offset, offsets) {
            (Some(offset), _) | (None, Some(&[offset])) => host::Offset::Same(offset),
            (None, Some(offsets)) => host::Offset::Each(offsets),
            (None, None) => return Err("offset is missing".to_owned()),
        };
        let operands = strided[..N].iter().zip(outputs).enumerate().map(|(i, (x, out))| {
            let turns = i < self.turning;
            let norm = self.norm.filter(|_| turns).map(|eps| (strided[N + i].slice(), eps));
            let x = if inputs[i].shape().len() == 4 {
                x.heads("rope", "x")
            } else {
                x.split_heads(self.width as usize, "rope", "x")
            };
            Ok(host::Operand { x: x?, norm, turns, out: out.slice_mut()? })
        });
        let operands: SmallVec<[_; N]> = operands.collect::<Result<_, String>>()?;
        let Ok(operands) = operands.into_inner() else { return Err("too few operands".to_owned()) };
        host::rotate("rope", Level::best(), &self.rope, offset, operands).map_err(|e| e.to_string())
    }
}

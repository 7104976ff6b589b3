//! `y = x W` as a node of MLX's graph. Inputs: `x`, then the matrix, or its packed numbers, scales and biases.

use super::Plain;
use super::host::{self, Matrix};
use crate::host::Level;
use crate::host::memory::{floats, row_major};
use crate::host::node::{Float, with_float};
use crate::quantized_matmul::Quantized;
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_contracts::{Dtype, QuantScheme};
use strata_tensor::Shape;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};

#[derive(PartialEq)]
pub(super) struct Matmul {
    pub(super) scheme: Option<QuantScheme>,
}

impl HostKernel for Matmul {
    const NAME: &'static CStr = c"matmul";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let (x, weight, factors) = match inputs {
            [x, weight] if self.scheme.is_none() => (x, weight, None),
            [x, weight, scales, biases] if self.scheme.is_some() => (x, weight, Some([scales, biases])),
            _ => return Err(format!("has {} inputs", inputs.len())),
        };
        if !matches!(x.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) {
            return Err(format!("x must be float32, float16 or bfloat16, not {}", x.dtype));
        }
        let (&inner, leading) = x.shape.split_last().ok_or("x needs at least one dimension")?;
        let &[rows, columns] = weight.shape.as_slice() else {
            return Err(format!("takes one matrix, not {}", weight.shape));
        };
        let width = match (self.scheme, factors) {
            (Some(scheme), Some([scales, biases])) => {
                let width = scales.shape.last().map_or(0, |&groups| groups * scheme.group_size() as i32);
                let words = scheme.packed_columns(width as usize).map_err(|error| error.to_string())?;
                let groups = [rows, width / scheme.group_size() as i32];
                if words != columns as usize || scales.shape.as_slice() != groups || scales != biases {
                    return Err(format!(
                        "packed numbers {}, scales {} and biases {} are not one matrix",
                        weight.shape, scales.shape, biases.shape
                    ));
                }
                width
            }
            _ => columns,
        };
        if rows != inner || inner == 0 || width == 0 {
            return Err(format!("a matrix of {rows} x {width} does not fit x of shape {}", x.shape));
        }
        let mut shape: SmallVec<[i32; 6]> = leading.into();
        shape.push(width);
        Ok(smallvec![Meta { dtype: x.dtype, shape: Shape::from(&shape[..]) }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl Matmul {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let x = row_major::<E>(&inputs[0])?;
        let [inner, columns] = [0, 1].map(|axis| inputs[1].shape()[axis] as usize);
        let matrix = match self.scheme {
            None => Plain::new(floats(&inputs[1])?, inner, columns).map(Matrix::Plain),
            Some(scheme) => {
                let columns = inputs[2].shape()[1] as usize * scheme.group_size() as usize;
                let (packed, scales, biases) = (inputs[1].slice()?, floats(&inputs[2])?, floats(&inputs[3])?);
                Quantized::new(packed, scales, biases, scheme, inner, columns).map(Matrix::Quantized)
            }
        };
        let matrix = matrix.map_err(|error| error.to_string())?;
        host::matmul(Level::best(), &x, matrix, outputs[0].slice_mut()?).map_err(|error| error.to_string())
    }
}

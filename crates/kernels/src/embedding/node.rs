//! The host form as a node of MLX's graph. Inputs: ids, packed numbers, scales, biases.

use super::host;
use crate::host::Element;
use crate::host::memory::{floats, row_major};
use crate::quantized_matmul;
use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_contracts::{Dtype, QuantScheme};
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::ops::Quantized;
use strata_tensor::{Array, Result, Shape};

#[track_caller]
pub(super) fn apply(table: &Quantized, ids: &Array) -> Result<Array> {
    let mut inputs: SmallVec<[&Array; 4]> = smallvec![ids, &table.weight, &table.scales];
    inputs.extend(&table.biases);
    Ok(strata_tensor::host::apply(Embedding { scheme: table.scheme }, &inputs)?.remove(0))
}

#[derive(PartialEq)]
struct Embedding {
    scheme: QuantScheme,
}

impl HostKernel for Embedding {
    const NAME: &'static CStr = c"embedding";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [ids, packed, scales, biases] = inputs else {
            return Err("takes ids, packed numbers, scales and biases".to_owned());
        };
        if !matches!(ids.dtype, Dtype::Uint32 | Dtype::Int32) {
            return Err(format!("ids must be uint32 or int32, not {}", ids.dtype));
        }
        if packed.shape.len() != 2
            || scales.shape.len() != 2
            || scales != biases
            || packed.shape[0] != scales.shape[0]
        {
            return Err(format!(
                "packed numbers {}, scales {} and biases {} are not one table",
                packed.shape, scales.shape, biases.shape
            ));
        }
        let columns = scales.shape[1] * self.scheme.group_size() as i32;
        let mut shape: SmallVec<[i32; 6]> = ids.shape[..].into();
        shape.push(columns);
        Ok(smallvec![Meta { dtype: scales.dtype, shape: Shape::from(&shape[..]) }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        match outputs[0].dtype() {
            Dtype::Float32 => self.typed::<f32>(inputs, outputs),
            Dtype::Float16 => self.typed::<f16>(inputs, outputs),
            _ => self.typed::<bf16>(inputs, outputs),
        }
    }
}

impl Embedding {
    fn typed<T>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String>
    where
        T: Element + strata_tensor::Element + bytemuck::NoUninit,
    {
        let ids = match inputs[0].dtype() {
            Dtype::Uint32 => row_major::<u32>(&inputs[0])?.into_owned(),
            // A negative id becomes a large one, which no table has.
            _ => row_major::<i32>(&inputs[0])?.iter().map(|&id| id.cast_unsigned()).collect(),
        };
        let rows = inputs[1].shape()[0] as usize;
        let columns = inputs[2].shape()[1] as usize * self.scheme.group_size() as usize;
        let (packed, scales, biases) = (inputs[1].slice()?, floats(&inputs[2])?, floats(&inputs[3])?);
        let table = quantized_matmul::Quantized::new(packed, scales, biases, self.scheme, rows, columns);
        let table = table.map_err(|error| error.to_string())?;
        host::lookup::<T>(table, &ids, outputs[0].slice_mut()?).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{embedding, reference};
    use strata_contracts::{Dtype, QuantScheme};
    use strata_tensor::{Array, ops};

    #[test]
    fn rows_agree_with_mlx() {
        let values: Vec<f32> = (0..50 * 96).map(|i| ((i as f32) * 0.7).sin()).collect();
        let values = Array::from_slice(&values, [50, 96]).unwrap();
        for (bits, dtype) in
            [(2, Dtype::Float32), (4, Dtype::Float16), (6, Dtype::Bfloat16), (8, Dtype::Float16)]
        {
            let scheme = QuantScheme::affine(bits, 32).unwrap();
            let table = ops::quantize(&values.astype(dtype).unwrap(), scheme).unwrap();
            let ids = Array::from_slice(&[3_i32, 49, 0, 3, 17, 8], [2, 3]).unwrap();
            let (got, expected) =
                (embedding(&table, &ids).unwrap(), reference::embedding(&table, &ids).unwrap());
            assert_eq!((got.shape(), got.dtype()), (expected.shape(), dtype));
            let wide = |x: &Array| x.astype(Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
            // MLX rounds the product before it adds.
            for (got, expected) in wide(&got).iter().zip(wide(&expected)) {
                assert!((got - expected).abs() < 0.02, "{bits} bits: {got} for {expected}");
            }
        }
    }

    #[test]
    fn ids_outside_the_table_are_refused() {
        let values = Array::from_slice(&vec![0.5_f32; 4 * 32], [4, 32]).unwrap();
        let table = ops::quantize(&values, QuantScheme::affine(4, 32).unwrap()).unwrap();
        for id in [-1, 4] {
            let ids = Array::from_slice(&[id], [1]).unwrap();
            let text = embedding(&table, &ids).unwrap().eval().unwrap_err().to_string();
            assert!(text.contains("rows below 4"), "{text}");
        }
    }
}

//! The host form as a node of MLX's graph. Inputs: ids, then the table, or its packed numbers, scales and biases (which
//! symmetric panels lack).

use super::{Options, Table, host};
use crate::host::memory::{floats, row_major};
use crate::host::{Element, Level};
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::panels::Panels;
use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_contracts::{Dtype, QuantScheme};
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Array, Result, Shape};

#[track_caller]
pub(super) fn apply(table: Table<'_>, ids: &Array, options: Options) -> Result<Array> {
    let mut inputs: SmallVec<[&Array; 4]> = smallvec![ids];
    let form = match table {
        Table::Plain(table) => {
            inputs.push(table);
            Form::Plain
        }
        Table::Quantized(table) => {
            inputs.extend([&table.weight, &table.scales]);
            inputs.extend(&table.biases);
            Form::Quantized(table.scheme)
        }
        Table::Packed(table) => {
            inputs.extend(table.arrays());
            Form::Packed(table.scheme, table.rows)
        }
    };
    Ok(strata_tensor::host::apply(Embedding { form, options }, &inputs)?.remove(0))
}

#[derive(PartialEq)]
struct Embedding {
    form: Form,
    options: Options,
}

/// What the arrays of a table are.
#[derive(PartialEq, Clone, Copy)]
enum Form {
    Plain,
    Quantized(QuantScheme),
    /// Panels of so many rows.
    Packed(QuantScheme, i32),
}

impl HostKernel for Embedding {
    const NAME: &'static CStr = c"embedding";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [ids, table @ ..] = inputs else { return Err("takes ids and a table".to_owned()) };
        if !matches!(ids.dtype, Dtype::Uint32 | Dtype::Int32) {
            return Err(format!("ids must be uint32 or int32, not {}", ids.dtype));
        }
        let columns = match (self.form, table) {
            (Form::Plain, [table]) if table.shape.len() == 2 => table.shape[1],
            (Form::Plain, _) => return Err("a plain table needs 2 dimensions".to_owned()),
            (Form::Quantized(scheme), [packed, scales, biases]) => {
                let matrix = packed.shape.len() == 2 && scales.shape.len() == 2;
                if !matrix || scales != biases || packed.shape[0] != scales.shape[0] {
                    return Err(format!(
                        "packed numbers {}, scales {} and biases {} are not one table",
                        packed.shape, scales.shape, biases.shape
                    ));
                }
                scales.shape[1] * scheme.group_size() as i32
            }
            (Form::Packed(scheme, _), [_, scales] | [_, scales, _]) if scales.shape.len() == 3 => {
                scales.shape[1] * scheme.group_size() as i32
            }
            _ => return Err("takes ids, packed numbers, scales and biases".to_owned()),
        };
        let dtype = self.options.dtype;
        if !matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) {
            return Err(format!("gives float32, float16 or bfloat16, not {dtype}"));
        }
        let mut shape: SmallVec<[i32; 6]> = ids.shape[..].into();
        shape.push(columns);
        Ok(smallvec![Meta { dtype, shape: Shape::from(&shape[..]) }])
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
        let columns_of = |scheme: QuantScheme| inputs[2].shape()[1] as usize * scheme.group_size() as usize;
        let table = match self.form {
            Form::Plain => Ok(host::Table::Plain(floats(&inputs[1])?, inputs[1].shape()[1] as usize)),
            Form::Quantized(scheme) => {
                let (packed, scales, biases) = (inputs[1].slice()?, floats(&inputs[2])?, floats(&inputs[3])?);
                let rows = inputs[1].shape()[0] as usize;
                Quantized::new(packed, scales, biases, scheme, rows, columns_of(scheme))
                    .map(host::Table::Quantized)
            }
            Form::Packed(scheme, rows) => {
                let (words, scales) = (inputs[1].slice()?, floats(&inputs[2])?);
                let biases = inputs.get(3).map(floats).transpose()?;
                let (rows, columns) = (rows as usize, columns_of(scheme));
                Panels::new(Level::best(), words, scales, biases, scheme, rows, columns)
                    .map(host::Table::Panels)
            }
        };
        let table = table.map_err(|error| error.to_string())?;
        host::lookup::<T>(table, &ids, self.options.factor, outputs[0].slice_mut()?)
            .map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, Table, embedding, reference};
    use crate::linear::Packed;
    use strata_contracts::{Dtype, QuantScheme};
    use strata_tensor::{Array, ops};

    fn values(shape: [i32; 2]) -> Array {
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| ((i as f32) * 0.7).sin()).collect();
        Array::from_slice(&values, shape).unwrap()
    }

    #[test]
    fn rows_agree_with_the_reference() {
        let types = [(Dtype::Float32, 2e-7), (Dtype::Float16, 5e-4), (Dtype::Bfloat16, 4e-3)];
        let ids = Array::from_slice(&[3_i32, 49, 0, 3, 17, 8], [2, 3]).unwrap();
        for (bits, stored) in [
            (None, Dtype::Bfloat16),
            (None, Dtype::Float32),
            (Some(2), Dtype::Float32),
            (Some(4), Dtype::Float16),
            (Some(6), Dtype::Bfloat16),
            (Some(8), Dtype::Float16),
        ] {
            let plain = values([50, 96]).astype(stored).unwrap();
            let quantized =
                bits.map(|bits| ops::quantize(&plain, QuantScheme::affine(bits, 32).unwrap()).unwrap());
            let table = quantized.as_ref().map_or(Table::Plain(&plain), Table::Quantized);
            for (dtype, bound) in types {
                for factor in [1.0, 25.298_22] {
                    let options = Options { dtype, factor };
                    let got = embedding(table, &ids, options).unwrap();
                    let expected = reference::embedding(table, &ids, options).unwrap();
                    assert_eq!((got.shape(), got.dtype()), (expected.shape(), dtype));
                    let wide = |x: &Array| x.astype(Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
                    // MLX rounds scale times number before it adds the bias; sums may cancel.
                    for (got, expected) in wide(&got).iter().zip(wide(&expected)) {
                        let error = (got - expected).abs();
                        assert!(
                            error <= bound * (expected.abs() + factor),
                            "{bits:?} {dtype}: {got}, {expected}"
                        );
                    }
                    if let Some(quantized) = &quantized {
                        let packed = Packed::new(quantized).unwrap();
                        let packed = embedding(Table::Packed(&packed), &ids, options).unwrap();
                        assert_eq!(wide(&packed), wide(&got), "{bits:?} {dtype}");
                    }
                }
            }
        }
    }

    #[test]
    fn ids_outside_the_table_are_refused() {
        let plain = values([4, 32]);
        let table = ops::quantize(&plain, QuantScheme::affine(4, 32).unwrap()).unwrap();
        let packed = Packed::new(&table).unwrap();
        for id in [-1, 4] {
            let ids = Array::from_slice(&[id], [1]).unwrap();
            for table in [Table::Plain(&plain), Table::Quantized(&table), Table::Packed(&packed)] {
                let options = Options { dtype: Dtype::Float32, factor: 1.0 };
                let text = embedding(table, &ids, options).unwrap().eval().unwrap_err().to_string();
                assert!(text.contains("rows below 4"), "{text}");
            }
        }
    }
}

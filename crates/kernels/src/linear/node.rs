//! The host form as a node of MLX's graph.
//!
//! Inputs, in this order: `x`, the norm's weight, `experts`, the residual (each if there is one), then for each map its
//! matrix or packed numbers, scales and biases, and its own bias if there is one.

use super::host::{self, Call, Matrix, Route};
use super::{Activation, Arithmetic, Finish, Input, Linear, Norm, Packed, Weight};
use crate::host::Level;
use crate::host::lanes::Lane;
use crate::host::memory::{floats, row_major};
use crate::matmul::Plain;
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::host::activations::BLOCK;
use crate::quantized_matmul::panels::{HALVES, Panels};
use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;
use std::ffi::CStr;
use strata_contracts::{Dtype, QuantScheme};
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Array, Element, Result, Shape};

/// Adds the node with as many outputs as the call has.
#[track_caller]
pub(super) fn apply(
    input: Input<'_>,
    linears: &[Linear<'_>],
    finish: Finish<'_>,
    arithmetic: Arithmetic,
) -> Result<Vec<Array>> {
    let mut inputs: SmallVec<[&Array; 12]> = smallvec![input.x];
    inputs.extend(input.norm.and_then(|norm| norm.weight));
    inputs.extend(input.experts);
    let (tail, gated) = match finish {
        Finish::Store => (Tail::Store, false),
        Finish::SoftCap(cap) => (Tail::SoftCap(cap), false),
        Finish::Add(residual) => {
            inputs.push(residual);
            (Tail::Add, false)
        }
        Finish::Gate(activation) => (Tail::Gate(activation), true),
    };
    let mut maps = SmallVec::new();
    for linear in linears {
        let form = match linear.weight {
            Weight::Plain(weight) => {
                inputs.push(weight);
                Form::Plain
            }
            Weight::Quantized(weight) => {
                inputs.extend([&weight.weight, &weight.scales]);
                inputs.extend(&weight.biases);
                Form::Quantized(weight.scheme)
            }
            Weight::Packed(weight) => {
                inputs.extend(weight.arrays());
                let Packed { scheme, rows, count, .. } = *weight;
                Form::Packed { scheme, rows, count, symmetric: weight.biases.is_none() }
            }
        };
        inputs.extend(linear.bias);
        maps.push(Map { form, bias: linear.bias.is_some() });
    }
    let norm = input.norm.map(|Norm { weight, shift, eps }| RowNorm { weight: weight.is_some(), shift, eps });
    let spec = Spec { norm, experts: input.experts.is_some(), maps, tail, arithmetic };
    match if gated { 1 } else { linears.len() } {
        1 => strata_tensor::host::apply(Node::<1>(spec), &inputs),
        2 => strata_tensor::host::apply(Node::<2>(spec), &inputs),
        3 => strata_tensor::host::apply(Node::<3>(spec), &inputs),
        _ => strata_tensor::host::apply(Node::<4>(spec), &inputs),
    }
}

/// A call without its arrays.
#[derive(PartialEq)]
struct Spec {
    norm: Option<RowNorm>,
    experts: bool,
    maps: SmallVec<[Map; 4]>,
    tail: Tail,
    arithmetic: Arithmetic,
}

#[derive(PartialEq)]
struct RowNorm {
    weight: bool,
    shift: f32,
    eps: f32,
}

#[derive(PartialEq)]
struct Map {
    form: Form,
    bias: bool,
}

/// What the arrays of a weight are.
#[derive(PartialEq, Clone, Copy)]
enum Form {
    Plain,
    Quantized(QuantScheme),
    /// Panels of so many matrices of so many rows; symmetric ones have no biases.
    Packed {
        scheme: QuantScheme,
        rows: i32,
        count: i32,
        symmetric: bool,
    },
}

#[derive(PartialEq, Clone, Copy)]
enum Tail {
    Store,
    SoftCap(f32),
    Add,
    Gate(Activation),
}

/// A call with `N` outputs.
#[derive(PartialEq)]
struct Node<const N: usize>(Spec);

impl<const N: usize> HostKernel for Node<N> {
    const NAME: &'static CStr = c"linear";
    const OUTPUTS: &'static [Output] = &[Output::Fresh; N];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        self.0.outputs(inputs)
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        match inputs[0].dtype() {
            Dtype::Float32 => self.0.run::<f32>(inputs, outputs),
            Dtype::Float16 => self.0.run::<f16>(inputs, outputs),
            _ => self.0.run::<bf16>(inputs, outputs),
        }
    }
}

impl Spec {
    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let mut rest = inputs.iter();
        let mut next = || rest.next().ok_or("has too few operands");
        let x = next()?;
        if !matches!(x.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) {
            return Err(format!("x must be float32, float16 or bfloat16, not {}", x.dtype));
        }
        let (columns, leading) = x.shape.split_last().ok_or("x needs at least one dimension")?;
        if self.norm.as_ref().is_some_and(|norm| norm.weight) {
            let weight = next()?;
            if *weight.shape != [*columns] {
                return Err(format!("the norm's weight needs shape ({columns}) but has {}", weight.shape));
            }
        }
        let mut rows: SmallVec<[i32; 6]> = leading.into();
        if self.experts {
            let experts = next()?;
            let shared = experts.shape.split_last().is_some_and(|(_, outer)| outer == leading);
            if experts.dtype != Dtype::Uint32 || !(shared || *experts.shape == *leading) {
                let (shape, dtype) = (&experts.shape, experts.dtype);
                return Err(format!(
                    "experts of shape {shape} and type {dtype} do not fit x of shape {}",
                    x.shape
                ));
            }
            rows = experts.shape[..].into();
        }
        let residual = if self.tail == Tail::Add { Some(next()?) } else { None };
        let mut found: SmallVec<[Meta; 2]> = SmallVec::new();
        for map in &self.maps {
            let weight = next()?;
            let stack = usize::from(self.experts);
            let outputs = match map.form {
                Form::Plain => rows_of(weight, x, stack, *columns)?,
                Form::Quantized(scheme) => {
                    let words = scheme.packed_columns(usize::try_from(*columns).unwrap_or(0));
                    let outputs =
                        rows_of(weight, x, stack, words.map_err(|error| error.to_string())? as i32)?;
                    let mut groups: SmallVec<[i32; 6]> = weight.shape[..].into();
                    groups[1 + stack] = columns / scheme.group_size() as i32;
                    check_factors([next()?, next()?], &groups, *columns, scheme)?;
                    outputs
                }
                Form::Packed { scheme, rows: outputs, count, symmetric } => {
                    let &[panels, vectors, lanes] = weight.shape.as_slice() else {
                        return Err(format!("a packed weight has 3 dimensions, not shape {}", weight.shape));
                    };
                    let fits = vectors == columns / BLOCK as i32 * scheme.bits() as i32 * HALVES as i32;
                    if !fits || columns % BLOCK as i32 != 0 || !(self.experts || count == 1) {
                        return Err(format!(
                            "a packed weight of shape {} does not fit x of shape {}",
                            weight.shape, x.shape
                        ));
                    }
                    let groups = [panels, columns / scheme.group_size() as i32, HALVES as i32 * lanes];
                    let scales = next()?;
                    let biases = if symmetric { scales } else { next()? };
                    check_factors([scales, biases], &groups, *columns, scheme)?;
                    outputs
                }
            };
            if map.bias {
                let bias = next()?;
                let expected: SmallVec<[i32; 2]> = match map.form {
                    Form::Packed { count, .. } if self.experts => smallvec![count, outputs],
                    _ => weight.shape[..stack].iter().copied().chain([outputs]).collect(),
                };
                if bias.shape[..] != expected[..] {
                    return Err(format!(
                        "a bias of shape {} does not fit a weight that needs {expected:?}",
                        bias.shape
                    ));
                }
            }
            let mut shape = rows.clone();
            shape.push(outputs);
            found.push(Meta { dtype: x.dtype, shape: Shape::from(&shape[..]) });
        }
        if let Some(residual) = residual
            && (residual.shape != found[0].shape || residual.dtype != x.dtype)
        {
            return Err(format!(
                "a residual of shape {} and type {} does not fit an output of shape {} and type {}",
                residual.shape, residual.dtype, found[0].shape, x.dtype
            ));
        }
        if let Tail::Gate(_) = self.tail {
            if found.len() != 2 || found[0] != found[1] {
                return Err("a gate needs two weights of one shape".to_owned());
            }
            found.truncate(1);
        }
        Ok(found)
    }

    fn run<T: Lane + Element + bytemuck::NoUninit>(
        &self,
        inputs: &[View<'_>],
        outputs: &mut [ViewMut<'_>],
    ) -> Result<(), String> {
        let mut rest = inputs.iter();
        let mut next = || rest.next().ok_or("has too few operands");
        let view = next()?;
        let columns = view.shape().last().map_or(0, |&n| n as usize);
        let x = row_major::<T>(view)?;
        let norm = match &self.norm {
            None => None,
            Some(norm) => {
                let weight = if norm.weight { Some(floats(next()?)?) } else { None };
                Some(host::Norm { weight, shift: norm.shift, eps: norm.eps })
            }
        };
        let routes = if self.experts { Some(routes(next()?, x.len() / columns.max(1))?) } else { None };
        let residual = if self.tail == Tail::Add { row_major::<T>(next()?)? } else { Cow::Borrowed(&[][..]) };
        let mut linears: SmallVec<[host::Linear<'_>; 4]> = SmallVec::new();
        for map in &self.maps {
            let weight = next()?;
            let matrix = match map.form {
                Form::Plain => Plain::new(floats(weight)?, rows(weight), columns).map(Matrix::Plain),
                Form::Quantized(scheme) => {
                    let (scales, biases) = (floats(next()?)?, floats(next()?)?);
                    Quantized::new(weight.slice()?, scales, biases, scheme, rows(weight), columns)
                        .map(Matrix::Quantized)
                }
                Form::Packed { scheme, rows, symmetric, .. } => {
                    let (words, rows) = (weight.slice()?, rows as usize);
                    let scales = floats(next()?)?;
                    let biases = if symmetric { None } else { Some(floats(next()?)?) };
                    Panels::new(Level::best(), words, scales, biases, scheme, rows, columns)
                        .map(Matrix::Panels)
                }
            };
            let bias = if map.bias { Some(floats(next()?)?) } else { None };
            linears.push(host::Linear { matrix: matrix.map_err(|error| error.to_string())?, bias });
        }
        let finish = match self.tail {
            Tail::Store => host::Finish::Store,
            Tail::SoftCap(cap) => host::Finish::SoftCap(cap),
            Tail::Add => host::Finish::Add(&residual),
            Tail::Gate(activation) => host::Finish::Gate(activation),
        };
        let mut slices: SmallVec<[&mut [T]; 4]> = SmallVec::new();
        for output in outputs {
            slices.push(output.slice_mut()?);
        }
        let (routes, arithmetic) = (routes.as_deref(), self.arithmetic);
        let call = Call { x: &x, norm, linears: &linears, finish, routes, arithmetic };
        host::run(&call, &mut slices).map_err(|error| error.to_string())
    }
}

/// Output features of a weight `[N, inner]`, or of a stack of them.
fn rows_of(weight: &Meta, x: &Meta, stack: usize, inner: i32) -> Result<i32, String> {
    if weight.shape.len() != 2 + stack {
        return Err(format!("a weight of shape {} needs {} dimensions", weight.shape, 2 + stack));
    }
    if weight.shape[1 + stack] != inner {
        return Err(format!("a weight of shape {} does not fit x of shape {}", weight.shape, x.shape));
    }
    Ok(weight.shape[stack])
}

fn check_factors(
    factors: [&Meta; 2],
    groups: &[i32],
    columns: i32,
    scheme: QuantScheme,
) -> Result<(), String> {
    let [scales, biases] = factors;
    if scales.shape[..] == *groups && biases.shape[..] == *groups {
        return Ok(());
    }
    Err(format!(
        "scales {} and biases {} do not fit {columns} columns in groups of {}",
        scales.shape,
        biases.shape,
        scheme.group_size()
    ))
}

/// Output features of a matrix, or of each of a stack.
fn rows(weight: &View<'_>) -> usize {
    weight.shape()[weight.shape().len() - 2] as usize
}

/// One route for each output row; `rows` of `x` are shared by as many consecutive experts as there are for each.
fn routes(experts: &View<'_>, rows: usize) -> Result<Vec<Route>, String> {
    let experts = row_major::<u32>(experts)?;
    let each = (experts.len() / rows.max(1)).max(1);
    Ok(experts.iter().enumerate().map(|(at, &expert)| Route { row: (at / each) as u32, expert }).collect())
}

#[cfg(test)]
mod tests;

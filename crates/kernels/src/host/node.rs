//! From the views that a node of MLX's graph sees to the operands of host kernels.
//!
//! Kernels read rows through strides; a layout that they can't express (a last axis that is not contiguous, leading axes
//! that do not fold to one stride) is copied first.

use super::heads::{Heads, Layout};
use super::lanes::Lane;
use super::rows::Rows;
use bytemuck::NoUninit;
use smallvec::SmallVec;
use std::borrow::Cow;
use strata_tensor::host::{Meta, View};
use strata_tensor::{Array, Dtype, Element, Result, Shape};

/// What kernels compute with, as both MLX's memory and lanes know it.
pub(crate) trait Float: Lane + Element + NoUninit {}
impl Float for f32 {}
impl Float for half::f16 {}
impl Float for half::bf16 {}

/// Evaluates `$body` with `$E` standing for the type that a dtype names.
macro_rules! with_float {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            strata_tensor::Dtype::Float32 => {
                type $E = f32;
                $body
            }
            strata_tensor::Dtype::Float16 => {
                type $E = half::f16;
                $body
            }
            strata_tensor::Dtype::Bfloat16 => {
                type $E = half::bf16;
                $body
            }
            other => Err(format!("has no form for {other}")),
        }
    };
}
pub(crate) use with_float;

/// A view's elements with the strides of its axes, copied when the last axis is not contiguous.
pub(crate) struct Strided<'a, E: Copy> {
    data: Cow<'a, [E]>,
    shape: SmallVec<[usize; 4]>,
    strides: SmallVec<[usize; 4]>,
}

impl<'a> Strided<'a, u8> {
    /// A bool array as bytes, at any strides.
    pub(crate) fn of_bytes(view: &View<'a>) -> Self {
        Self::over(view, view.bytes())
    }
}

impl<'a, E: Element> Strided<'a, E> {
    pub(crate) fn new(view: &View<'a>) -> Result<Self, String> {
        let it = Self::over(view, view.span::<E>()?);
        let contiguous = it.shape.last().is_none_or(|&n| n <= 1) || it.strides.last() == Some(&1);
        Ok(if contiguous { it } else { it.copied() })
    }

    fn over(view: &View<'a>, data: &'a [E]) -> Self {
        let shape = view.shape().iter().map(|&n| n as usize).collect();
        let strides = view.strides().iter().map(|&n| n as usize).collect();
        Self { data: Cow::Borrowed(data), shape, strides }
    }

    fn copied(&self) -> Self {
        let size: usize = self.shape.iter().product();
        let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, self.shape.len());
        let mut data = Vec::with_capacity(size);
        for _ in 0..size {
            data.push(self.data[index.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<usize>()]);
            for (i, &n) in index.iter_mut().zip(&self.shape).rev() {
                *i += 1;
                if *i < n {
                    break;
                }
                *i = 0;
            }
        }
        let mut strides: SmallVec<[usize; 4]> = self.shape.iter().map(|_| 1).collect();
        for axis in (1..self.shape.len()).rev() {
            strides[axis - 1] = strides[axis] * self.shape[axis];
        }
        Self { data: Cow::Owned(data), shape: self.shape.clone(), strides }
    }

    /// In row-major order without gaps.
    pub(crate) fn contiguous(self) -> Self {
        let mut expected = 1;
        let dense = self.shape.iter().zip(&self.strides).rev().all(|(&n, &stride)| {
            let fits = n == 1 || stride == expected;
            expected *= n;
            fits
        });
        if dense { self } else { self.copied() }
    }

    /// Folds the leading axes to one, copying when their strides do not allow it.
    pub(crate) fn folded(self) -> Self {
        let n = self.shape.len().saturating_sub(1);
        let folds = (1..n).all(|axis| {
            self.shape[axis - 1] == 1 || self.strides[axis - 1] == self.strides[axis] * self.shape[axis]
        });
        let it = if folds { self } else { self.copied() };
        let width = it.shape.last().copied().unwrap_or(1);
        let stride = if n == 0 { width } else { it.strides[n - 1] };
        let rows = it.shape[..n].iter().product();
        Self {
            data: it.data,
            shape: SmallVec::from_slice(&[rows, width]),
            strides: SmallVec::from_slice(&[stride, 1]),
        }
    }

    /// As rows; after [`Strided::folded`].
    pub(crate) fn rows(&self, kernel: &'static str, operand: &'static str) -> Result<Rows<'_, E>, String> {
        Rows::new(kernel, operand, &self.data, self.shape[0], self.shape[1], self.strides[0])
            .map_err(|e| e.to_string())
    }

    /// As heads; of four axes.
    pub(crate) fn heads(&self, kernel: &'static str, operand: &'static str) -> Result<Heads<'_, E>, String> {
        let (shape, strides) = self.four()?;
        Heads::new(kernel, operand, &self.data, shape, strides).map_err(|e| e.to_string())
    }

    /// Four lengths, and the strides of the first three axes.
    pub(crate) fn four(&self) -> Result<([usize; 4], [usize; 3]), String> {
        match (&self.shape[..], &self.strides[..]) {
            (&[b, h, l, d], &[x, y, z, _]) => Ok(([b, h, l, d], [x, y, z])),
            _ => Err(format!("an operand must have 4 dimensions but has {}", self.shape.len())),
        }
    }

    /// `[B, L, H * D]` as heads of `width` values.
    pub(crate) fn split_heads(
        &self,
        width: usize,
        kernel: &'static str,
        operand: &'static str,
    ) -> Result<Heads<'_, E>, String> {
        let [b, l, all] = self.shape[..] else {
            return Err(format!("{operand} must have 3 dimensions but has {}", self.shape.len()));
        };
        let strides = [self.strides[0], width, self.strides[1]];
        Heads::new(kernel, operand, &self.data, [b, all / width, l, width], strides)
            .map_err(|e| e.to_string())
    }

    /// All elements, of a contiguous view.
    pub(crate) fn slice(&self) -> &[E] {
        &self.data
    }

    /// Strides of an array that broadcasts to four axes: 0 along those it lacks or has once.
    pub(crate) fn broadcast_strides(&self) -> Result<[usize; 4], String> {
        if self.shape.len() > 4 {
            return Err(format!("a mask must have at most 4 dimensions but has {}", self.shape.len()));
        }
        let mut strides = [0; 4];
        let missing = 4 - self.shape.len();
        for (axis, (&n, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            strides[missing + axis] = if n == 1 { 0 } else { stride };
        }
        Ok(strides)
    }
}

/// Refuses element types that no host kernel computes with, and operands whose type differs from the first's.
pub(crate) fn one_float_type(inputs: &[Meta]) -> Result<Dtype, String> {
    let dtype = inputs.first().map_or(Dtype::Float32, |x| x.dtype);
    if !matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) {
        return Err(format!("has no form for {dtype}"));
    }
    match inputs.iter().find(|x| x.dtype != dtype) {
        Some(other) => Err(format!("needs operands of one type but has {dtype} and {}", other.dtype)),
        None => Ok(dtype),
    }
}

/// `x` in a type, without a node when it has it.
pub(crate) fn cast(x: &Array, dtype: Dtype) -> Result<Array> {
    if x.dtype() == dtype { Ok(x.clone()) } else { x.astype(dtype) }
}

/// Shape of a contiguous result `[B, H, L, D]` in a layout.
pub(crate) fn laid_out(layout: Layout, [b, h, l, d]: [i32; 4]) -> Shape {
    match layout {
        Layout::HeadsFirst => [b, h, l, d].into(),
        Layout::PositionsFirst => [b, l, h * d].into(),
    }
}

/// A shape's four lengths.
pub(crate) fn four(operand: &str, meta: &Meta) -> Result<[i32; 4], String> {
    meta.shape
        .as_slice()
        .try_into()
        .map_err(|_| format!("{operand} must have 4 dimensions but has shape {}", meta.shape))
}

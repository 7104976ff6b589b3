//! Weights by path: shape demanded at each take, types brought to the composition's, and a ledger of what nobody took.

use crate::error::{Error, Result};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use strata_artifacts::{Quantization, ResolvedQuantization, TensorView, Weights, infer_scheme};
use strata_contracts::{Composition, Dtype, KernelSet, QuantMode, QuantScheme};
use strata_kernels::linear::{self, Packed};
use strata_tensor::ops::Quantized;
use strata_tensor::{Array, Device, Shape};

/// All weights of a model on their way into a graph.
pub(crate) struct Source<'a> {
    family: &'static str,
    weights: &'a Weights,
    /// The graph's names to the file's.
    names: BTreeMap<String, &'a str>,
    quantization: RefCell<Option<ResolvedQuantization>>,
    activations: Option<Dtype>,
    host_kernels: bool,
    taken: RefCell<BTreeSet<String>>,
}

/// A matrix, or a stack of them, as stored.
#[derive(Clone)]
pub(crate) enum Matrix {
    /// `[…, N, K]`.
    Dense(Array),
    /// Packed rows `[…, N, K]`.
    Quantized(Stored),
}

/// A quantized matrix, or a stack of them, in the file.
#[derive(Clone)]
pub(crate) struct Stored {
    weight: TensorView,
    scales: TensorView,
    biases: Option<TensorView>,
    scheme: QuantScheme,
}

impl Matrix {
    /// Rows `start .. stop` of a matrix.
    pub(crate) fn rows(&self, start: i32, stop: i32) -> Result<Self> {
        Ok(match self {
            Self::Dense(w) => Self::Dense(w.slice_axis(0, start, stop)?),
            Self::Quantized(q) => Self::Quantized(q.rows(start as usize, stop as usize)),
        })
    }

    /// True when the host kernels can read it.
    pub(crate) fn has_host_form(&self) -> bool {
        match self {
            Self::Dense(w) => is_host_float(w.dtype()),
            Self::Quantized(q) => {
                let factors = q.scales.dtype;
                q.scheme.mode() == QuantMode::Affine
                    && is_host_float(factors)
                    && q.biases.as_ref().is_some_and(|biases| biases.dtype == factors)
            }
        }
    }
}

fn is_host_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16)
}

impl Stored {
    fn rows(&self, start: usize, stop: usize) -> Self {
        let rows = |view: &TensorView| {
            let row = view.data.len() / view.shape[0].max(1);
            let shape = [&[stop - start], &view.shape[1..]].concat();
            TensorView { dtype: view.dtype, shape, data: view.data.slice(start * row..stop * row) }
        };
        Self {
            weight: rows(&self.weight),
            scales: rows(&self.scales),
            biases: self.biases.as_ref().map(rows),
            scheme: self.scheme,
        }
    }

    /// As arrays, with scales and biases of type `dtype` if there is one.
    pub(crate) fn arrays(self, dtype: Option<Dtype>) -> Result<Quantized> {
        Ok(Quantized {
            weight: array(self.weight)?,
            scales: converted(self.scales, dtype)?,
            biases: self.biases.map(|biases| converted(biases, dtype)).transpose()?,
            scheme: self.scheme,
        })
    }

    /// Packed for the host kernels, from the file's own memory; of what has a host form.
    pub(crate) fn packed(self) -> Result<Packed> {
        let Self { weight, scales, biases: Some(biases), scheme } = self else {
            unreachable!("affine matrices have biases")
        };
        let ([stack @ .., rows, _], [.., groups]) = (&*weight.shape, &*scales.shape) else {
            unreachable!("matrices have rows and columns")
        };
        let columns = groups * scheme.group_size() as usize;
        Ok(Packed::of(linear::Stored {
            factors: scales.dtype,
            shape: [stack.iter().product(), *rows, columns],
            words: Arc::new(weight.data),
            scales: Arc::new(scales.data),
            biases: Arc::new(biases.data),
            scheme,
        })?)
    }
}

impl<'a> Source<'a> {
    pub(crate) fn new(
        family: &'static str,
        weights: &'a Weights,
        rename: fn(&str) -> Option<String>,
        quantization: Option<&Quantization>,
        composition: &Composition,
    ) -> Result<Self> {
        let resolved = quantization.map(|q| q.resolve(rename)).transpose()?;
        let mut names = BTreeMap::new();
        for in_file in weights.names() {
            let Some(name) = rename(in_file) else { continue };
            if let Some(other) = names.insert(name.clone(), in_file) {
                return Err(Error::TensorTwice { name, first: other.to_owned(), second: in_file.to_owned() });
            }
        }
        Ok(Self {
            family,
            weights,
            names,
            quantization: RefCell::new(resolved),
            activations: composition.activations,
            host_kernels: composition.kernels == KernelSet::Fast && Device::current()? == Device::Cpu,
            taken: RefCell::default(),
        })
    }

    /// True when layers are to run Strata's host kernels: fast mode on a CPU.
    pub(crate) fn host_kernels(&self) -> bool {
        self.host_kernels
    }

    /// The type of activations, where the composition fixes it.
    pub(crate) fn activations(&self) -> Option<Dtype> {
        self.activations
    }

    /// True when the file holds this tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Drops tensors on purpose: those whose name `matches`.
    pub(crate) fn discard(&self, matches: impl Fn(&str) -> bool) {
        let mut taken = self.taken.borrow_mut();
        taken.extend(self.names.keys().filter(|name| matches(name)).cloned());
    }

    /// Drops a module on purpose: its tensors and its quantization settings.
    pub(crate) fn discard_module(&self, path: &str) {
        self.discard(|name| name.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')));
        self.heed_entry(path);
    }

    /// A tensor of this exact shape.
    pub(crate) fn tensor(&self, name: &str, shape: &[i32]) -> Result<Array> {
        converted(self.float_view(name, shape)?, self.activations)
    }

    fn float_view(&self, name: &str, shape: &[i32]) -> Result<TensorView> {
        let view = self.take(name)?;
        check_shape(name, &view, shape)?;
        if view.dtype.is_float() {
            Ok(view)
        } else {
            Err(Error::TensorDtype { name: name.to_owned(), found: view.dtype })
        }
    }

    /// The matrix `[rows, columns]` of the module at `path`, plain or quantized as the file has it.
    pub(crate) fn matrix(&self, path: &str, rows: i32, columns: i32) -> Result<Matrix> {
        self.stacked_matrix(path, &[rows], columns)
    }

    /// As [`Source::matrix`], with further leading dimensions before `columns` (stacked experts).
    pub(crate) fn stacked_matrix(&self, path: &str, leading: &[i32], columns: i32) -> Result<Matrix> {
        let weight = format!("{path}.weight");
        let scales_name = format!("{path}.scales");
        if !self.has(&scales_name) {
            // Settings that say "not quantized" of a plain matrix have been heeded.
            self.heed_entry(path);
            let view = self.float_view(&weight, &with(leading, columns))?;
            // Host kernels read every type beside every other, so there the file's type stays: half types are half the bytes.
            let dtype = if self.host_kernels { None } else { self.activations };
            return Ok(Matrix::Dense(converted(view, dtype)?));
        }
        let packed = self.take(&weight)?;
        let scales = self.take(&scales_name)?;
        let scheme = self.scheme(path, &packed, &scales, columns)?;
        let packing = || Error::Packing {
            name: path.to_owned(),
            packed: to_shape(&packed),
            scales: to_shape(&scales),
            columns: columns as usize,
        };
        let words = scheme.packed_columns(columns as usize).map_err(|_| packing())? as i32;
        let groups = columns / scheme.group_size() as i32;
        if packed.dtype != Dtype::Uint32 {
            return Err(Error::TensorDtype { name: weight, found: packed.dtype });
        }
        check_shape(&weight, &packed, &with(leading, words))?;
        check_shape(&scales_name, &scales, &with(leading, groups))?;
        let biases = if scheme.has_biases() {
            Some(self.float_view(&format!("{path}.biases"), &with(leading, groups))?)
        } else {
            None
        };
        let scales_fit =
            if scheme.has_biases() { scales.dtype.is_float() } else { scales.dtype == Dtype::Uint8 };
        if !scales_fit {
            return Err(Error::TensorDtype { name: scales_name, found: scales.dtype });
        }
        Ok(Matrix::Quantized(Stored { weight: packed, scales, biases, scheme }))
    }

    /// The scheme of a packed matrix: the settings' entry for its path, else what its shapes say, as in mlx-lm 0.32.2
    /// (`utils.py`, `infer_quant_config`).
    fn scheme(
        &self,
        path: &str,
        packed: &TensorView,
        scales: &TensorView,
        columns: i32,
    ) -> Result<QuantScheme> {
        let last = |view: &TensorView| view.shape.last().copied().unwrap_or(0);
        let inferred = infer_scheme(columns as usize, last(packed), last(scales), scales.dtype);
        self.heed_entry(path).or(inferred).ok_or_else(|| Error::Packing {
            name: path.to_owned(),
            packed: to_shape(packed),
            scales: to_shape(scales),
            columns: columns as usize,
        })
    }

    /// The scheme that the settings' entry for a path names, which counts as heeded from here on.
    fn heed_entry(&self, path: &str) -> Option<QuantScheme> {
        self.quantization.borrow_mut().as_mut().and_then(|q| q.entry_for(path)).flatten()
    }

    /// Refuses tensors that nobody took and settings that matched nothing.
    pub(crate) fn finish(&self) -> Result<()> {
        let taken = self.taken.borrow();
        let mut unused = self.names.iter().filter(|(name, _)| !taken.contains(*name));
        if let Some((_, example)) = unused.next() {
            let count = 1 + unused.count();
            return Err(Error::UnusedTensors { family: self.family, count, example: (*example).to_owned() });
        }
        let unmatched: Vec<String> = self
            .quantization
            .borrow()
            .as_ref()
            .map(|q| q.unmatched().into_iter().map(ToOwned::to_owned).collect())
            .unwrap_or_default();
        if unmatched.is_empty() { Ok(()) } else { Err(Error::UnmatchedQuantization { names: unmatched }) }
    }

    fn take(&self, name: &str) -> Result<TensorView> {
        let view = self.weights.require(self.names.get(name).copied().unwrap_or(name))?;
        self.taken.borrow_mut().insert(name.to_owned());
        Ok(view)
    }
}

/// A tensor as an array, of type `dtype` if there is one and the tensor is of a floating-point one.
fn converted(view: TensorView, dtype: Option<Dtype>) -> Result<Array> {
    let array = array(view)?;
    match dtype {
        Some(dtype) if array.dtype().is_float() => Ok(array.astype(dtype)?),
        _ => Ok(array),
    }
}

fn with(leading: &[i32], last: i32) -> Vec<i32> {
    [leading, &[last]].concat()
}

fn to_shape(view: &TensorView) -> Shape {
    view.shape.iter().map(|&n| n as i32).collect::<Vec<_>>().as_slice().into()
}

fn check_shape(name: &str, view: &TensorView, expected: &[i32]) -> Result<()> {
    let found = to_shape(view);
    if found.as_slice() == expected {
        return Ok(());
    }
    Err(Error::TensorShape { name: name.to_owned(), found, expected: expected.into() })
}

fn array(view: TensorView) -> Result<Array> {
    let shape = to_shape(&view);
    let range = 0..view.data.len();
    Ok(Array::from_owner(view.data, range, shape, view.dtype)?)
}

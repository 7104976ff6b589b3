//! A weight matrix, or a stack of them, packed for this machine, and the node of MLX's graph that packs it. Inputs: packed numbers, scales and
//! biases as MLX has them; outputs: those of [`panels`](crate::quantized_matmul::panels).

use crate::host::Level;
use crate::host::memory::floats;
use crate::host::node::{Float, with_float};
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::host::activations::BLOCK;
use crate::quantized_matmul::host::pack;
use crate::quantized_matmul::panels::{HALVES, symmetric_bias};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_contracts::{Dtype, QuantScheme};
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Array, Result, ops};

/// A matrix in panels, or a stack of them, as arrays.
#[derive(Debug, Clone)]
pub struct Packed {
    /// uint32 `[panels, blocks * 2 * BITS, lanes]`, the panels of all matrices.
    pub words: Array,
    /// `[panels, groups, 2 * lanes]`.
    pub scales: Array,
    /// `[panels, groups, 2 * lanes]`; none if all biases are `-2^(BITS - 1)` times the scales.
    pub biases: Option<Array>,
    /// Bits and group size.
    pub scheme: QuantScheme,
    /// Output features `N` of each matrix.
    pub rows: i32,
    /// Matrices: more than one for mixtures of experts.
    pub count: i32,
}

impl Packed {
    /// Packs a matrix `[N, K]`, or a stack `[E, N, K]`, for this machine, when the arrays are first used. Scales and biases are looked at now.
    ///
    /// # Errors
    /// Modes other than affine, parts that do not fit each other.
    #[track_caller]
    pub fn new(matrix: &ops::Quantized) -> Result<Self> {
        let mut inputs: SmallVec<[&Array; 3]> = smallvec![&matrix.weight, &matrix.scales];
        inputs.extend(&matrix.biases);
        let kernel = Pack { scheme: matrix.scheme, lanes: Level::best().lanes() };
        let mut parts = strata_tensor::host::apply(kernel, &inputs)?.into_iter();
        let mut next = || parts.next().expect("three outputs");
        let (words, scales, biases) = (next(), next(), next());
        let biases = if is_symmetric(matrix)? { None } else { Some(biases) };
        let (rows, count) =
            (matrix.weight.dim(-2), if matrix.weight.ndim() == 3 { matrix.weight.dim(0) } else { 1 });
        Ok(Self { words, scales, biases, scheme: matrix.scheme, rows, count })
    }

    /// The arrays.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.words, &self.scales].into_iter().chain(&self.biases)
    }
}

/// True when all biases are what a symmetric matrix has.
fn is_symmetric(matrix: &ops::Quantized) -> Result<bool> {
    fn all<E: Float>(matrix: &ops::Quantized, biases: &Array) -> Result<bool> {
        let factor = symmetric_bias(matrix.scheme.bits());
        let (scales, biases) = (matrix.scales.to_vec::<E>()?, biases.to_vec::<E>()?);
        #[allow(clippy::float_cmp, reason = "a bias that is read anew must be the one that was there")]
        let same = |(scale, bias): (&E, &E)| factor * scale.to_f32() == bias.to_f32();
        Ok(scales.len() == biases.len() && scales.iter().zip(&biases).all(same))
    }
    match &matrix.biases {
        Some(biases) if biases.dtype() == matrix.scales.dtype() => match biases.dtype() {
            Dtype::Float32 => all::<f32>(matrix, biases),
            Dtype::Float16 => all::<half::f16>(matrix, biases),
            Dtype::Bfloat16 => all::<half::bf16>(matrix, biases),
            _ => Ok(false),
        },
        _ => Ok(false),
    }
}

#[derive(PartialEq)]
struct Pack {
    scheme: QuantScheme,
    lanes: usize,
}

impl HostKernel for Pack {
    const NAME: &'static CStr = c"pack";
    const OUTPUTS: &'static [Output] = &[Output::Fresh; 3];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [packed, scales, biases] = inputs else {
            return Err("takes packed numbers, scales and biases".to_owned());
        };
        let (&[ref stack @ .., rows, words], &[.., groups]) =
            (packed.shape.as_slice(), scales.shape.as_slice())
        else {
            return Err(format!("takes matrices, not {} with scales {}", packed.shape, scales.shape));
        };
        let columns = groups * self.scheme.group_size() as i32;
        let fits = packed.dtype == Dtype::Uint32
            && scales == biases
            && stack.len() < 2
            && scales.shape[..scales.shape.len() - 1] == packed.shape[..packed.shape.len() - 1]
            && self.scheme.packed_columns(columns as usize).is_ok_and(|expected| expected == words as usize);
        if !fits {
            return Err(format!(
                "packed numbers {} {}, scales {} and biases {} are not one matrix or stack",
                packed.dtype, packed.shape, scales.shape, biases.shape
            ));
        }
        let (lanes, width) = (self.lanes as i32, (HALVES * self.lanes) as i32);
        let panels = stack.first().unwrap_or(&1) * ((rows + width - 1) / width);
        let vectors = columns / BLOCK as i32 * self.scheme.bits() as i32 * HALVES as i32;
        let factors = Meta { dtype: scales.dtype, shape: [panels, groups, width].into() };
        let words = Meta { dtype: Dtype::Uint32, shape: [panels, vectors, lanes].into() };
        Ok(smallvec![words, factors.clone(), factors])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[1].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl Pack {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let [words, scales, biases] = outputs else { return Err("has three outputs".to_owned()) };
        let rows = inputs[0].shape()[inputs[0].shape().len() - 2] as usize;
        let columns =
            inputs[1].shape()[inputs[1].shape().len() - 1] as usize * self.scheme.group_size() as usize;
        let factors = [floats(&inputs[1])?, floats(&inputs[2])?];
        let matrix = Quantized::new(inputs[0].slice()?, factors[0], factors[1], self.scheme, rows, columns)
            .map_err(|error| error.to_string())?;
        let from = [inputs[1].slice::<E>()?, inputs[2].slice::<E>()?];
        pack::pack(matrix, from, self.lanes, words.slice_mut()?, [scales.slice_mut()?, biases.slice_mut()?]);
        Ok(())
    }
}

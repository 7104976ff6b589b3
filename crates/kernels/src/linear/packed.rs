//! A weight matrix, or a stack of them, packed for this machine, and the node of MLX's graph that packs it. It has no inputs: it reads
//! the bytes of their owner, so that a file's numbers are never copied before they are packed. Outputs: those of
//! [`panels`](crate::quantized_matmul::panels).

use crate::host::Level;
use crate::host::node::{Float, with_float};
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::host::pack;
use crate::quantized_matmul::panels::{HALVES, sizes, symmetric_bias};
use bytemuck::AnyBitPattern;
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;
use std::ffi::CStr;
use std::panic::Location;
use std::sync::Arc;
use strata_contracts::{Dtype, QuantMode, QuantScheme};
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Array, Error, Failure, Result, ops};

/// Bytes with an owner: a part of a mapped file, say.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A stack of affine-quantized matrices `[E, N, K]`, of one for a plain linear layer, as MLX stores them, in little-endian bytes.
#[derive(Clone)]
pub struct Stored {
    /// uint32 `[E, N, K * BITS / 32]`.
    pub words: Bytes,
    /// `[E, N, K / G]`.
    pub scales: Bytes,
    /// `[E, N, K / G]`.
    pub biases: Bytes,
    /// Type of scales and biases: float32, float16 or bfloat16.
    pub factors: Dtype,
    /// `E`, `N` and `K`.
    pub shape: [usize; 3],
    /// Bits and group size.
    pub scheme: QuantScheme,
}

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
    /// Packs matrices for this machine, when the arrays are first used; their owner is let go then. Scales and biases are looked at
    /// now.
    ///
    /// # Errors
    /// Modes other than affine, parts that do not fit each other.
    #[track_caller]
    pub fn of(matrix: Stored) -> Result<Self> {
        let refused = |message| failure("pack", message);
        matrix.check().map_err(refused)?;
        let symmetric = with_float!(matrix.factors, E => Ok(matrix.is_symmetric::<E>())).map_err(refused)?;
        let (scheme, [count, rows, _]) = (matrix.scheme, matrix.shape.map(|n| n as i32));
        let kernel = Pack { matrix: Arc::new(matrix), lanes: Level::best().lanes() };
        let mut parts = strata_tensor::host::apply(kernel, &[])?.into_iter();
        let mut next = || parts.next().expect("three outputs");
        let (words, scales, biases) = (next(), next(), next());
        Ok(Self { words, scales, biases: (!symmetric).then_some(biases), scheme, rows, count })
    }

    /// Packs a matrix `[N, K]`, or a stack `[E, N, K]`, of arrays, which are evaluated and copied.
    ///
    /// # Errors
    /// As [`Packed::of`]; what MLX reports of the evaluation.
    #[track_caller]
    pub fn new(matrix: &ops::Quantized) -> Result<Self> {
        let ops::Quantized { weight, scales, biases, scheme } = matrix;
        let refused = || {
            let biases = biases.as_ref().map(Array::shape);
            let shapes = format!("{}, scales {} and biases {biases:?}", weight.shape(), scales.shape());
            failure("pack", format!("takes numbers, scales and biases of matrices, not {shapes}"))
        };
        let biases = biases.as_ref().filter(|biases| biases.dtype() == scales.dtype()).ok_or_else(refused)?;
        let (count, rows) = match *weight.shape().as_slice() {
            [rows, _] => (1, rows as usize),
            [count, rows, _] => (count as usize, rows as usize),
            _ => return Err(refused()),
        };
        let columns = scales.dim(-1) as usize * scheme.group_size() as usize;
        let bytes = |x: &Array| -> Result<Bytes> { Ok(Arc::new(x.to_bytes()?)) };
        Self::of(Stored {
            words: bytes(weight)?,
            scales: bytes(scales)?,
            biases: bytes(biases)?,
            factors: scales.dtype(),
            shape: [count, rows, columns],
            scheme: *scheme,
        })
    }

    /// The arrays.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.words, &self.scales].into_iter().chain(&self.biases)
    }
}

/// The error of a reference: MLX has no operation that reads panels.
#[track_caller]
pub(crate) fn no_operation(op: &'static str) -> Error {
    failure(op, "the reference reads weights as files hold them, not packed ones".to_owned())
}

#[track_caller]
fn failure(op: &'static str, message: String) -> Error {
    Error::Mlx(Box::new(Failure { op, message, at: Location::caller() }))
}

impl Stored {
    fn check(&self) -> Result<(), String> {
        let [count, rows, columns] = self.shape;
        let scheme = self.scheme;
        let words = scheme.packed_columns(columns).map_err(|error| error.to_string())?;
        let groups = columns / scheme.group_size() as usize;
        if scheme.mode() != QuantMode::Affine || count * rows == 0 {
            return Err(format!(
                "packs affine matrices, not {count} x {rows} of mode {}",
                scheme.mode().name()
            ));
        }
        let factor = self.factors.size();
        for (part, bytes, needed) in [
            ("packed numbers", &self.words, 4 * words),
            ("scales", &self.scales, factor * groups),
            ("biases", &self.biases, factor * groups),
        ] {
            let (held, needed) = (bytes.as_ref().as_ref().len(), count * rows * needed);
            if held != needed {
                return Err(format!(
                    "{part} of {count} x {rows} x {columns} take {needed} bytes, not {held}"
                ));
            }
        }
        Ok(())
    }

    /// True when all biases are what a symmetric matrix has.
    fn is_symmetric<E: Float + AnyBitPattern>(&self) -> bool {
        let factor = symmetric_bias(self.scheme.bits());
        let (scales, biases) = (values::<E>(&self.scales), values::<E>(&self.biases));
        #[allow(clippy::float_cmp, reason = "a bias that is read anew must be the one that was there")]
        let same = |(scale, bias): (&E, &E)| factor * scale.to_f32() == bias.to_f32();
        scales.iter().zip(&*biases).all(same)
    }
}

/// Values from their bytes, copied only where these are not aligned.
fn values<E: AnyBitPattern + bytemuck::NoUninit>(bytes: &Bytes) -> Cow<'_, [E]> {
    let bytes = bytes.as_ref().as_ref();
    bytemuck::try_cast_slice(bytes).map_or_else(
        |_| {
            let mut copy = vec![E::zeroed(); bytes.len() / size_of::<E>()];
            bytemuck::cast_slice_mut::<E, u8>(&mut copy).copy_from_slice(bytes);
            Cow::Owned(copy)
        },
        Cow::Borrowed,
    )
}

struct Pack {
    matrix: Arc<Stored>,
    lanes: usize,
}

impl PartialEq for Pack {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.matrix, &other.matrix) && self.lanes == other.lanes
    }
}

impl HostKernel for Pack {
    const NAME: &'static CStr = c"pack";
    const OUTPUTS: &'static [Output] = &[Output::Fresh; 3];

    fn outputs(&self, _: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [count, rows, columns] = self.matrix.shape;
        let width = HALVES * self.lanes;
        let panels = count * rows.div_ceil(width);
        let [words, factors] = sizes(self.matrix.scheme, rows, columns, self.lanes).map(|size| count * size);
        let shape = |values: usize, last: usize| {
            [panels, values / panels / last, last].map(|n| i32::try_from(n).unwrap_or(i32::MAX))
        };
        let factors = Meta { dtype: self.matrix.factors, shape: shape(factors, width).into() };
        let words = Meta { dtype: Dtype::Uint32, shape: shape(words, self.lanes).into() };
        Ok(smallvec![words, factors.clone(), factors])
    }

    fn run(&self, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(self.matrix.factors, E => self.typed::<E>(outputs))
    }
}

impl Pack {
    fn typed<E: Float + AnyBitPattern>(&self, outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let [words, scales, biases] = outputs else { return Err("has three outputs".to_owned()) };
        let Stored { scheme, shape: [_, rows, columns], .. } = *self.matrix;
        let numbers = values::<u32>(&self.matrix.words);
        let factors = [&self.matrix.scales, &self.matrix.biases].map(values::<E>);
        // The type of scales and biases does not matter to packing.
        let matrix =
            Quantized::new(&numbers, E::floats(&factors[0]), E::floats(&factors[1]), scheme, rows, columns);
        let matrix = matrix.map_err(|error| error.to_string())?;
        let to = [scales.slice_mut()?, biases.slice_mut()?];
        pack::pack(matrix, [&factors[0], &factors[1]], self.lanes, words.slice_mut()?, to);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 x 64 numbers of 4 bits in groups of 32, each part in bytes that begin `off` bytes behind a word.
    fn stored(off: usize) -> Stored {
        struct Part(Vec<u32>, usize, usize);
        impl AsRef<[u8]> for Part {
            fn as_ref(&self) -> &[u8] {
                &bytemuck::cast_slice(&self.0)[self.1..self.1 + self.2]
            }
        }
        let part = |seed: u8, length: usize| -> Bytes {
            let mut words = vec![0_u32; length / 4 + 1];
            let bytes = &mut bytemuck::cast_slice_mut::<u32, u8>(&mut words)[off..off + length];
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8 ^ seed);
            Arc::new(Part(words, off, length))
        };
        Stored {
            words: part(7, 3 * 32),
            scales: part(1, 3 * 2 * 2),
            biases: part(2, 3 * 2 * 2),
            factors: Dtype::Float16,
            shape: [1, 3, 64],
            scheme: QuantScheme::affine(4, 32).unwrap(),
        }
    }

    #[test]
    fn bytes_need_no_alignment() {
        let bytes = |off| {
            let packed = Packed::of(stored(off)).unwrap();
            packed.arrays().map(|x| x.to_bytes().unwrap()).collect::<Vec<_>>()
        };
        let aligned = bytes(0);
        assert!(aligned.len() == 3 && aligned[0].iter().any(|&byte| byte != 0));
        for off in [1, 2, 3] {
            assert_eq!(bytes(off), aligned, "{off}");
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let refused = |stored: Stored| Packed::of(stored).unwrap_err().to_string();
        let short = stored(0).scales;
        assert!(
            refused(Stored { words: short, ..stored(0) }).contains("packed numbers of 1 x 3 x 64 take 96")
        );
        assert!(refused(Stored { factors: Dtype::Float32, ..stored(0) }).contains("take 24 bytes, not 12"));
        assert!(refused(Stored { factors: Dtype::Uint8, ..stored(0) }).contains("take 6 bytes"));
        assert!(refused(Stored { shape: [1, 3, 63], ..stored(0) }).contains("63"));
        assert!(refused(Stored { shape: [0, 3, 64], ..stored(0) }).contains("0 x 3"));
    }

    #[test]
    fn the_owner_is_let_go_when_the_panels_are_there() {
        let matrix = stored(0);
        let owner = Arc::downgrade(&matrix.words);
        let packed = Packed::of(matrix).unwrap();
        assert!(owner.upgrade().is_some());
        strata_tensor::eval(packed.arrays()).unwrap();
        assert!(owner.upgrade().is_none());
    }
}

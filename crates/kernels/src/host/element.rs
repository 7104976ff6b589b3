//! The floating-point types that host kernels read and write. All arithmetic is in float32.

use half::{bf16, f16};
use strata_contracts::Dtype;

use super::simd::{Level, narrow, widen};

/// `f32`, `f16` or `bf16`.
pub trait Element:
    Copy + Send + Sync + Default + PartialEq + std::fmt::Debug + 'static + private::Sealed
{
    /// MLX's name of the type.
    const DTYPE: Dtype;

    /// Exact widening.
    fn to_f32(self) -> f32;

    /// Rounds to nearest, ties to even; NaN stays NaN, overflow becomes infinity.
    fn from_f32(value: f32) -> Self;

    /// Widens a slice. Both have one length.
    fn widen(level: Level, from: &[Self], to: &mut [f32]);

    /// Rounds a slice. Both have one length.
    fn narrow(level: Level, from: &[f32], to: &mut [Self]);

    /// A slice, with its type known at run time.
    fn floats(values: &[Self]) -> Floats<'_>;
}

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::Float32;

    #[inline]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        value
    }

    fn widen(_: Level, from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn narrow(_: Level, from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }

    fn floats(values: &[Self]) -> Floats<'_> {
        Floats::F32(values)
    }
}

impl Element for f16 {
    const DTYPE: Dtype = Dtype::Float16;

    #[inline]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }

    fn widen(level: Level, from: &[Self], to: &mut [f32]) {
        widen(level, from, to);
    }

    fn narrow(level: Level, from: &[f32], to: &mut [Self]) {
        narrow(level, from, to);
    }

    fn floats(values: &[Self]) -> Floats<'_> {
        Floats::F16(values)
    }
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bfloat16;

    #[inline]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }

    fn widen(level: Level, from: &[Self], to: &mut [f32]) {
        widen(level, from, to);
    }

    fn narrow(level: Level, from: &[f32], to: &mut [Self]) {
        narrow(level, from, to);
    }

    fn floats(values: &[Self]) -> Floats<'_> {
        Floats::Bf16(values)
    }
}

/// Floating-point values whose type is known at run time.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Floats<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

/// Evaluates an expression with `$values` bound to the slice inside a [`Floats`].
macro_rules! each_float {
    ($floats:expr, $values:ident => $body:expr) => {
        match $floats {
            $crate::host::element::Floats::F32($values) => $body,
            $crate::host::element::Floats::F16($values) => $body,
            $crate::host::element::Floats::Bf16($values) => $body,
        }
    };
}
pub(crate) use each_float;

impl Floats<'_> {
    /// Number of values.
    pub fn len(self) -> usize {
        each_float!(self, values => values.len())
    }

    /// True without values.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// One value, widened.
    pub fn get(self, index: usize) -> f32 {
        each_float!(self, values => values[index].to_f32())
    }

    /// MLX's name of the type.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::Float32,
            Self::F16(_) => Dtype::Float16,
            Self::Bf16(_) => Dtype::Bfloat16,
        }
    }

    /// The values `range`.
    #[must_use]
    pub fn slice(self, range: std::ops::Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[range]),
            Self::F16(values) => Self::F16(&values[range]),
            Self::Bf16(values) => Self::Bf16(&values[range]),
        }
    }
}

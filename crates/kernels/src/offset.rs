//! A position in a sequence: a number that a graph is built with, or one that its kernels read when they run.

use strata_contracts::Dtype;
use strata_tensor::host::{Meta, View};
use strata_tensor::{Array, Result};

/// A position in a sequence.
#[derive(Debug, Clone, Copy)]
pub enum Offset<'a> {
    /// Known when the graph is built.
    At(i32),
    /// int32: 0-d, or, where a kernel says so, `[B]` with one for each row of the batch.
    Array(&'a Array),
}

impl<'a> Offset<'a> {
    /// The array, if it is one: an input of a node.
    pub(crate) fn input(self) -> Option<&'a Array> {
        match self {
            Self::At(_) => None,
            Self::Array(array) => Some(array),
        }
    }

    /// What a node keeps of it.
    pub(crate) fn known(self) -> Known {
        match self {
            Self::At(position) => Known(Some(position)),
            Self::Array(_) => Known(None),
        }
    }

    /// The number of a 0-d offset, computed now.
    pub(crate) fn read(self) -> Result<i32> {
        match self {
            Self::At(position) => Ok(position),
            Self::Array(array) => array.item(),
        }
    }
}

/// The position of all rows of a batch if it is known to a node; `None` if it is an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known(Option<i32>);

impl Known {
    /// Inputs that the offset is.
    pub(crate) fn inputs(self) -> usize {
        usize::from(self.0.is_none())
    }

    /// The position, if it is known.
    pub(crate) fn position(self) -> Option<i32> {
        self.0
    }

    /// Checks the input that it is, if it is one.
    pub(crate) fn check(self, operand: &str, input: Option<&Meta>) -> Result<(), String> {
        match (self.0, input) {
            (None, Some(meta)) if meta.dtype == Dtype::Int32 && meta.shape.is_empty() => Ok(()),
            (None, Some(meta)) => {
                Err(format!("{operand} needs int32 of shape () but is {} {}", meta.dtype, meta.shape))
            }
            _ => Ok(()),
        }
    }

    /// The position when the kernel runs.
    pub(crate) fn resolve(self, operand: &str, input: Option<&View<'_>>) -> Result<usize, String> {
        let position = match (self.0, input) {
            (Some(position), _) => position,
            (None, Some(view)) => *view.slice::<i32>()?.first().ok_or("an offset is empty")?,
            (None, None) => return Err(format!("{operand} is missing")),
        };
        usize::try_from(position).map_err(|_| format!("{operand} must not be negative but is {position}"))
    }
}

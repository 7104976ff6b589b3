//! The crate's one error type.

use crate::Shape;
use std::panic::Location;
use strata_contracts::Dtype;

/// Result of a tensor operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong in an operation.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// MLX refused or failed the operation.
    #[error("{op}: {message} (called at {at})", op = .0.op, message = .0.message, at = .0.at)]
    Mlx(Box<Failure>),
    /// A shape with a negative length, or with more elements than memory has addresses.
    #[error("shape {shape} is not possible: a length is negative or the product too large")]
    Shape {
        /// The shape given.
        shape: Shape,
    },
    /// Host data of the wrong length.
    #[error("shape {shape} of {dtype} does not fit {bytes} bytes of host data")]
    HostSize {
        /// The shape given.
        shape: Shape,
        /// The element type given.
        dtype: Dtype,
        /// Bytes found.
        bytes: usize,
    },
    /// A byte range outside the host data.
    #[error("bytes {start}..{end} are outside the {len} bytes of host data")]
    HostRange {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Bytes there are.
        len: usize,
    },
    /// A view by strides that leaves the array's memory, or whose strides are not one a dimension.
    #[error(
        "a view of shape {shape} from element {offset} leaves the array's {len} elements, \
         or its strides are not one a dimension"
    )]
    View {
        /// Shape of the view.
        shape: Shape,
        /// Its first element.
        offset: usize,
        /// Elements there are.
        len: usize,
    },
    /// The array's type is not the one asked for.
    #[error("the array holds {found}, not {wanted}")]
    Dtype {
        /// Type of the array.
        found: Dtype,
        /// Type asked for.
        wanted: Dtype,
    },
    /// A single value was asked of an array with more or fewer elements.
    #[error("an array of shape {shape} is not one value")]
    NotScalar {
        /// Shape of the array.
        shape: Shape,
    },
    /// A view of memory was asked of an array that is not in row-major order.
    #[error("the array of shape {shape} is not contiguous in memory; call `contiguous` first")]
    NotContiguous {
        /// Shape of the array.
        shape: Shape,
    },
    /// Text for MLX holds a NUL character.
    #[error("text must not hold a NUL character: {text:?}")]
    NulInText {
        /// The text, NULs written out.
        text: String,
    },
    /// What a compiled closure returned instead of arrays.
    #[error("a compiled function failed: {message}")]
    Closure {
        /// Its error or panic message.
        message: String,
    },
}

/// MLX's message, the operation's name and the line that called it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Name of the operation.
    pub op: &'static str,
    /// MLX's words.
    pub message: String,
    /// The caller's line.
    pub at: &'static Location<'static>,
}

impl Error {
    pub(crate) fn mlx(op: &'static str, message: String, at: &'static Location<'static>) -> Self {
        Self::Mlx(Box::new(Failure { op, message, at }))
    }
}

//! The crate's one error type.

use strata_tensor::Shape;

/// Result of a cache operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a cache. The cache is as it was before.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] strata_tensor::Error),
    /// Keys and values that are not what the layer stores.
    #[error("layer stores keys and values of shape [B, {kv_heads}, L, {head_dim}] but got {found}")]
    Shape {
        /// Key/value heads declared.
        kv_heads: u32,
        /// Values per head declared.
        head_dim: u32,
        /// Shape found.
        found: Shape,
    },
    /// More positions to give up than there are.
    #[error("cannot give up {asked} positions of {held}")]
    Trim {
        /// Positions asked for.
        asked: usize,
        /// Positions that can be given up.
        held: usize,
    },
}

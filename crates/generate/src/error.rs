//! The crate's one error type.

use strata_contracts::SamplingError;

/// Result of generating.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a generation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph refused or failed.
    #[error(transparent)]
    Model(#[from] strata_models::Error),
    /// A cache refused.
    #[error(transparent)]
    State(#[from] strata_state::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] strata_tensor::Error),
    /// A sampling option is out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Nothing to read.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// An id that the embedding table has no row for.
    #[error("token id {id} at position {position} is outside the model's vocabulary of {vocab_size}")]
    TokenRange {
        /// The id.
        id: u32,
        /// Its place in the prompt.
        position: usize,
        /// Rows of the table.
        vocab_size: u32,
    },
    /// More tokens than the position encoding was made for.
    #[error("{tokens} tokens do not fit: the model's context is {context_length} and {held} are taken")]
    ContextLength {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions taken by what the state holds.
        held: usize,
        /// Positions there are.
        context_length: u32,
    },
}

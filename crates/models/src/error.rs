//! The crate's one error type.

use strata_tensor::{Dtype, Shape};

/// Result of loading or running a graph.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the model is broken or missing.
    #[error(transparent)]
    Artifacts(#[from] strata_artifacts::Error),
    /// A cache refused.
    #[error(transparent)]
    State(#[from] strata_state::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] strata_tensor::Error),
    /// No family of that name.
    #[error("model_type {model_type:?} is not supported; supported are {}", supported.join(", "))]
    UnknownModelType {
        /// The name in config.json.
        model_type: String,
        /// All names that are known.
        supported: Vec<&'static str>,
    },
    /// The configuration asks for what the family does not do, or contradicts itself.
    #[error("{family} with {key} = {value} is not supported: {reason}")]
    Unsupported {
        /// The family.
        family: &'static str,
        /// The setting.
        key: String,
        /// Its value.
        value: String,
        /// Why not.
        reason: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has shape {found} but config.json makes it {expected}")]
    TensorShape {
        /// Its name in the file.
        name: String,
        /// Shape in the file.
        found: Shape,
        /// Shape that follows from the configuration.
        expected: Shape,
    },
    /// A tensor has a type that cannot be a weight.
    #[error("tensor {name} holds {found}, which is no type for a weight")]
    TensorDtype {
        /// Its name in the file.
        name: String,
        /// Type in the file.
        found: Dtype,
    },
    /// A packed matrix whose parts fit no quantization.
    #[error(
        "{name}: packed weight {packed} with scales {scales} fits no quantization of rows of {columns} values"
    )]
    Packing {
        /// Path of the module.
        name: String,
        /// Shape of the packed weight.
        packed: Shape,
        /// Shape of the scales.
        scales: Shape,
        /// Row length that the configuration says.
        columns: usize,
    },
    /// Two tensors for one place.
    #[error("tensors {first} and {second} are both {name} of the graph")]
    TensorTwice {
        /// The graph's name.
        name: String,
        /// Names in the file.
        first: String,
        /// Names in the file.
        second: String,
    },
    /// Tensors that the graph has no place for.
    #[error("the weights hold {count} tensors that {family} has no place for, such as {example}")]
    UnusedTensors {
        /// The family.
        family: &'static str,
        /// How many.
        count: usize,
        /// The first of them.
        example: String,
    },
    /// Quantization settings for modules that do not exist.
    #[error("the quantization settings name modules that the model does not have: {}", names.join(", "))]
    UnmatchedQuantization {
        /// The names as the file has them.
        names: Vec<String>,
    },
}

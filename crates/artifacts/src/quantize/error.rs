//! What can be wrong when weights are quantized.

/// Why weights can't be quantized.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// Values that are not whole groups.
    #[error("{values} values are not a whole number of groups of {group_size}")]
    Groups {
        /// Number of values.
        values: usize,
        /// Values in one group.
        group_size: u32,
    },
    /// A value without a nearest quantized one.
    #[error("value {index} is {found}; only finite weights can be quantized")]
    NotFinite {
        /// Its index, row-major.
        index: usize,
        /// The value.
        found: f32,
    },
    /// A type that is not quantized.
    #[error("weights of type {found} can't be quantized; float32, bfloat16 and float16 can")]
    Dtype {
        /// Name of the type.
        found: &'static str,
    },
    /// The model has been quantized before.
    #[error("the model is quantized already; start from the original weights")]
    AlreadyQuantized,
    /// No module of the model fits the settings.
    #[error("nothing was quantized: no weight matrix has rows that divide into groups of {group_size}")]
    NothingFits {
        /// Values in one group.
        group_size: u32,
    },
    /// One tensor's problem.
    #[error("tensor `{tensor}`: {problem}")]
    Tensor {
        /// Name of the tensor.
        tensor: String,
        /// What is wrong with it.
        problem: Box<QuantizeError>,
    },
}

impl QuantizeError {
    /// The same problem, with the tensor named.
    pub(crate) fn of_tensor(tensor: &str, problem: Self) -> Self {
        Self::Tensor { tensor: tensor.to_owned(), problem: Box::new(problem) }
    }
}

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
    /// A rule for modules that the model does not have.
    #[error("the rule for `{pattern}` fits no module of the model")]
    IdleRule {
        /// The rule's pattern.
        pattern: String,
    },
    /// Experts that are not all there.
    #[error("`{tensor}` lacks expert {missing}")]
    MissingExpert {
        /// Name of the stacked tensor.
        tensor: String,
        /// Number of the expert.
        missing: usize,
    },
    /// Experts of different sizes.
    #[error("`{tensor}` has shape {found:?}, other experts of its layer have {expected:?}")]
    ExpertShape {
        /// Name of the expert's tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// Shape of the first expert's.
        expected: Vec<usize>,
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
    /// The remedy in one sentence, where there is one.
    pub(crate) const fn help(&self) -> Option<&'static str> {
        match self {
            Self::IdleRule { .. } => Some(
                "patterns fit whole paths, such as `model.layers.0.*` or `*.v_proj`; correct the pattern",
            ),
            Self::NothingFits { .. } => Some("choose a smaller group size"),
            Self::AlreadyQuantized => Some("name the folder of the original model"),
            _ => None,
        }
    }

    /// The same problem, with the tensor named.
    pub(crate) fn of_tensor(tensor: &str, problem: Self) -> Self {
        Self::Tensor { tensor: tensor.to_owned(), problem: Box::new(problem) }
    }
}

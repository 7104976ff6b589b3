//! The composition record: which kernels and which number formats one run uses.

use crate::Dtype;
use crate::kv::KvScheme;
use serde::{Deserialize, Serialize};

/// Which implementations of an operation run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelSet {
    /// MLX's own operations in mlx-lm's order: bit for bit mlx-lm's logits.
    Reference,
    /// Strata's kernels where the device has them, within their stated tolerance.
    Fast,
}

/// Everything about a run that is chosen once, before the model is bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Composition {
    /// Kernel set.
    pub kernels: KernelSet,
    /// Type of activations and of weights that are not quantized; `None` keeps what the file has.
    pub activations: Option<Dtype>,
    /// How keys and values are kept.
    pub kv: KvScheme,
}

impl Default for Composition {
    fn default() -> Self {
        Self { kernels: KernelSet::Fast, activations: None, kv: KvScheme::default() }
    }
}

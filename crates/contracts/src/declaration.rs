//! What a graph says about itself: its layers' state and the phases it can run.

use serde::{Deserialize, Serialize};

/// What one layer keeps of the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LayerKind {
    /// Keys and values of every position.
    Full {
        /// Key/value heads.
        kv_heads: u32,
        /// Values per head.
        head_dim: u32,
    },
    /// Keys and values of the newest `window` positions.
    Sliding {
        /// Key/value heads.
        kv_heads: u32,
        /// Values per head.
        head_dim: u32,
        /// Positions a query sees, its own included.
        window: u32,
    },
    /// One compressed vector and one shared rope key of every position (multi-head latent attention, arXiv 2405.04434).
    Latent {
        /// Values of the compressed vector.
        rank: u32,
        /// Values of the rope key.
        rope_dim: u32,
    },
    /// A recurrence: the tail of a short convolution and a state of fixed size, whatever the length.
    Recurrent {
        /// Channels of the convolution.
        channels: u32,
        /// Positions that the convolution looks back.
        tail: u32,
        /// Values of one row's recurrent state.
        state: u32,
    },
    /// Nothing: the layer reads what another has stored.
    Shared {
        /// Index of the layer it reads.
        donor: u32,
    },
}

impl LayerKind {
    /// Values that one more position adds to a plain cache: 0 where the size does not depend on the length, and for
    /// a layer that stores nothing. A sliding layer stops growing at its window.
    pub const fn values_per_position(self) -> u64 {
        match self {
            Self::Full { kv_heads, head_dim } | Self::Sliding { kv_heads, head_dim, .. } => {
                2 * kv_heads as u64 * head_dim as u64
            }
            Self::Latent { rank, rope_dim } => rank as u64 + rope_dim as u64,
            Self::Recurrent { .. } | Self::Shared { .. } => 0,
        }
    }
}

/// Phases a graph implements beyond single-row prompt and decode, which every graph has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    /// Rows of different lengths in one forward pass.
    pub batched_rows: bool,
    /// A span of draft tokens can be scored in one pass and partly rejected.
    pub verify: bool,
}

/// A graph's description, checked when it is bound to state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphDeclaration {
    /// Name of the family file, such as `llama`.
    pub family: String,
    /// Rows of the embedding table: token ids are below it.
    pub vocab_size: u32,
    /// Longest sequence the position encoding was made for, in tokens.
    pub context_length: u32,
    /// One entry a layer, in order.
    pub layers: Vec<LayerKind>,
    /// Optional phases.
    pub capabilities: Capabilities,
}

//! All layers of a sequence, and the position they share.

use crate::error::Result;
use crate::plain::PlainCache;
use crate::read::AttentionRead;
use strata_contracts::{Composition, LayerKind};
use strata_tensor::Array;

/// What a forward pass is for; it decides the order of reductions, not what is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// One new position a row.
    Decode,
    /// A causal span of new positions.
    Window,
    /// Known positions whose reductions keep the order of single ones.
    Committed,
}

/// Where a forward pass starts.
#[derive(Debug, Clone)]
pub enum Positions {
    /// Every row at the same position.
    Uniform(i32),
    /// int32 `[B]`: one position a row.
    Rows(Array),
}

/// What all layers of a graph keep of a sequence.
#[derive(Debug, Clone)]
pub struct State {
    layers: Vec<LayerState>,
    position: usize,
}

/// What one layer keeps.
#[derive(Debug, Clone)]
pub enum LayerState {
    /// Keys and values of every position.
    Plain(PlainCache),
}

impl State {
    /// Empty state for a graph's layers, in the form that the composition asks for.
    ///
    /// # Errors
    /// None at present; forms that a layer cannot have will be refused here.
    pub fn compose(layers: &[LayerKind], composition: &Composition) -> Result<Self> {
        let layers = layers
            .iter()
            .map(|kind| match *kind {
                LayerKind::Full { kv_heads, head_dim } | LayerKind::Sliding { kv_heads, head_dim, .. } => {
                    LayerState::Plain(PlainCache::new(kv_heads, head_dim, composition.kernels))
                }
            })
            .collect();
        Ok(Self { layers, position: 0 })
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// True for a graph without layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Where the next forward pass starts. Read it once, before the first layer appends.
    pub fn positions(&self) -> Positions {
        Positions::Uniform(self.position as i32)
    }

    /// The state of layer `index`.
    ///
    /// # Panics
    /// When the graph has no such layer: graph and state were composed from one declaration.
    pub fn layer(&mut self, index: usize) -> &mut LayerState {
        &mut self.layers[index]
    }

    /// Ends a forward pass of `tokens` positions, after the last layer has appended.
    pub fn advance(&mut self, tokens: usize) {
        self.position += tokens;
    }

    /// Gives up the newest `tokens` positions.
    ///
    /// # Errors
    /// [`crate::Error::Trim`] when there are fewer; nothing is changed then.
    pub fn trim(&mut self, tokens: usize) -> Result<()> {
        if tokens > self.position {
            return Err(crate::Error::Trim { asked: tokens, held: self.position });
        }
        for layer in &mut self.layers {
            match layer {
                LayerState::Plain(cache) => cache.trim(tokens)?,
            }
        }
        self.position -= tokens;
        Ok(())
    }

    /// Every array held, to be evaluated together.
    pub fn arrays(&self) -> Vec<&Array> {
        self.layers.iter().flat_map(LayerState::arrays).collect()
    }
}

impl LayerState {
    /// Stores the keys `[B, Hkv, L, D]` and values `[B, Hkv, L, Dv]` of new positions, and gives what queries at these
    /// positions see.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for another shape; the layer is unchanged then.
    pub fn append(&mut self, keys: &Array, values: &Array, phase: Phase) -> Result<AttentionRead> {
        match self {
            Self::Plain(cache) => cache.append(keys, values, phase),
        }
    }

    /// The live keys and values, `[B, Hkv, T, D]` each, oldest first; `None` before the first append.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn live(&self) -> Result<Option<(Array, Array)>> {
        match self {
            Self::Plain(cache) => cache.live(),
        }
    }

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Plain(cache) => cache.arrays(),
        }
    }
}

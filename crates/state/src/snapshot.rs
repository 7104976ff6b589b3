//! A sequence's state as plain data: copied out of the device's memory, it can go to another thread, into a file, and back
//! into an empty state of the same graph and composition, bit for bit.

use crate::error::{Error, Result};
use crate::layer::LayerState;
use crate::state::State;
use serde::{Deserialize, Serialize};
use strata_contracts::Dtype;
use strata_tensor::{Array, Shape, eval};

/// The state of one sequence that has read `tokens`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub(crate) namespace: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) layers: Vec<LayerRecord>,
    /// Of all layers in order.
    pub(crate) parts: Vec<Part>,
}

/// What a layer is, besides its arrays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LayerRecord {
    /// The kind of cache.
    pub(crate) kind: String,
    /// Its number format.
    pub(crate) format: String,
    /// Positions seen.
    pub(crate) length: usize,
    /// Where a ring writes next.
    pub(crate) next: usize,
    /// Arrays that belong to it.
    pub(crate) parts: usize,
}

/// An array's bytes, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<i32>,
    pub(crate) bytes: Vec<u8>,
}

/// What a cache hands over to be saved, and takes back.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    pub(crate) format: String,
    pub(crate) length: usize,
    pub(crate) next: usize,
    pub(crate) arrays: Vec<Array>,
}

impl Snapshot {
    /// What the snapshot depends on besides the tokens: model, adapter, number format.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The tokens read.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }

    /// The state, in place of `empty`, which must be an empty state of the same graph and composition.
    ///
    /// # Errors
    /// [`Error::Snapshot`] when the two do not fit; what MLX reports.
    pub fn restore(&self, empty: &State) -> Result<State> {
        let unfit = |reason: String| Error::Snapshot { reason };
        if empty.position() != 0 || empty.rows.is_some() || empty.in_round {
            return Err(unfit("the state to restore into is not an empty sequence".to_owned()));
        }
        if empty.len() != self.layers.len() {
            let (saved, there) = (self.layers.len(), empty.len());
            return Err(unfit(format!("it has {saved} layers but the graph has {there}")));
        }
        let mut parts = self.parts.iter();
        let layers = empty.layers.iter().zip(&self.layers).enumerate().map(|(i, (layer, record))| {
            if layer.name() != record.kind {
                return Err(unfit(format!(
                    "layer {i} is {} but the snapshot has {}",
                    layer.name(),
                    record.kind
                )));
            }
            let arrays = parts.by_ref().take(record.parts);
            let arrays = arrays
                .map(|part| Array::from_bytes(&part.bytes, Shape::from(part.shape.as_slice()), part.dtype));
            let arrays = arrays.collect::<strata_tensor::Result<Vec<_>>>()?;
            if arrays.len() != record.parts {
                return Err(unfit(format!("arrays of layer {i} are missing")));
            }
            let (format, length, next) = (record.format.clone(), record.length, record.next);
            if length != self.tokens.len() && record.kind != LayerState::SHARED {
                let tokens = self.tokens.len();
                return Err(unfit(format!("layer {i} holds {length} positions of {tokens} tokens")));
            }
            layer.restored(Saved { format, length, next, arrays }).map_err(|error| match error {
                Error::Snapshot { reason } => unfit(format!("layer {i}: {reason}")),
                other => other,
            })
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(State { layers, position: self.tokens.len(), rows: None, in_round: false, recording: None })
    }
}

impl State {
    /// Copies the state of one sequence that has read exactly `tokens`.
    ///
    /// # Errors
    /// [`Error::Snapshot`] for a batch or for another number of tokens; what MLX reports.
    pub fn snapshot(&self, namespace: &str, tokens: &[u32]) -> Result<Snapshot> {
        let reason = match self.row_positions()[..] {
            _ if self.in_round => "a round is open".to_owned(),
            [position] if position == tokens.len() => String::new(),
            [position] => format!("the sequence has read {position} tokens, not {}", tokens.len()),
            ref rows => format!("a batch of {} rows has no snapshot; extract a row first", rows.len()),
        };
        if !reason.is_empty() {
            return Err(Error::Snapshot { reason });
        }
        let alone;
        let state = if self.rows.is_some() {
            alone = self.extract(0)?;
            &alone
        } else {
            self
        };
        let saved = state.layers.iter().map(LayerState::saved).collect::<Result<Vec<_>>>()?;
        eval(saved.iter().flat_map(|saved| &saved.arrays))?;
        let mut snapshot = Snapshot {
            namespace: namespace.to_owned(),
            tokens: tokens.to_vec(),
            layers: vec![],
            parts: vec![],
        };
        for (layer, saved) in state.layers.iter().zip(saved) {
            let (kind, parts) = (layer.name().to_owned(), saved.arrays.len());
            let Saved { format, length, next, arrays } = saved;
            snapshot.layers.push(LayerRecord { kind, format, length, next, parts });
            for array in arrays {
                let (dtype, shape) = (array.dtype(), array.shape().to_vec());
                snapshot.parts.push(Part { dtype, shape, bytes: array.to_bytes()? });
            }
        }
        Ok(snapshot)
    }
}

//! Keys and values of every position, in buffers that grow in steps (mlx-lm's `KVCache`, models/cache.py).

use crate::error::{Error, Result};
use crate::read::AttentionRead;
use crate::state::Phase;
use strata_contracts::KernelSet;
use strata_tensor::{Array, ops};

/// Positions by which buffers grow.
const STEP: usize = 256;

/// Keys and values of every position so far.
#[derive(Debug, Clone)]
pub struct PlainCache {
    kv_heads: u32,
    head_dim: u32,
    kernels: KernelSet,
    /// Keys and values `[B, Hkv, capacity, D]`.
    buffers: Option<(Array, Array)>,
    length: usize,
}

impl PlainCache {
    /// An empty cache.
    pub fn new(kv_heads: u32, head_dim: u32, kernels: KernelSet) -> Self {
        Self { kv_heads, head_dim, kernels, buffers: None, length: 0 }
    }

    /// As [`LayerState::append`](crate::LayerState::append).
    ///
    /// # Errors
    /// [`Error::Shape`]; what MLX reports.
    pub fn append(&mut self, keys: &Array, values: &Array, _phase: Phase) -> Result<AttentionRead> {
        let shape = keys.shape();
        if shape.len() != 4 || shape[1] != self.kv_heads as i32 || shape[3] != self.head_dim as i32 {
            return Err(Error::Shape { kv_heads: self.kv_heads, head_dim: self.head_dim, found: shape });
        }
        let added = shape[2] as usize;
        let end = self.length + added;
        let (old_keys, old_values) = match self.buffers.take() {
            Some((k, v)) if end <= k.dim(2) as usize => (k, v),
            old => {
                let grow = |old: Option<&Array>, new: &Array| self.grown(old, new);
                let grown = old.as_ref().map_or_else(
                    || Ok((grow(None, keys)?, grow(None, values)?)),
                    |(k, v)| Ok((grow(Some(k), keys)?, grow(Some(v), values)?)),
                );
                match grown {
                    Ok(buffers) => buffers,
                    Err(error) => {
                        self.buffers = old;
                        return Err(error);
                    }
                }
            }
        };
        let (start, stop) = (self.length as i32, end as i32);
        let updated = old_keys
            .slice_update_axis(keys, 2, start, stop)
            .and_then(|k| Ok((k, old_values.slice_update_axis(values, 2, start, stop)?)));
        let (k, v) = match updated {
            Ok(buffers) => buffers,
            Err(error) => {
                self.buffers = Some((old_keys, old_values));
                return Err(error.into());
            }
        };
        let read = AttentionRead::dense(
            k.slice_axis(2, 0, stop)?,
            v.slice_axis(2, 0, stop)?,
            added > 1,
            self.kernels,
        );
        self.buffers = Some((k, v));
        self.length = end;
        Ok(read)
    }

    /// A buffer with room for `new` behind the live part of `old`.
    fn grown(&self, old: Option<&Array>, new: &Array) -> Result<Array> {
        let mut shape = new.shape().to_vec();
        shape[2] = (shape[2] as usize).next_multiple_of(STEP) as i32;
        let room = ops::zeros(shape.as_slice(), new.dtype())?;
        let Some(old) = old else { return Ok(room) };
        let live = if self.length.is_multiple_of(STEP) {
            old.clone()
        } else {
            old.slice_axis(2, 0, self.length as i32)?
        };
        Ok(ops::concatenate(&[&live, &room], 2)?)
    }

    /// Gives up the newest `tokens` positions.
    ///
    /// # Errors
    /// [`Error::Trim`] when there are fewer.
    pub fn trim(&mut self, tokens: usize) -> Result<()> {
        self.length =
            self.length.checked_sub(tokens).ok_or(Error::Trim { asked: tokens, held: self.length })?;
        Ok(())
    }

    /// The live keys and values, oldest first.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn live(&self) -> Result<Option<(Array, Array)>> {
        let Some((k, v)) = &self.buffers else { return Ok(None) };
        let end = self.length as i32;
        Ok(Some((k.slice_axis(2, 0, end)?, v.slice_axis(2, 0, end)?)))
    }

    pub(crate) fn arrays(&self) -> Vec<&Array> {
        self.buffers.iter().flat_map(|(k, v)| [k, v]).collect()
    }
}

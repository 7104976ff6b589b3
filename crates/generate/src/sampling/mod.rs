//! From logits to the next id, for one sequence: penalties and bias, then filters, then the draw
//! (mlx-lm `sample_utils.py`, 0.32.2).
//!
//! The sequence has a random key of its own, so neighbours and global state cannot change what it draws.

mod filter;
mod penalty;

use crate::error::Result;
use penalty::History;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use strata_contracts::SamplingOptions;
use strata_kernels::sample::{self, Draw};
use strata_tensor::random::{Key, categorical, uniform};
use strata_tensor::{Array, Dtype};

/// Draws the ids of one sequence.
pub struct Sampler {
    options: SamplingOptions,
    key: Key,
    history: History,
    /// uint32 ids `[1, N]` and float32 biases `[1, N]`.
    bias: Option<(Array, Array)>,
    /// Strata's host kernel draws, from logits: mlx-lm normalises them first, which may round neighbours to equals, and draws
    /// by Gumbel noise for each token.
    host_kernels: bool,
}

impl Sampler {
    /// A sampler at the end of `prompt`.
    ///
    /// # Errors
    /// Options out of range, a biased id that is not below `vocab_size`, or what MLX reports.
    pub fn new(options: &SamplingOptions, prompt: &[u32], vocab_size: u32) -> Result<Self> {
        let options = options.clone().validated()?;
        let seed = options.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let bias = bias(&options, vocab_size)?;
        let history = History::new(&options, prompt)?;
        Ok(Self { key: Key::new(seed)?, history, bias, options, host_kernels: false })
    }

    /// The same, where Strata's host kernels run ([`State::host_kernels`](strata_state::State::host_kernels)).
    #[must_use]
    pub fn with_host_kernels(self, host_kernels: bool) -> Self {
        Self { host_kernels, ..self }
    }

    /// The next id, uint32 `[1]`, from logits `[1, V]`, which stay in their own type up to the draw.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn next(&mut self, logits: &Array) -> Result<Array> {
        let mut logits = logits.clone();
        if let Some((ids, values)) = &self.bias {
            logits = logits.scatter_add_axis(ids, &values.astype(logits.dtype())?, -1)?;
        }
        logits = self.history.penalise(&logits, &self.options)?;
        let next = if self.host_kernels {
            self.draw_on_host(&logits)?
        } else {
            self.draw(logits.subtract(&logits.logsumexp(-1, true)?)?)?
        };
        self.history.push(&next)?;
        Ok(next)
    }

    fn draw_on_host(&mut self, logits: &Array) -> Result<Array> {
        let &SamplingOptions { temperature, top_p, min_p, top_k, .. } = &self.options;
        if temperature == 0.0 {
            return Ok(sample::argmax(logits)?);
        }
        let mut keys = self.key.split(2)?;
        let uniform = uniform(0.0, 1.0, [1], Dtype::Float32, &keys[0])?;
        self.key = keys.swap_remove(1);
        Ok(sample::draw(logits, &uniform, Draw { temperature, top_p, min_p, top_k })?)
    }

    fn draw(&mut self, logprobs: Array) -> Result<Array> {
        let o = &self.options;
        if o.temperature == 0.0 {
            return Ok(logprobs.argmax(-1, false)?);
        }
        let mut kept = logprobs;
        if o.top_p < 1.0 {
            kept = filter::top_p(&kept, o.top_p)?;
        }
        if o.min_p > 0.0 {
            kept = filter::min_p(&kept, o.min_p)?;
        }
        if o.top_k > 0 && o.top_k < kept.dim(-1) as u32 {
            kept = filter::top_k(&kept, o.top_k as i32)?;
        }
        let mut keys = self.key.split(2)?;
        let tempered = kept.astype(Dtype::Float32)?.multiply_number(1.0 / o.temperature)?;
        let next = categorical(&tempered, -1, &keys[0])?;
        self.key = keys.swap_remove(1);
        Ok(next)
    }
}

/// The biases as arrays, each id once (later entries add up), every id checked.
fn bias(options: &SamplingOptions, vocab_size: u32) -> Result<Option<(Array, Array)>> {
    let (ids, values): (Vec<u32>, Vec<f32>) = options.logit_bias.iter().copied().unzip();
    if let Some(position) = ids.iter().position(|&id| id >= vocab_size) {
        return Err(crate::Error::TokenRange { id: ids[position], position, vocab_size });
    }
    if ids.is_empty() {
        return Ok(None);
    }
    let n = ids.len() as i32;
    Ok(Some((Array::from_slice(&ids, [1, n])?, Array::from_slice(&values, [1, n])?)))
}

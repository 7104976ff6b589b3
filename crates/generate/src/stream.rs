//! The token loop of one sequence: an iterator over new ids (mlx-lm `generate.py`, `generate_step`, 0.32.2).
//!
//! While the caller looks at a token, the next one is being computed: its graph is built and queued from the sampled
//! array before the value is read back.

use crate::error::Result;
use crate::prefill::{check_prompt, prefill, row};
use crate::sampling::Sampler;
use std::time::Instant;
use strata_contracts::{FinishReason, SamplingOptions, Statistics};
use strata_models::{DecodeStep, Graph};
use strata_state::State;
use strata_tensor::{Array, async_eval, memory};

/// How one sequence is generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// How tokens are drawn.
    pub sampling: SamplingOptions,
    /// Tokens to produce at most, a closing stop token included.
    pub max_tokens: usize,
    /// Ids that end the sequence.
    pub stop_tokens: Vec<u32>,
    /// Prompt tokens read in one forward pass.
    pub prefill_step: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sampling: SamplingOptions::default(),
            max_tokens: 256,
            stop_tokens: Vec::new(),
            prefill_step: 2048,
        }
    }
}

/// New ids of one sequence. Ends after a stop token (which is the last id given), at the token limit, or where the
/// model's context ends.
pub struct TokenStream<'a> {
    step: DecodeStep<'a>,
    state: &'a mut State,
    sampler: Sampler,
    options: Options,
    /// The sampled next id, `[1]`, queued but not read.
    pending: Option<Array>,
    finished: Option<FinishReason>,
    started: Instant,
    first_token: Option<Instant>,
    statistics: Statistics,
}

impl<'a> TokenStream<'a> {
    /// Reads the prompt behind what the state holds and queues the first token.
    ///
    /// # Errors
    /// A prompt that does not fit ([`check_prompt`]), options out of range, or what the graph reports.
    pub fn start(
        graph: &'a dyn Graph,
        state: &'a mut State,
        prompt: &[u32],
        options: Options,
    ) -> Result<Self> {
        let started = Instant::now();
        check_prompt(graph.declaration(), prompt, state.position())?;
        let mut sampler = Sampler::new(&options.sampling, prompt, graph.declaration().vocab_size)?
            .with_host_kernels(state.host_kernels());
        memory::reset_peak_memory()?;
        let (rest, last) = prompt.split_at(prompt.len() - 1);
        prefill(graph, state, rest, options.prefill_step)?;
        let mut step = DecodeStep::new(graph);
        let finished = (options.max_tokens == 0).then_some(FinishReason::Length);
        let pending = if finished.is_some() {
            prefill(graph, state, last, 1)?;
            None
        } else {
            Some(queue(&mut step, state, &mut sampler, &row(last)?)?)
        };
        Ok(Self {
            step,
            state,
            sampler,
            options,
            pending,
            finished,
            started,
            first_token: None,
            statistics: Statistics { prompt_tokens: prompt.len(), ..Statistics::default() },
        })
    }

    /// Why the stream ended; `None` while it goes on.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finished
    }

    /// Ends the stream before its time.
    pub fn cancel(&mut self, reason: FinishReason) {
        self.pending = None;
        self.finished.get_or_insert(reason);
    }

    /// Counts and times so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn advance(&mut self) -> Result<Option<u32>> {
        let Some(current) = self.pending.take() else { return Ok(None) };
        let produced = self.statistics.generated_tokens + 1;
        let room = self.state.position() < self.step.graph().declaration().context_length as usize;
        if produced < self.options.max_tokens && room {
            let next = queue(&mut self.step, self.state, &mut self.sampler, &current.reshape([1, 1])?)?;
            self.pending = Some(next);
        }
        let token = current.item::<u32>()?;
        self.record(produced)?;
        if self.options.stop_tokens.contains(&token) {
            self.cancel(FinishReason::Stop);
        } else if self.pending.is_none() {
            self.finished = Some(FinishReason::Length);
        }
        Ok(Some(token))
    }

    fn record(&mut self, produced: usize) -> Result<()> {
        let now = Instant::now();
        let first = *self.first_token.get_or_insert(now);
        self.statistics.generated_tokens = produced;
        self.statistics.first_token = first - self.started;
        self.statistics.decode = now - first;
        self.statistics.peak_memory_bytes = memory::peak_memory()? as u64;
        Ok(())
    }
}

impl Iterator for TokenStream<'_> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.advance().transpose();
        if matches!(result, Some(Err(_))) {
            self.cancel(FinishReason::Cancelled);
        }
        result
    }
}

/// Builds and queues one step: from ids `[1, 1]` to the next id `[1]`.
fn queue(step: &mut DecodeStep<'_>, state: &mut State, sampler: &mut Sampler, ids: &Array) -> Result<Array> {
    let next = sampler.next(&step.logits(ids, state)?)?;
    async_eval([&next])?;
    Ok(next)
}

//! Penalties on recent tokens. The recent ids live in the graph, not on the host: the next step is built before the
//! last id has been read.

use crate::error::Result;
use strata_contracts::SamplingOptions;
use strata_tensor::{Array, ops};

/// The newest ids of a sequence, if a penalty looks at them.
pub(super) struct History {
    /// uint32 `[1, n]`, oldest first; `None` when no penalty is on.
    recent: Option<Array>,
    window: i32,
}

impl History {
    pub(super) fn new(options: &SamplingOptions, prompt: &[u32]) -> Result<Self> {
        let on = options.repetition_penalty != 1.0
            || options.presence_penalty != 0.0
            || options.frequency_penalty != 0.0;
        let window = options.penalty_window.min(i32::MAX as u32) as i32;
        let start = prompt.len().saturating_sub(window as usize);
        let newest = &prompt[start..];
        let recent =
            if on && window > 0 { Some(Array::from_slice(newest, [1, newest.len() as i32])?) } else { None };
        Ok(Self { recent, window })
    }

    /// The logits `[1, V]` with every penalty applied: repetition, then presence, then frequency.
    pub(super) fn penalise(&self, logits: &Array, options: &SamplingOptions) -> Result<Array> {
        let Some(recent) = self.recent.as_ref().filter(|r| r.size() > 0) else { return Ok(logits.clone()) };
        let mut logits = logits.clone();
        if options.repetition_penalty != 1.0 {
            let penalty = logits.number(options.repetition_penalty)?;
            let found = logits.take_along_axis(recent, -1)?;
            let negative = found.less(&found.number(0.0)?)?;
            let penalised = ops::where_(&negative, &found.multiply(&penalty)?, &found.divide(&penalty)?)?;
            logits = logits.put_along_axis(recent, &penalised, -1)?;
        }
        if options.presence_penalty != 0.0 {
            // Every occurrence writes the same value, so a token is penalised once.
            let lowered = logits.take_along_axis(recent, -1)?.add_number(-options.presence_penalty)?;
            logits = logits.put_along_axis(recent, &lowered, -1)?;
        }
        if options.frequency_penalty != 0.0 {
            let each =
                ops::full(recent.shape(), &logits.number(-options.frequency_penalty)?, logits.dtype())?;
            logits = logits.scatter_add_axis(recent, &each, -1)?;
        }
        Ok(logits)
    }

    /// Takes the id `[1]` that was drawn.
    pub(super) fn push(&mut self, next: &Array) -> Result<()> {
        if let Some(recent) = &self.recent {
            let all = ops::concatenate(&[recent, &next.expand_dims(&[0])?], -1)?;
            let n = all.dim(-1);
            self.recent = Some(all.slice_axis(-1, (n - self.window).max(0), n)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalised(options: &SamplingOptions, prompt: &[u32]) -> Vec<f32> {
        let logits = Array::from_slice(&[1.0f32, -1.0, 2.0, 4.0], [1, 4]).unwrap();
        let history = History::new(options, prompt).unwrap();
        history.penalise(&logits, options).unwrap().to_vec().unwrap()
    }

    #[test]
    fn repetition_divides_positive_and_multiplies_negative_logits() {
        let options = SamplingOptions { repetition_penalty: 2.0, ..SamplingOptions::default() };
        assert_eq!(penalised(&options, &[0, 1, 1]), [0.5, -2.0, 2.0, 4.0]);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let presence = SamplingOptions { presence_penalty: 0.5, ..SamplingOptions::default() };
        assert_eq!(penalised(&presence, &[3, 3, 0]), [0.5, -1.0, 2.0, 3.5]);
        let frequency = SamplingOptions { frequency_penalty: 0.5, ..SamplingOptions::default() };
        assert_eq!(penalised(&frequency, &[3, 3, 0]), [0.5, -1.0, 2.0, 3.0]);
    }

    #[test]
    fn the_window_moves_with_the_tokens_drawn() {
        let options =
            SamplingOptions { presence_penalty: 1.0, penalty_window: 2, ..SamplingOptions::default() };
        let mut history = History::new(&options, &[0, 1, 2]).unwrap();
        history.push(&Array::from_slice(&[3u32], [1]).unwrap()).unwrap();
        assert_eq!(history.recent.unwrap().to_vec::<u32>().unwrap(), [2, 3]);
    }
}

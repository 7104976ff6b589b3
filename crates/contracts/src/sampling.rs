//! How the next token is drawn from the logits; ranges are checked once, here.
//!
//! Filters see the full untempered distribution in the order top-p, min-p, top-k, and temperature acts only on
//! the draw, as in mlx-lm's `make_sampler` (`sample_utils.py`, 0.32.2).

use serde::{Deserialize, Serialize};

/// Sampling options of one sequence. The default is greedy decoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingOptions {
    /// Divides the logits before the draw; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps the smallest set of tokens whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Divides positive and multiplies negative logits of recent tokens (CTRL, arXiv 1909.05858); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every recent token; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a recent token once an occurrence; 0 is off.
    pub frequency_penalty: f32,
    /// How many of the newest tokens, prompt included, the penalties look at.
    pub penalty_window: u32,
    /// Added to the logits of single tokens: (token id, bias).
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of this sequence's own random key; `None` draws one from the system.
    pub seed: Option<u64>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 20,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

/// An option outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{option} must be {range} but is {value}")]
pub struct SamplingError {
    /// Name of the option.
    pub option: &'static str,
    /// The legal range in words.
    pub range: &'static str,
    /// The value found.
    pub value: f32,
}

impl SamplingOptions {
    /// The options, if every one of them is in range.
    ///
    /// # Errors
    /// The first option that is outside its range or not a number.
    pub fn validated(self) -> Result<Self, SamplingError> {
        let check = |option, value: f32, ok: bool, range| {
            if ok { Ok(()) } else { Err(SamplingError { option, range, value }) }
        };
        let Self { temperature: t, top_p, min_p, repetition_penalty: r, .. } = self;
        check("temperature", t, t.is_finite() && t >= 0.0, "a finite number of at least 0")?;
        check("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1")?;
        check("min_p", min_p, (0.0..=1.0).contains(&min_p), "between 0 and 1")?;
        check("repetition_penalty", r, r.is_finite() && r > 0.0, "a finite number above 0")?;
        for (option, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            check(option, value, value.is_finite(), "a finite number")?;
        }
        for &(_, bias) in &self.logit_bias {
            check("logit_bias", bias, !bias.is_nan(), "a number")?;
        }
        Ok(self)
    }
}

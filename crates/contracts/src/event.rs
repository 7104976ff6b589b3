//! What a generation reports: why it ended and what it cost.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token or a stop string.
    Stop,
    /// The token limit or the context length.
    Length,
    /// The caller asked for an end.
    Cancelled,
}

/// Counts and times of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Statistics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens produced, a closing stop token included.
    pub generated_tokens: usize,
    /// From the start of the prompt to the first token.
    pub first_token: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Highest memory the runtime held, in bytes.
    pub peak_memory_bytes: u64,
}

impl Statistics {
    /// Prompt tokens read per second; 0 before the first token.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens, self.first_token)
    }

    /// Tokens per second after the first; 0 with fewer than two tokens.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

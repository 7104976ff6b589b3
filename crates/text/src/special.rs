//! The token ids that end a generation.
//!
//! Invariant: the set is the union of every source that names one, so no list can hide another's end token.

use crate::tokenizer::Tokenizer;

/// Ids that end a generation; the default set is empty and ends nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopTokens {
    ids: Vec<u32>,
}

/// Tokens that close a turn in common chat formats: ChatML, Llama 3, Llama 4, Gemma 1 to 3, Gemma 4, and Phi 3.
const TURN_ENDS: [&str; 6] = ["<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|end|>"];

impl StopTokens {
    /// The union of the tokenizer's own end token, the ids of `listed` (config.json's and
    /// generation_config.json's `eos_token_id`, both), and the closing tokens of common chat formats as far as the
    /// vocabulary has them as special tokens.
    ///
    /// The last group is wider than mlx-lm's set: checkpoints are often published with lists that lack the token
    /// their chat template ends a turn with, and no answer goes on after it. `<|end|>` is left out where there is
    /// `<|channel|>`: in that format (Harmony) one answer has several parts that each close with it.
    pub fn new(tokenizer: &Tokenizer, listed: impl IntoIterator<Item = u32>) -> Self {
        let harmony = tokenizer.token_to_id("<|channel|>").is_some();
        let turn_ends = TURN_ENDS
            .into_iter()
            .filter(|&token| !(harmony && token == "<|end|>"))
            .filter_map(|token| tokenizer.token_to_id(token))
            .filter(|&id| tokenizer.is_special(id));
        let mut ids: Vec<u32> = tokenizer.eos().into_iter().chain(listed).chain(turn_ends).collect();
        ids.sort_unstable();
        ids.dedup();
        Self { ids }
    }

    /// True if `id` ends the generation.
    pub fn contains(&self, id: u32) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    /// All ids, ascending.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }
}

//! Token ids to text, one at a time: never half a character, never a lost or doubled space.
//!
//! Invariants: (1) the deltas joined with the rest from `finish` are the text of the whole sequence; (2) a delta ends
//! on a character boundary, and U+FFFD appears only for bytes that nothing to come could complete; (3) a token
//! costs the same whether it is the tenth or the ten-thousandth. Holding back for stop strings is `stops`' business.

use crate::pieces::PieceRule;
use crate::tokenizer::Tokenizer;

/// Whether special tokens (`<|im_end|>`, `</s>`) appear in decoded text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Leave them out.
    Skip,
    /// Show them as the vocabulary spells them.
    Keep,
}

/// Text of a growing sequence of token ids.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    special: SpecialTokens,
    /// True until a token has contributed.
    first: bool,
    /// Leading characters still to be removed, see `PieceRule::leading_strip`.
    strip: Option<(char, usize)>,
    /// Bytes that do not make a whole character yet.
    pending: Vec<u8>,
    window: Window,
    delta: String,
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer, special: SpecialTokens) -> Self {
        let strip = tokenizer.rule().leading_strip();
        Self {
            tokenizer,
            special,
            first: true,
            strip,
            pending: Vec::new(),
            window: Window::default(),
            delta: String::new(),
        }
    }

    /// Takes the next id and returns the text that became certain with it, often empty. An id without a token adds
    /// nothing.
    pub fn push(&mut self, id: u32) -> &str {
        self.delta.clear();
        let skip = self.special == SpecialTokens::Skip && self.tokenizer.is_special(id);
        if !skip && let Some(token) = self.tokenizer.decoding_token(id) {
            if *self.tokenizer.rule() == PieceRule::Window {
                self.window.push(&self.tokenizer, id, &token, &mut self.delta);
            } else {
                self.tokenizer.rule().append(&token, self.first, &mut self.pending);
                take_whole_characters(&mut self.pending, &mut self.delta);
                self.strip_leading();
            }
            self.first = false;
        }
        &self.delta
    }

    /// The text still held back. A character cut off by the end comes as one U+FFFD.
    pub fn finish(mut self) -> String {
        self.delta.clear();
        self.delta.push_str(&String::from_utf8_lossy(&self.pending));
        self.strip_leading();
        self.delta.push_str(&self.window.held);
        self.delta
    }

    fn strip_leading(&mut self) {
        while let (Some((c, left)), false) = (self.strip, self.delta.is_empty()) {
            self.strip = (left > 0 && self.delta.starts_with(c)).then(|| {
                self.delta.remove(0);
                (c, left - 1)
            });
        }
    }
}

/// Moves what is certain from `bytes` to `text`: whole characters, and U+FFFD for bytes that can't become one.
/// An incomplete character at the end stays, so at most three bytes do.
fn take_whole_characters(bytes: &mut Vec<u8>, text: &mut String) {
    let mut certain = bytes.len();
    if let Some(last) = bytes.utf8_chunks().last()
        && !last.invalid().is_empty()
        // Only an unfinished character can be valid so far and still lack a continuation.
        && std::str::from_utf8(last.invalid()).is_err_and(|error| error.error_len().is_none())
    {
        certain -= last.invalid().len();
    }
    text.push_str(&String::from_utf8_lossy(&bytes[..certain]));
    bytes.drain(..certain);
}

/// Streaming for decoders without a piece rule: decode a few tokens of context without and with the new ones.
#[derive(Debug, Clone, Default)]
struct Window {
    /// Shown tokens that give the decoder its context.
    context: Vec<u32>,
    /// Tokens not shown yet, because the text still ends in U+FFFD.
    fresh: Vec<u32>,
    /// Text of `fresh` as it stands.
    held: String,
}

impl Window {
    /// Tokens of context; no decoder of the `tokenizers` crate looks further back than one.
    const CONTEXT: usize = 4;
    /// Tokens that may be held: a character has at most four bytes, so at most three lack a continuation.
    const HELD: usize = 3;

    fn push(&mut self, tokenizer: &Tokenizer, id: u32, token: &str, delta: &mut String) {
        self.fresh.push(id);
        let shown = tokenizer.decode_window(&self.context);
        let all = tokenizer.decode_window(&[&self.context[..], &self.fresh[..]].concat());
        self.held = match (&shown, &all) {
            (Some(shown), Some(all)) => all.strip_prefix(shown.as_str()).unwrap_or(token).to_owned(),
            // A decoder that fails says nothing about its token, so the token speaks for itself.
            _ => token.to_owned(),
        };
        if self.held.ends_with(char::REPLACEMENT_CHARACTER) && self.fresh.len() <= Self::HELD {
            return;
        }
        delta.push_str(&std::mem::take(&mut self.held));
        self.context.append(&mut self.fresh);
        self.context.drain(..self.context.len().saturating_sub(Self::CONTEXT));
    }
}

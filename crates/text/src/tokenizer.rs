//! Text to token ids and back, for the tokenizers that models publish as tokenizer.json.
//!
//! Invariant: a `Tokenizer` never truncates and never pads, whatever its file asks for. Decoding is the streaming
//! detokenizer run to its end, so streamed and whole text cannot differ. Chat prompts are made by `template`.

use crate::config::TokenizerConfig;
use crate::detokenize::{Detokenizer, SpecialTokens};
use crate::error::{Error, Result};
use crate::pieces::PieceRule;
use crate::template::{ChatTemplate, Message, RenderOptions};
use std::fs;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// A loaded tokenizer; clones share one vocabulary, and threads may share it too.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    model: tokenizers::Tokenizer,
    config: TokenizerConfig,
    rule: PieceRule,
    vocab_size: usize,
}

impl Tokenizer {
    /// Opens a model folder, or a tokenizer.json whose neighbours describe its special tokens.
    ///
    /// # Errors
    /// No tokenizer.json, a file that cannot be read, is not JSON or does not describe a tokenizer, and the errors
    /// of [`TokenizerConfig::read`].
    pub fn open(path: &Path) -> Result<Self> {
        let (file, folder) = if path.is_dir() {
            (path.join("tokenizer.json"), path)
        } else {
            (path.to_owned(), path.parent().unwrap_or(Path::new("")))
        };
        let json = fs::read(&file).map_err(|source| match source.kind() {
            ErrorKind::NotFound => Error::NoTokenizer { folder: folder.to_owned() },
            _ => Error::Read { path: file.clone(), source },
        })?;
        Self::parse(&json, TokenizerConfig::read(folder)?, &file.display().to_string())
    }

    /// A tokenizer from the text of a tokenizer.json.
    ///
    /// # Errors
    /// Text that is not JSON or does not describe a tokenizer.
    pub fn from_json(json: &[u8], config: TokenizerConfig) -> Result<Self> {
        Self::parse(json, config, "tokenizer.json")
    }

    /// Token ids of `text`. Special tokens written inside the text become their ids; `add_special` also puts those
    /// around it that the tokenizer's post-processor asks for, such as a beginning-of-sequence token.
    ///
    /// # Errors
    /// [`Error::Encode`] when the vocabulary has no way to spell the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        guarded(|| self.inner.model.encode_fast(text, add_special))
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|reason| Error::Encode { bytes: text.len(), reason })
    }

    /// Token ids of bytes that should be UTF-8, such as a command-line argument. Each maximal invalid part counts as
    /// one U+FFFD, as in Python's `bytes.decode("utf-8", "replace")`.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_bytes(&self, bytes: &[u8], add_special: bool) -> Result<Vec<u32>> {
        self.encode(&String::from_utf8_lossy(bytes), add_special)
    }

    /// Token ids of a prompt that bypasses the chat template. The post-processor's special tokens are added unless
    /// the text already begins with the beginning-of-sequence token, as mlx-lm's `stream_generate` does (0.32.2).
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let written = self.special_token("bos_token").is_some_and(|bos| text.starts_with(bos));
        self.encode(text, !written)
    }

    /// Token ids of a conversation. A model's own template decides alone about special tokens: nothing is added to
    /// what it writes, as in transformers' `apply_chat_template`, so there is one beginning-of-sequence token if the
    /// template writes one and none if it does not. The fallback templates write none, so
    /// for them the tokenizer adds what its post-processor asks for.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`] and [`Tokenizer::encode`].
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<u32>> {
        self.encode(&template.render(messages, options)?, template.source().is_fallback())
    }

    /// Text of a whole sequence: what a [`Detokenizer`] gives for it. Ids without a token (padding rows of an
    /// embedding table) give nothing.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> String {
        let mut stream = self.detokenizer(special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(stream.push(id));
        }
        text.push_str(&stream.finish());
        text
    }

    /// A streaming detokenizer at the start of a sequence.
    pub fn detokenizer(&self, special: SpecialTokens) -> Detokenizer {
        Detokenizer::new(self.clone(), special)
    }

    /// Id of a token given by its exact text in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.model.token_to_id(token)
    }

    /// Text of a token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.model.id_to_token(id)
    }

    /// One above the highest token id, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size
    }

    /// Text of a named special token, such as `bos_token`.
    pub fn special_token(&self, name: &str) -> Option<&str> {
        self.inner.config.special_tokens.get(name).map(String::as_str)
    }

    /// Id of the beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.token_to_id(self.special_token("bos_token")?)
    }

    /// Id of the tokenizer's own end-of-sequence token; [`crate::StopTokens`] gathers all that end a generation.
    pub fn eos(&self) -> Option<u32> {
        self.token_to_id(self.special_token("eos_token")?)
    }

    /// What the files beside tokenizer.json said.
    pub fn config(&self) -> &TokenizerConfig {
        &self.inner.config
    }

    /// True for a token that decoding leaves out under [`SpecialTokens::Skip`].
    pub fn is_special(&self, id: u32) -> bool {
        self.decoding_token(id)
            .is_some_and(|token| self.inner.model.get_added_vocabulary().is_special_token(&token))
    }

    /// The token's text as the decoder wants it: added tokens in the form that normalization gave them.
    pub(crate) fn decoding_token(&self, id: u32) -> Option<String> {
        self.inner
            .model
            .get_added_vocabulary()
            .simple_id_to_token(id)
            .or_else(|| tokenizers::Model::id_to_token(self.inner.model.get_model(), id))
    }

    pub(crate) fn rule(&self) -> &PieceRule {
        &self.inner.rule
    }

    /// The `tokenizers` crate's decoding of tokens that are all to be shown.
    pub(crate) fn decode_window(&self, ids: &[u32]) -> Option<String> {
        // Some decoders of the crate count `tokens.len() - 1`.
        if ids.is_empty() { Some(String::new()) } else { self.inner.model.decode(ids, false).ok() }
    }

    fn parse(json: &[u8], config: TokenizerConfig, origin: &str) -> Result<Self> {
        // The crate expects some parts to be well-formed JSON and panics otherwise, so syntax is checked first.
        serde_json::from_slice::<serde::de::IgnoredAny>(json)
            .map_err(|source| Error::Json { origin: origin.to_owned(), source })?;
        let refuse = |reason: String| Error::Tokenizer { origin: origin.to_owned(), reason };
        let mut model = guarded(|| tokenizers::Tokenizer::from_bytes(json)).map_err(refuse)?;
        model.with_truncation(None).map_err(|error| refuse(error.to_string()))?;
        model.with_padding(None);
        // A post-processor that names an unknown token shows only when it runs.
        guarded(|| model.encode_fast("", true)).map_err(refuse)?;

        let added = model.get_added_vocabulary().get_added_tokens_decoder().keys().max();
        let vocab_size = model.get_vocab_size(false).max(added.map_or(0, |&id| id as usize + 1));
        let rule = PieceRule::of(model.get_decoder());
        Ok(Self { inner: Arc::new(Inner { model, config, rule, vocab_size }) })
    }
}

/// Runs a call of the `tokenizers` crate. Descriptions come from anywhere, and the crate panics on some that its
/// reader lets pass (0.23.2: a post-processor with an unknown token); such a panic must stay an error of that file.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(format!("the `tokenizers` crate panicked: {}", text.unwrap_or("no reason given")))
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

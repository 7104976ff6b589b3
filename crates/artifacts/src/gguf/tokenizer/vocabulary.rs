//! The token table: texts, types and the ids with a role, checked against each other.

use super::SpecialIds;
use crate::gguf::error::GgufError;
use crate::gguf::metadata::{Metadata, Value, require};
use serde_json::{Map, json};
use std::collections::HashMap;

/// What a token is, `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// All tokens of a file. Texts are unique among the tokens that are in use.
pub(super) struct Vocabulary<'a> {
    pub(super) texts: Vec<&'a str>,
    pub(super) kinds: Vec<TokenKind>,
    pub(super) ids: SpecialIds,
    by_text: HashMap<&'a str, usize>,
}

/// Control tokens that end an answer in the chat formats in use (llama.cpp, `src/llama-vocab.cpp`, the list of
/// end-of-generation tokens), beside those that the file names itself.
const ENDS: [&str; 10] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

impl<'a> Vocabulary<'a> {
    pub(super) fn read(metadata: &Metadata<'a>, rows: usize) -> Result<Self, GgufError> {
        let key = "tokenizer.ggml.tokens";
        let texts = metadata.strings(key)?;
        if texts.is_empty() || texts.len() > rows {
            return Err(GgufError::KeyValue {
                key: key.to_owned(),
                found: format!("an array of {} tokens", texts.len()),
                requirement: format!("from 1 to {rows} tokens, the rows of the embedding table"),
            });
        }
        let mut kinds = read_kinds(metadata, texts.len())?;
        let ids = read_ids(metadata, &texts, &mut kinds)?;
        let mut by_text = HashMap::with_capacity(texts.len());
        for (id, &text) in texts.iter().enumerate() {
            if kinds[id] == TokenKind::Unused && by_text.contains_key(text) {
                continue;
            }
            if let Some(first) = by_text.insert(text, id) {
                return Err(GgufError::DuplicateToken { first, second: id, text: text.to_owned() });
            }
        }
        Ok(Self { texts, kinds, ids, by_text })
    }

    /// The id of a text.
    pub(super) fn id(&self, text: &str) -> Option<usize> {
        self.by_text.get(text).copied()
    }

    /// The `vocab` map of tokenizer.json, in order of ids.
    pub(super) fn map(&self) -> serde_json::Value {
        let entries = self.texts.iter().enumerate().filter(|&(id, text)| self.id(text) == Some(id));
        entries.map(|(id, &text)| (text.to_owned(), json!(id))).collect::<Map<_, _>>().into()
    }

    /// Tokens that are found in the raw text before anything else: control tokens, which decoding may hide, and
    /// user-defined ones, which it always shows.
    pub(super) fn added_tokens(&self) -> Vec<serde_json::Value> {
        let entries = self.texts.iter().zip(&self.kinds).enumerate();
        entries
            .filter_map(|(id, (&content, kind))| {
                let special = match kind {
                    TokenKind::Control | TokenKind::Unknown => true,
                    TokenKind::UserDefined => false,
                    _ => return None,
                };
                Some(json!({
                    "id": id,
                    "content": content,
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": false,
                    "special": special,
                }))
            })
            .collect()
    }
}

fn read_kinds(metadata: &Metadata<'_>, tokens: usize) -> Result<Vec<TokenKind>, GgufError> {
    let key = "tokenizer.ggml.token_type";
    let Some(array) = metadata.array(key)? else { return Ok(vec![TokenKind::Normal; tokens]) };
    if array.len() != tokens {
        return Err(GgufError::TableLength { key, found: array.len(), expected: tokens });
    }
    let kind = |value| {
        let code = match value {
            Value::Unsigned(code) => code as i64,
            Value::Signed(code) => code,
            _ => -1,
        };
        Ok(match code {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            // 0 is "undefined"; no text gives such a token.
            0 | 5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => {
                return Err(GgufError::KeyValue {
                    key: key.to_owned(),
                    found: format!("an array with the value {value:?}"),
                    requirement: "an array of integers from 0 to 6".to_owned(),
                });
            }
        })
    };
    array.iter().map(kind).collect()
}

/// The tokens with a role; those that mark a border are control tokens whatever the table says.
fn read_ids(
    metadata: &Metadata<'_>,
    texts: &[&str],
    kinds: &mut [TokenKind],
) -> Result<SpecialIds, GgufError> {
    let id = |name: &str| -> Result<Option<usize>, GgufError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match metadata.u32(&key)?.map(|id| id as usize) {
            // Some converters write -1 as an unsigned number for "none".
            Some(id) if id == u32::MAX as usize => Ok(None),
            Some(id) if id >= texts.len() => Err(GgufError::KeyValue {
                key,
                found: id.to_string(),
                requirement: format!("below {}, the number of tokens", texts.len()),
            }),
            id => Ok(id),
        }
    };
    let bos = id("bos")?;
    let mut end: Vec<usize> = [id("eos")?, id("eot")?, id("eom")?].into_iter().flatten().collect();
    for &id in bos.iter().chain(&end) {
        if matches!(kinds[id], TokenKind::Normal | TokenKind::UserDefined) {
            kinds[id] = TokenKind::Control;
        }
    }
    let controls =
        || texts.iter().zip(kinds.iter()).enumerate().filter(|(_, (_, kind))| **kind == TokenKind::Control);
    end.extend(controls().filter(|(_, (text, _))| ENDS.contains(text)).map(|(id, _)| id));
    let mut seen = std::collections::HashSet::new();
    end.retain(|id| seen.insert(*id));
    Ok(SpecialIds { bos, end, pad: id("padding")?, unknown: id("unknown")? })
}

/// A table that must have one entry a token.
pub(super) fn scores(metadata: &Metadata<'_>, tokens: usize) -> Result<Vec<f32>, GgufError> {
    let key = "tokenizer.ggml.scores";
    let array = require(key, metadata.array(key)?)?;
    if array.len() != tokens {
        return Err(GgufError::TableLength { key, found: array.len(), expected: tokens });
    }
    let score = |value| match value {
        Value::F32(score) if !score.is_nan() => Ok(score),
        other => Err(GgufError::KeyValue {
            key: key.to_owned(),
            found: format!("an array with the value {other:?}"),
            requirement: "an array of floats".to_owned(),
        }),
    };
    array.iter().map(score).collect()
}

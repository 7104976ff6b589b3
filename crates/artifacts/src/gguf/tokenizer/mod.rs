//! tokenizer.json and tokenizer_config.json from the `tokenizer.*` metadata of a GGUF file.
//!
//! The JSON is that of the crate and Python package `tokenizers` (0.23). Which text gives which ids follows
//! llama.cpp (`src/llama-vocab.cpp`), with special tokens in the text recognised.

mod byte_level;
mod pre;
mod sentence_piece;
mod vocabulary;

use super::error::GgufError;
use super::metadata::{Metadata, require};
use serde_json::{Map, Value, json};
use vocabulary::Vocabulary;

/// The files of a tokenizer, and the ids that the model's configuration repeats.
#[derive(Debug, Clone)]
pub struct TokenizerFiles {
    /// Content of tokenizer.json.
    pub tokenizer: Value,
    /// Content of tokenizer_config.json.
    pub config: Value,
    pub(super) ids: SpecialIds,
}

/// Ids of the tokens with a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SpecialIds {
    pub(super) bos: Option<usize>,
    /// Every token that ends an answer, the file's end-of-sequence token first.
    pub(super) end: Vec<usize>,
    pub(super) pad: Option<usize>,
    pub(super) unknown: Option<usize>,
}

/// What the two kinds of tokenizer have in different ways: the parts of tokenizer.json.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    model: Value,
    decoder: Value,
    /// Whether a file that does not say so puts the BOS token before every text.
    adds_bos: bool,
}

impl TokenizerFiles {
    /// Builds the tokenizer that `metadata` describes, for an embedding table of `rows` rows.
    ///
    /// # Errors
    /// A [`GgufError`] that names the key at fault, or the kind of tokenizer that is not supported.
    pub fn new(metadata: &Metadata<'_>, rows: usize) -> Result<Self, GgufError> {
        let vocabulary = Vocabulary::read(metadata, rows)?;
        let key = "tokenizer.ggml.model";
        let parts = match require(key, metadata.string(key)?)? {
            "gpt2" => byte_level::parts(metadata, &vocabulary)?,
            "llama" => sentence_piece::parts(metadata, &vocabulary)?,
            found => return Err(GgufError::TokenizerModel { found: found.to_owned() }),
        };
        let ids = &vocabulary.ids;
        let flag = |key: &str, default| metadata.bool(key).map(|flag| flag.unwrap_or(default));
        let bos = ids.bos.filter(|_| parts.adds_bos);
        let bos = if flag("tokenizer.ggml.add_bos_token", bos.is_some())? { ids.bos } else { None };
        let eos = ids.end.first().copied();
        let eos = if flag("tokenizer.ggml.add_eos_token", false)? { eos } else { None };

        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": vocabulary.added_tokens(),
            "normalizer": parts.normalizer,
            "pre_tokenizer": parts.pre_tokenizer,
            "post_processor": template(&vocabulary, bos, eos),
            "decoder": parts.decoder,
            "model": parts.model,
        });
        let config = tokenizer_config(metadata, &vocabulary, bos.is_some(), eos.is_some())?;
        Ok(Self { tokenizer, config, ids: vocabulary.ids })
    }
}

/// The post-processor that puts BOS and EOS around a text; callers encode rendered chat templates without it, so
/// that exactly one BOS results.
fn template(vocabulary: &Vocabulary<'_>, bos: Option<usize>, eos: Option<usize>) -> Value {
    if bos.is_none() && eos.is_none() {
        return Value::Null;
    }
    let special = |id: usize| json!({ "SpecialToken": { "id": vocabulary.texts[id], "type_id": 0 } });
    let sequence = |id: &str, kind: u8| json!({ "Sequence": { "id": id, "type_id": kind } });
    let around = |text: Value| -> Vec<Value> {
        bos.map(special).into_iter().chain([text]).chain(eos.map(special)).collect()
    };
    let mut specials = Map::new();
    for id in bos.into_iter().chain(eos) {
        let text = vocabulary.texts[id];
        specials.insert(text.to_owned(), json!({ "id": text, "ids": [id], "tokens": [text] }));
    }
    let pair: Vec<Value> = around(sequence("A", 0)).into_iter().chain(around(sequence("B", 1))).collect();
    json!({
        "type": "TemplateProcessing",
        "single": around(sequence("A", 0)),
        "pair": pair,
        "special_tokens": specials,
    })
}

fn tokenizer_config(
    metadata: &Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
    adds_bos: bool,
    adds_eos: bool,
) -> Result<Value, GgufError> {
    let ids = &vocabulary.ids;
    let text = |id: Option<usize>| id.map_or(Value::Null, |id| json!(vocabulary.texts[id]));
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text(ids.bos),
        "eos_token": text(ids.end.first().copied()),
        "pad_token": text(ids.pad),
        "unk_token": text(ids.unknown),
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        "clean_up_tokenization_spaces": false,
    });
    if let Some(template) = metadata.string("tokenizer.chat_template")? {
        config["chat_template"] = json!(template);
    }
    Ok(config)
}

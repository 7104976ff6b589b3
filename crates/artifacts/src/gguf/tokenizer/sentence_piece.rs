//! SentencePiece BPE (llama 2, gemma): pieces with scores, spaces written as `▁`, unknown characters as bytes.
//!
//! SentencePiece merges the neighbours whose joined piece has the highest score. With merges ranked by that score
//! the BPE of `tokenizers` does the same, as in transformers' conversion (`convert_slow_tokenizer.py`, 5.24).

use super::Parts;
use super::vocabulary::{TokenKind, Vocabulary, scores};
use crate::gguf::error::GgufError;
use crate::gguf::metadata::Metadata;
use serde_json::{Value, json};
use std::cmp::Reverse;

pub(super) fn parts(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Parts, GgufError> {
    let prefix = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut normalizers = vec![json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" })];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let unknown = vocabulary.ids.unknown.map(|id| vocabulary.texts[id]);
    Ok(Parts {
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        pre_tokenizer: Value::Null,
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocabulary.map(),
            "merges": merges(metadata, vocabulary)?,
        }),
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        adds_bos: true,
    })
}

/// Every way to join two pieces to a third, best score first, longer left halves first among equals.
fn merges(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Vec<[String; 2]>, GgufError> {
    let scores = scores(metadata, vocabulary.texts.len())?;
    // Control, byte and unused pieces are never made of text.
    let joins = |id: usize| matches!(vocabulary.kinds[id], TokenKind::Normal | TokenKind::UserDefined);
    let piece = |text: &str| vocabulary.id(text).filter(|&id| joins(id));
    let mut merges = Vec::new();
    for (id, &text) in vocabulary.texts.iter().enumerate().filter(|&(id, _)| joins(id)) {
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if let (Some(_), Some(_)) = (piece(left), piece(right)) {
                merges.push((scores[id], left, right));
            }
        }
    }
    merges.sort_by(|a, b| {
        let lengths = |&(_, left, right): &(f32, &str, &str)| Reverse((left.len(), right.len()));
        b.0.total_cmp(&a.0).then_with(|| lengths(a).cmp(&lengths(b)))
    });
    Ok(merges.into_iter().map(|(_, left, right)| [left.to_owned(), right.to_owned()]).collect())
}

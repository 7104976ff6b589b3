//! GPT-2 style byte-level BPE: merges from the file, words by the regular expressions of the `pre` kind.

use super::vocabulary::Vocabulary;
use super::{Parts, pre};
use crate::gguf::error::GgufError;
use crate::gguf::metadata::Metadata;
use serde_json::{Value, json};

pub(super) fn parts(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Parts, GgufError> {
    let kind = metadata.string("tokenizer.ggml.pre")?.unwrap_or("default");
    let pre = pre::lookup(kind)?;
    let splits = pre.splits.iter().map(|pattern| {
        json!({
            "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false,
        })
    });
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let steps: Vec<Value> = splits.chain([bytes.clone()]).collect();
    Ok(Parts {
        normalizer: if pre.composes { json!({ "type": "NFC" }) } else { Value::Null },
        pre_tokenizer: json!({ "type": "Sequence", "pretokenizers": steps }),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.whole_words_first,
            "vocab": vocabulary.map(),
            "merges": merges(metadata, vocabulary)?,
        }),
        decoder: bytes,
        adds_bos: pre.adds_bos,
    })
}

/// Pairs of token texts. A merge is two texts with one space between them; a text may begin with a space.
fn merges(metadata: &Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<Vec<[String; 2]>, GgufError> {
    let texts = metadata.strings("tokenizer.ggml.merges")?;
    let pair = |(index, &text): (usize, &&str)| {
        let wrong = || GgufError::Merge { index, text: text.to_owned() };
        let after_first = text.chars().next().map_or(0, char::len_utf8);
        let space = after_first + text[after_first..].find(' ').ok_or_else(wrong)?;
        let (left, right) = (&text[..space], &text[space + 1..]);
        let known = [left, right, &format!("{left}{right}")].iter().all(|text| vocabulary.id(text).is_some());
        if known { Ok([left.to_owned(), right.to_owned()]) } else { Err(wrong()) }
    };
    texts.iter().enumerate().map(pair).collect()
}

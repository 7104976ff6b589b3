//! Small tokenizers of the two kinds that language models use, as tokenizer.json text.

use serde_json::{Map, Value, json};
use strata_text::{Tokenizer, TokenizerConfig};

/// GPT-2's spelling of each byte (openai/gpt-2, src/encoder.py).
pub(crate) fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !printable(byte)).count();
    char::from_u32(256 + before as u32).unwrap()
}

pub(crate) fn spell(text: &str) -> String {
    text.bytes().map(byte_char).collect()
}

/// Byte-level BPE: 256 bytes in order, four merges, then special tokens from id 260.
/// The emoji 😀 is F0 9F 98 80, and the merges make F0 9F and 98 80 tokens of their own.
pub(crate) fn byte_level_json() -> Value {
    let mut vocab: Map<String, Value> =
        (0..=255u8).map(|byte| (byte_char(byte).to_string(), json!(byte))).collect();
    let halves = ["h e", "l l"].map(str::to_owned);
    let emoji: Vec<char> = "😀".bytes().map(byte_char).collect();
    let emoji = [format!("{} {}", emoji[0], emoji[1]), format!("{} {}", emoji[2], emoji[3])];
    let merges: Vec<String> = halves.into_iter().chain(emoji).collect();
    for merge in &merges {
        vocab.insert(merge.replace(' ', ""), json!(vocab.len()));
    }
    let special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<｜end▁of▁sentence｜>"];
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "!"},
        "added_tokens": added(260, &special),
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": bos_processor(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    })
}

/// SentencePiece style as in Llama 2: `<unk>`, `<s>`, `</s>`, 256 byte tokens from id 3, then pieces from id 259.
pub(crate) fn sentence_json() -> Value {
    let mut vocab: Map<String, Value> = ["<unk>", "<s>", "</s>"]
        .iter()
        .enumerate()
        .map(|(id, token)| ((*token).to_owned(), json!(id)))
        .collect();
    for byte in 0..=255u8 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(3 + u32::from(byte)));
    }
    for piece in ["▁", "h", "i", "▁h", "▁hi", "é", "▁▁", "."] {
        vocab.insert(piece.to_owned(), json!(vocab.len()));
    }
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(0, &["<unk>", "<s>", "</s>"]),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": ["▁ h", "▁h i", "▁ ▁"]},
    })
}

pub(crate) fn byte_level() -> Tokenizer {
    open(&byte_level_json())
}

pub(crate) fn sentence() -> Tokenizer {
    open(&sentence_json())
}

pub(crate) fn open(json: &Value) -> Tokenizer {
    let special_tokens =
        [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    let config = TokenizerConfig { special_tokens: special_tokens.into(), ..TokenizerConfig::default() };
    Tokenizer::from_json(json.to_string().as_bytes(), config).unwrap()
}

/// The same description in the `tokenizers` crate itself, as the oracle.
pub(crate) fn oracle(json: &Value) -> tokenizers::Tokenizer {
    json.to_string().parse().unwrap()
}

fn added(first: usize, tokens: &[&str]) -> Value {
    tokens
        .iter()
        .enumerate()
        .map(|(at, token)| {
            json!({"id": first + at, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect()
}

fn bos_processor() -> Value {
    json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [260], "tokens": ["<s>"]}}})
}

//! The bytes that one token contributes to a text, derived once from the tokenizer's decoder.
//!
//! Invariant: for the decoders of language models the text of a sequence is the lossy UTF-8 decoding of its pieces
//! joined, with at most a few leading characters removed. That is what makes streaming exact and constant in cost.
//! A decoder that does not work piece by piece is left to `PieceRule::Window` and the `tokenizers` crate.
//!
//! Difference to that crate: its byte fallback turns a whole run of `<0x..>` tokens into one U+FFFD per token when
//! any byte of the run is wrong. A stream would have to hold back such a run to its end. Here wrong bytes are
//! replaced where they stand, as in Python's `decode("utf-8", "replace")` and mlx-lm's detokenizers (0.32.2).

use serde_json::Value;
use std::sync::LazyLock;
use tokenizers::DecoderWrapper;

/// How tokens become bytes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PieceRule {
    /// Byte-level BPE: each character of a token stands for one byte.
    ByteLevel,
    /// SentencePiece style: marks become spaces, `<0x..>` tokens become bytes.
    Sentence { replace: Vec<(String, String)>, byte_fallback: bool, strip: Option<(char, usize)> },
    /// As above with one mark, which is dropped from the first token where `drop_first`.
    Metaspace { mark: char, drop_first: bool },
    /// Anything else: decode a window of tokens before and after each new one, and take the difference.
    Window,
}

impl PieceRule {
    /// The rule of a decoder, read from its published JSON form.
    pub(crate) fn of(decoder: Option<&DecoderWrapper>) -> Self {
        decoder
            .and_then(|decoder| serde_json::to_value(decoder).ok())
            .and_then(|json| Self::from_json(&json))
            .unwrap_or(Self::Window)
    }

    /// Characters that are removed from the start of the text while they equal the first of the pair.
    pub(crate) fn leading_strip(&self) -> Option<(char, usize)> {
        match self {
            Self::Sentence { strip, .. } => *strip,
            _ => None,
        }
    }

    /// Appends the bytes of `token`; `first` says that no token came before it. Nothing under `Window`.
    pub(crate) fn append(&self, token: &str, first: bool, out: &mut Vec<u8>) {
        match self {
            Self::ByteLevel => append_byte_level(token, out),
            Self::Sentence { replace, byte_fallback, .. } => {
                let mut piece = token.to_owned();
                for (from, to) in replace {
                    piece = piece.replace(from, to);
                }
                match byte_token(&piece).filter(|_| *byte_fallback) {
                    Some(byte) => out.push(byte),
                    None => out.extend_from_slice(piece.as_bytes()),
                }
            }
            Self::Metaspace { mark, drop_first } => {
                let space = if first && *drop_first { "" } else { " " };
                out.extend_from_slice(token.replace(*mark, space).as_bytes());
            }
            Self::Window => {}
        }
    }

    fn from_json(decoder: &Value) -> Option<Self> {
        let steps = flatten(decoder)?;
        if let [only] = steps[..] {
            match kind(only) {
                "ByteLevel" => return Some(Self::ByteLevel),
                "Metaspace" => {
                    return Some(Self::Metaspace {
                        mark: only.get("replacement")?.as_str()?.chars().next()?,
                        drop_first: only.get("prepend_scheme")?.as_str()? != "never",
                    });
                }
                _ => {}
            }
        }
        // Llama 2, Gemma, Mistral and their kin: Replace*, ByteFallback?, Fuse, Strip?
        let mut steps = steps.into_iter().peekable();
        let mut replace = Vec::new();
        while let Some(step) = steps.next_if(|step| kind(step) == "Replace") {
            let from = step.get("pattern")?.get("String")?.as_str().filter(|from| !from.is_empty())?;
            replace.push((from.to_owned(), step.get("content")?.as_str()?.to_owned()));
        }
        let byte_fallback = steps.next_if(|step| kind(step) == "ByteFallback").is_some();
        steps.next_if(|step| kind(step) == "Fuse")?;
        let mut strip = None;
        if let Some(step) = steps.next_if(|step| kind(step) == "Strip" && step.get("stop") == Some(&0.into()))
        {
            let content = step.get("content")?.as_str()?.chars().next()?;
            strip = Some((content, step.get("start")?.as_u64()? as usize));
        }
        steps.next().is_none().then_some(Self::Sentence { replace, byte_fallback, strip })
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The steps of nested sequences in order.
fn flatten(decoder: &Value) -> Option<Vec<&Value>> {
    if kind(decoder) != "Sequence" {
        return Some(vec![decoder]);
    }
    let mut steps = Vec::new();
    for step in decoder.get("decoders")?.as_array()? {
        steps.extend(flatten(step)?);
    }
    Some(steps)
}

/// The byte of a token spelled `<0xE2>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

fn append_byte_level(token: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in token.chars() {
        let Some(byte) = BYTE_OF_CHAR.get(c as usize).copied().flatten() else {
            // A token with a character outside the table (an added one with a full-width bar) stands for itself.
            out.truncate(start);
            out.extend_from_slice(token.as_bytes());
            return;
        };
        out.push(byte);
    }
}

/// GPT-2's table (openai/gpt-2, src/encoder.py, `bytes_to_unicode`): printable Latin-1 characters stand for their own
/// byte, the other 68 bytes in ascending order are spelled by the characters from U+0100 on.
static BYTE_OF_CHAR: LazyLock<[Option<u8>; 324]> = LazyLock::new(|| {
    let mut table = [None; 324];
    let mut next = 256;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        if printable {
            table[byte as usize] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
});

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(decoder: &Value) -> PieceRule {
        let decoder: DecoderWrapper = serde_json::from_value(decoder.clone()).unwrap();
        PieceRule::of(Some(&decoder))
    }

    #[test]
    fn decoders_of_language_models_are_piecewise() {
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        assert_eq!(rule(&byte_level), PieceRule::ByteLevel);
        assert_eq!(rule(&json!({"type": "Sequence", "decoders": [byte_level]})), PieceRule::ByteLevel);
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let llama = json!({"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let marks = vec![("▁".to_owned(), " ".to_owned())];
        assert_eq!(
            rule(&llama),
            PieceRule::Sentence { replace: marks.clone(), byte_fallback: true, strip: Some((' ', 1)) }
        );
        let gemma =
            json!({"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]});
        assert_eq!(rule(&gemma), PieceRule::Sentence { replace: marks, byte_fallback: true, strip: None });
        let metaspace =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        assert_eq!(rule(&metaspace), PieceRule::Metaspace { mark: '▁', drop_first: true });
    }

    #[test]
    fn decoders_that_look_at_neighbours_are_left_to_the_window() {
        let trailing = json!({"type": "Strip", "content": " ", "start": 0, "stop": 1});
        for decoder in [
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            json!({"type": "BPEDecoder", "suffix": "</w>"}),
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, trailing]}),
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}),
        ] {
            assert_eq!(rule(&decoder), PieceRule::Window, "{decoder}");
        }
        assert_eq!(PieceRule::of(None), PieceRule::Window);
    }

    #[test]
    fn every_byte_has_one_character() {
        let mut seen: Vec<u8> = BYTE_OF_CHAR.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }
}

//! Streamed text against whole text. The truth is the `tokenizers` crate's own decoding, and Rust's lossy UTF-8
//! decoding where that crate decodes runs of byte tokens differently (see `pieces`).

use crate::common::{byte_level, byte_level_json, open, oracle, sentence, sentence_json, spell};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use strata_text::{SpecialTokens, Tokenizer};

/// Every delta, and last what `finish` gives.
fn deltas(tokenizer: &Tokenizer, ids: &[u32], special: SpecialTokens) -> Vec<String> {
    let mut stream = tokenizer.detokenizer(special);
    let mut deltas: Vec<String> = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
    deltas.push(stream.finish());
    deltas
}

fn bytes_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn b17_an_emoji_split_over_two_tokens_comes_whole_with_the_second() {
    let tokenizer = byte_level();
    assert_eq!(tokenizer.encode("😀", false).unwrap(), [258, 259]);
    assert_eq!(deltas(&tokenizer, &[258, 259], SpecialTokens::Skip), ["", "😀", ""]);
}

#[test]
fn b17_a_space_that_interrupts_a_character_is_kept_and_the_cut_is_marked_once() {
    let mut ids = vec![258];
    ids.extend(bytes_of(" x"));
    assert_eq!(deltas(&byte_level(), &ids, SpecialTokens::Skip), ["", "\u{fffd} ", "x", ""]);
}

#[test]
fn b17_a_character_cut_by_the_end_is_one_replacement_and_no_error() {
    for (tokenizer, first) in [(byte_level(), 0), (sentence(), 3)] {
        let ids: Vec<u32> = bytes_of("a😀")[..4].iter().map(|id| id + first).collect();
        assert_eq!(deltas(&tokenizer, &ids, SpecialTokens::Skip), ["a", "", "", "", "\u{fffd}"]);
    }
}

#[test]
fn b19_scalars_that_combine_are_each_sent_once() {
    for text in ["🏳\u{fe0f}\u{200d}🌈", "e\u{301}x"] {
        let json = {
            let mut json = byte_level_json();
            for c in text.chars() {
                let vocab = json["model"]["vocab"].as_object_mut().unwrap();
                let id = vocab.len();
                vocab.entry(spell(&c.to_string())).or_insert(json!(id));
            }
            json
        };
        let tokenizer = open(&json);
        let ids: Vec<u32> =
            text.chars().map(|c| tokenizer.token_to_id(&spell(&c.to_string())).unwrap()).collect();
        let mut expected: Vec<String> = text.chars().map(String::from).collect();
        expected.push(String::new());
        assert_eq!(deltas(&tokenizer, &ids, SpecialTokens::Skip), expected);
    }
}

#[test]
fn b19_a_special_token_outside_the_byte_table_stands_for_itself() {
    let tokenizer = byte_level();
    let end = tokenizer.token_to_id("<｜end▁of▁sentence｜>").unwrap();
    let ids = [u32::from(b'e'), 258, end];
    assert_eq!(deltas(&tokenizer, &ids, SpecialTokens::Keep), ["e", "", "\u{fffd}<｜end▁of▁sentence｜>", ""]);
    assert_eq!(deltas(&tokenizer, &ids, SpecialTokens::Skip), ["e", "", "", "\u{fffd}"]);
}

#[test]
fn the_mark_of_the_first_word_is_no_space_and_the_others_are() {
    let tokenizer = sentence();
    let hi = tokenizer.token_to_id("▁hi").unwrap();
    let two = tokenizer.token_to_id("▁▁").unwrap();
    assert_eq!(deltas(&tokenizer, &[1, hi, hi], SpecialTokens::Skip), ["", "hi", " hi", ""]);
    assert_eq!(deltas(&tokenizer, &[1, hi, hi], SpecialTokens::Keep), ["<s>", " hi", " hi", ""]);
    assert_eq!(deltas(&tokenizer, &[two, hi], SpecialTokens::Skip), [" ", " hi", ""]);
}

#[test]
fn a_bare_byte_token_that_no_character_can_start_with_is_replaced_at_once() {
    assert_eq!(deltas(&byte_level(), &[0xff, 0x61], SpecialTokens::Skip), ["\u{fffd}", "a", ""]);
}

#[test]
fn ids_without_a_token_give_nothing() {
    for tokenizer in [byte_level(), sentence()] {
        assert_eq!(tokenizer.decode(&[u32::MAX, 5_000], SpecialTokens::Keep), "");
    }
}

#[test]
fn other_decoders_stream_through_the_window() {
    let cases = [
        (json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), vec!["un", "##do", "it", "."]),
        (json!({"type": "BPEDecoder", "suffix": "</w>"}), vec!["un", "do</w>", "it</w>", "."]),
        (json!(null), vec!["un", "do", "it"]),
        (
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
            vec!["▁un", "do", "▁it"],
        ),
    ];
    for (decoder, words) in cases {
        let vocab: serde_json::Map<_, _> =
            words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
        let json = json!({"added_tokens": [], "decoder": decoder,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "un"}});
        let (tokenizer, oracle) = (open(&json), oracle(&json));
        let ids: Vec<u32> = (0..40).map(|step| step * 7 % words.len() as u32).collect();
        for end in 0..=ids.len() {
            let whole = if end == 0 { String::new() } else { oracle.decode(&ids[..end], false).unwrap() };
            assert_eq!(deltas(&tokenizer, &ids[..end], SpecialTokens::Keep).concat(), whole, "{json}");
        }
    }
}

#[test]
fn a_token_costs_the_same_late_in_a_sequence() {
    // Work is not measured in time but in what is kept: nothing may grow with the sequence.
    let tokenizer = byte_level();
    let mut stream = tokenizer.detokenizer(SpecialTokens::Skip);
    for step in 0..50_000u32 {
        stream.push(step % 256);
    }
    assert!(format!("{stream:?}").len() < 2_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn byte_level_streams_equal_one_decode(ids in vec(0u32..270, 0..40), keep: bool) {
        let tokenizer = BYTE_LEVEL.with(|(tokenizer, _)| tokenizer.clone());
        let special = if keep { SpecialTokens::Keep } else { SpecialTokens::Skip };
        let parts = deltas(&tokenizer, &ids, special);
        let joined = parts.concat();
        let oracle = BYTE_LEVEL.with(|(_, oracle)| oracle.decode(&ids, !keep).unwrap());
        prop_assert_eq!(&joined, &oracle);
        prop_assert_eq!(&tokenizer.decode(&ids, special), &joined);
    }

    #[test]
    fn sentence_streams_equal_one_decode(ids in vec(0u32..268, 0..40), keep: bool) {
        let tokenizer = SENTENCE.with(|(tokenizer, _)| tokenizer.clone());
        let special = if keep { SpecialTokens::Keep } else { SpecialTokens::Skip };
        let mut bytes = Vec::new();
        for &id in ids.iter().filter(|&&id| keep || id > 2) {
            match id {
                3..=258 => bytes.push((id - 3) as u8),
                _ => bytes.extend(tokenizer.id_to_token(id).unwrap_or_default().replace('▁', " ").into_bytes()),
            }
        }
        let whole = String::from_utf8_lossy(&bytes);
        let whole = whole.strip_prefix(' ').unwrap_or(&whole);
        prop_assert_eq!(deltas(&tokenizer, &ids, special).concat(), whole);
    }

    #[test]
    fn texts_come_back_in_whole_characters(text in "\\PC{0,20}( |\n|😀|🏳️‍🌈|ไทย|عربى|e\u{301}){0,5}\\PC{0,9}") {
        for pair in [&BYTE_LEVEL, &SENTENCE] {
            let (ids, parts, oracle) = pair.with(|(tokenizer, oracle)| {
                let ids = tokenizer.encode(&text, false).unwrap();
                let parts = deltas(tokenizer, &ids, SpecialTokens::Keep);
                let decoded = oracle.decode(&ids, false).unwrap();
                (ids, parts, decoded)
            });
            prop_assert_eq!(&parts.concat(), &text, "{:?}", ids);
            prop_assert_eq!(&oracle, &text);
            let replaced = parts.iter().any(|part| part.contains(char::REPLACEMENT_CHARACTER));
            prop_assert_eq!(replaced, text.contains(char::REPLACEMENT_CHARACTER));
        }
    }
}

thread_local! {
    static BYTE_LEVEL: (Tokenizer, tokenizers::Tokenizer) = (byte_level(), oracle(&byte_level_json()));
    static SENTENCE: (Tokenizer, tokenizers::Tokenizer) = (sentence(), oracle(&sentence_json()));
}

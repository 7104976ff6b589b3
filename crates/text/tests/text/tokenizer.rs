//! Loading, encoding and special tokens, with model folders and files as users have them.

use crate::common::{byte_level, byte_level_json, open, sentence};
use proptest::prelude::*;
use serde_json::json;
use std::fs;
use std::path::Path;
use strata_text::{
    ChatTemplate, Error, Message, RenderOptions, SpecialTokens, StopTokens, TemplateSource, Tokenizer,
    TokenizerConfig,
};

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

#[test]
fn a_folder_and_its_tokenizer_file_open_alike() {
    let json = byte_level_json().to_string();
    let folder = folder(&[
        ("tokenizer.json", &json),
        (
            "tokenizer_config.json",
            r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true, "pad_token": null}"#,
        ),
        ("special_tokens_map.json", r#"{"bos_token": "other", "unk_token": "!"}"#),
    ]);
    for path in [folder.path().to_owned(), folder.path().join("tokenizer.json")] {
        let tokenizer = Tokenizer::open(&path).unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(260), Some(261)));
        assert_eq!(tokenizer.special_token("unk_token"), Some("!"));
        assert_eq!(tokenizer.special_token("pad_token"), None);
        assert_eq!(tokenizer.vocab_size(), 265);
        assert_eq!(tokenizer.id_to_token(262).as_deref(), Some("<|im_start|>"));
        assert!(tokenizer.is_special(262) && !tokenizer.is_special(65) && !tokenizer.is_special(9_999));
    }
}

#[test]
fn a_file_that_asks_for_truncation_and_padding_gets_neither() {
    assert_eq!(byte_level().encode("hello there", true).unwrap().len(), 9);
    assert_eq!(byte_level().encode("hello", false).unwrap(), [256, 257, u32::from(b'o')]);
}

#[test]
fn special_tokens_inside_a_text_become_their_ids() {
    assert_eq!(byte_level().encode("a<|im_end|>b", false).unwrap(), [97, 263, 98]);
}

#[test]
fn bytes_that_are_not_utf8_are_encoded_as_replacement_characters() {
    let tokenizer = sentence();
    let ids = tokenizer.encode_bytes(b"h\xff\xf0\x9fi", false).unwrap();
    assert_eq!(ids, tokenizer.encode("h\u{fffd}\u{fffd}i", false).unwrap());
    assert_eq!(tokenizer.decode(&ids, SpecialTokens::Skip), "h\u{fffd}\u{fffd}i");
}

/// What `bytes.decode("utf-8", "replace")` gives in Python, which is what a Hugging Face tokenizer is then given.
#[test]
fn invalid_bytes_are_replaced_as_python_replaces_them() {
    let tokenizer = byte_level();
    let cases: [(&[u8], &str); 8] = [
        (b"h\xffi", "h\u{fffd}i"),
        // A character cut short is one replacement, and so is each byte that begins none.
        (b"a\xf0\x9f\x98 b", "a\u{fffd} b"),
        (b"\xe2\x82", "\u{fffd}"),
        (b"\xf0\x9fz", "\u{fffd}z"),
        // Overlong forms, surrogates and numbers beyond the last character have no valid beginning.
        (b"\xc0\xaf", "\u{fffd}\u{fffd}"),
        (b"\xed\xa0\x80x", "\u{fffd}\u{fffd}\u{fffd}x"),
        (b"\xf4\x90\x80\x80", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
        (b"ok \xe2\x82\xac", "ok \u{20ac}"),
    ];
    for (bytes, text) in cases {
        let expected = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.encode_bytes(bytes, false).unwrap(), expected, "{bytes:?}");
    }
}

#[test]
fn missing_and_broken_files_have_their_own_errors() {
    let empty = folder(&[]);
    assert!(matches!(Tokenizer::open(empty.path()), Err(Error::NoTokenizer { .. })));
    assert!(matches!(Tokenizer::open(Path::new("/nowhere/tokenizer.json")), Err(Error::NoTokenizer { .. })));
    let good = byte_level_json().to_string();
    for (files, expected) in [
        (vec![("tokenizer.json", "")], "is not valid JSON"),
        (vec![("tokenizer.json", &good[..good.len() / 2])], "is not valid JSON"),
        (vec![("tokenizer.json", "[1, 2]")], "does not describe a usable tokenizer"),
        (vec![("tokenizer.json", r#"{"model": {"type": "Magic"}}"#)], "does not describe a usable tokenizer"),
        (
            vec![("tokenizer.json", &good), ("tokenizer_config.json", "{")],
            "tokenizer_config.json is not valid JSON",
        ),
        (vec![("tokenizer.json", &good), ("tokenizer_config.json", "[]")], "must be a JSON object"),
        (
            vec![("tokenizer.json", &good), ("tokenizer_config.json", r#"{"eos_token": 7}"#)],
            "`eos_token` must be a string",
        ),
        (
            vec![("tokenizer.json", &good), ("special_tokens_map.json", r#"{"eos_token": {}}"#)],
            "`eos_token.content` must be",
        ),
        (
            vec![("tokenizer.json", &good), ("tokenizer_config.json", r#"{"chat_template": 7}"#)],
            "`chat_template` must be",
        ),
        (
            vec![
                ("tokenizer.json", &good),
                ("tokenizer_config.json", r#"{"chat_template": [{"name": "x"}]}"#),
            ],
            "`chat_template[0].template`",
        ),
    ] {
        let folder = folder(&files);
        let error = Tokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} lacks {expected}");
    }
}

#[test]
fn a_truncated_decoder_section_is_an_error() {
    // The `tokenizers` crate panics on this one when it is given the bytes directly.
    let cut = r#"{"decoder": {"type": "ByteLevel", "#;
    assert!(matches!(
        Tokenizer::from_json(cut.as_bytes(), TokenizerConfig::default()),
        Err(Error::Json { .. })
    ));
}

#[test]
fn a_post_processor_with_an_unknown_token_is_refused_when_the_file_is_read() {
    let mut json = byte_level_json();
    json["post_processor"]["special_tokens"] = json!({});
    let error = Tokenizer::from_json(json.to_string().as_bytes(), TokenizerConfig::default()).unwrap_err();
    assert!(matches!(error, Error::Tokenizer { .. }), "{error:?}");
}

#[test]
fn a_text_that_the_vocabulary_cannot_spell_is_an_error() {
    let json =
        json!({"added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}});
    assert!(matches!(open(&json).encode("b", false), Err(Error::Encode { bytes: 1, .. })));
}

#[test]
fn b21_a_template_that_writes_bos_gives_exactly_one() {
    let config = TokenizerConfig::from_json(
        r#"{"bos_token": "<s>", "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"}"#,
        "tokenizer_config.json",
    )
    .unwrap();
    let tokenizer = Tokenizer::from_json(byte_level_json().to_string().as_bytes(), config).unwrap();
    let template = ChatTemplate::of(&tokenizer).unwrap();
    assert_eq!(template.source(), &TemplateSource::Model("tokenizer_config.json".to_owned()));
    let ids =
        tokenizer.encode_chat(&template, &[Message::new("user", "a")], &RenderOptions::default()).unwrap();
    assert_eq!(ids, [260, 97]);
}

#[test]
fn b21_raw_prompts_have_exactly_one_bos() {
    let tokenizer = byte_level();
    assert_eq!(tokenizer.encode_prompt("a").unwrap(), [260, 97]);
    assert_eq!(tokenizer.encode_prompt("<s>a").unwrap(), [260, 97]);
}

#[test]
fn b21_stop_tokens_are_the_union_of_all_lists_and_turn_ends() {
    let tokenizer = byte_level();
    assert_eq!(StopTokens::new(&tokenizer, []).ids(), [261, 263]);
    let stops = StopTokens::new(&tokenizer, [1, 106, 261]);
    assert_eq!(stops.ids(), [1, 106, 261, 263]);
    assert!(stops.contains(106) && !stops.contains(262));
    assert!(!StopTokens::default().contains(0));
}

#[test]
fn a_turn_end_counts_only_as_a_special_token_and_not_inside_harmony() {
    let with = |tokens: &[(&str, bool)]| {
        let mut json = byte_level_json();
        let list = json["added_tokens"].as_array_mut().unwrap();
        for (at, (token, special)) in tokens.iter().enumerate() {
            let mut entry = list[0].clone();
            entry["content"] = json!(token);
            entry["id"] = json!(265 + at);
            entry["special"] = json!(special);
            list.push(entry);
        }
        StopTokens::new(&open(&json), []).ids().to_vec()
    };
    assert_eq!(with(&[("<|end|>", true)]), [261, 263, 265]);
    assert_eq!(with(&[("<|end|>", false)]), [261, 263]);
    assert_eq!(with(&[("<|end|>", true), ("<|channel|>", true)]), [261, 263]);
}

#[test]
fn without_a_template_chatml_or_plain_lines_stand_in_and_bos_is_added() {
    let render = |tokenizer: &Tokenizer| {
        let template = ChatTemplate::of(tokenizer).unwrap();
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let messages = [Message::new("user", "hi")];
        let ids = tokenizer.encode_chat(&template, &messages, &options).unwrap();
        (template.source().clone(), template.render(&messages, &options).unwrap(), ids[0])
    };
    assert_eq!(
        render(&byte_level()),
        (TemplateSource::ChatMl, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n".to_owned(), 260)
    );
    let (source, text, _) = render(&sentence());
    assert_eq!((source, text.as_str()), (TemplateSource::Plain, "user: hi\nassistant:"));
}

#[test]
fn template_files_take_precedence_over_the_configuration() {
    let json = byte_level_json().to_string();
    let base = [
        ("tokenizer.json", json.as_str()),
        ("tokenizer_config.json", r#"{"chat_template": "config"}"#),
        ("chat_template.json", r#"{"chat_template": "processor"}"#),
    ];
    let check = |files: &[(&str, &str)], tools: bool| {
        let folder = folder(files);
        let template = ChatTemplate::of(&Tokenizer::open(folder.path()).unwrap()).unwrap();
        let options = RenderOptions { tools: tools.then(Vec::new), ..RenderOptions::default() };
        template.render(&[Message::new("user", "")], &options).unwrap()
    };
    assert_eq!(check(&base, false), "config");
    assert_eq!(check(&[base[0], base[2]], false), "processor");
    let files = [
        base[0],
        base[1],
        ("chat_template.jinja", "file"),
        ("additional_chat_templates/tool_use.jinja", "extra"),
    ];
    assert_eq!((check(&files, false), check(&files, true)), ("file".to_owned(), "extra".to_owned()));
    let named = r#"{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, {"name": "rag", "template": "{{ broken"}]}"#;
    let files = [base[0], ("tokenizer_config.json", named)];
    assert_eq!((check(&files, false), check(&files, true)), ("d".to_owned(), "t".to_owned()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_damaged_description_is_an_error_or_a_tokenizer_and_never_a_panic(
        at in 0usize..1_000_000, kind in 0u8..4, replacement: u8,
    ) {
        let mut json = byte_level_json();
        // Without the 256 single bytes the damage falls on the interesting parts more often.
        json["model"]["vocab"].as_object_mut().unwrap().retain(|_, id| id.as_u64().unwrap() % 9 == 0);
        json["model"]["merges"] = json!([]);
        let mut bytes = json.to_string().into_bytes();
        let at = at % bytes.len();
        match kind {
            0 => bytes.truncate(at),
            1 => bytes[at] = replacement,
            2 => bytes.insert(at, b'"' + replacement % 90),
            _ => { bytes.remove(at); }
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&bytes, TokenizerConfig::default()) {
            let _ = tokenizer.encode("hello 😀 <s>", true);
            let _ = tokenizer.decode(&[0, 258, 260, u32::MAX], SpecialTokens::Keep);
        }
    }
}

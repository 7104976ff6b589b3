//! Tokenizers made from GGUF metadata give llama.cpp's ids for the strings that tokenizers get wrong. Truth:
//! `fixtures/*.ids.json`, made by `fixtures/make_gguf_vocabularies.py`.

use serde_json::Value as Json;
use std::path::Path;
use strata_artifacts::gguf::{Gguf, TokenizerFiles};
use tokenizers::Tokenizer;

fn read(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

fn hard_strings() -> Vec<String> {
    serde_json::from_slice(&read("hard_strings.json")).unwrap()
}

fn tokenizer(file: &[u8]) -> Tokenizer {
    let gguf = Gguf::parse(file).unwrap();
    let files = TokenizerFiles::new(&gguf.metadata, 1 << 20).unwrap();
    Tokenizer::from_bytes(serde_json::to_vec(&files.tokenizer).unwrap()).unwrap()
}

/// Holds `tokenizer` against the ids of all hard strings.
fn check(name: &str, tokenizer: &Tokenizer, ids: &Json) {
    let expected: Vec<Vec<u32>> = serde_json::from_value(ids.clone()).unwrap();
    let strings = hard_strings();
    assert_eq!(strings.len(), expected.len());
    for (text, ids) in strings.iter().zip(expected) {
        let found = tokenizer.encode(text.as_str(), false).unwrap();
        assert_eq!(found.get_ids(), ids, "{name}: {text:?} gives {:?}", found.get_tokens());
    }
}

fn ids(name: &str) -> Json {
    let fixture: Json = serde_json::from_slice(&read(&format!("{name}.ids.json"))).unwrap();
    fixture["ids"].clone()
}

#[test]
fn smollm2_gives_llama_cpps_ids() {
    check("smollm2", &tokenizer(&read("smollm2.vocabulary.gguf")), &ids("smollm2"));
}

#[test]
fn gemma3_gives_llama_cpps_ids() {
    check("gemma3", &tokenizer(&read("gemma3.vocabulary.gguf")), &ids("gemma3"));
}

#[test]
fn a_space_before_each_text_gives_llama_cpps_ids() {
    let mut file = read("gemma3.vocabulary.gguf");
    let key = b"tokenizer.ggml.add_space_prefix";
    // After the key: type (4 bytes), the flag.
    let at = file.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    file[at] = 1;
    let tokenizer = tokenizer(&file);
    check("prefix", &tokenizer, &ids("prefix"));
    let ids = tokenizer.encode("word", false).unwrap().get_ids().to_vec();
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "word");
}

#[test]
fn every_kind_of_pre_tokenizer_cuts_words_as_llama_cpp_does() {
    let whole = read("kinds.vocabulary.gguf");
    let key = b"tokenizer.ggml.pre";
    // After the key: type (4 bytes), length (8 bytes), `smollm`.
    let at = whole.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    let kinds = ids("kinds");
    for (kind, ids) in kinds.as_object().unwrap() {
        let length = (kind.len() as u64).to_le_bytes();
        let file = [&whole[..at], &length, kind.as_bytes(), &whole[at + 14..]].concat();
        check(kind, &tokenizer(&file), ids);
    }
}

#[test]
fn decoding_gives_the_text_back() {
    for name in ["smollm2", "gemma3"] {
        let tokenizer = tokenizer(&read(&format!("{name}.vocabulary.gguf")));
        for text in hard_strings() {
            // Gemma writes a space as the character that stands for it, so that one cannot come back.
            if name == "gemma3" && text.contains('▁') {
                continue;
            }
            let ids = tokenizer.encode(text.as_str(), false).unwrap().get_ids().to_vec();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text, "{name}");
        }
    }
}

//! `ls`, `inspect` and `pull`, with the tiny folder and a tiny GGUF file.

use crate::support::{Home, tiny_gguf};
use serde_json::{Value, json};

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn an_empty_store_lists_nothing_and_says_what_to_do() {
    let run = Home::new().run(&["ls"]);
    assert!(run.err.contains("strata pull"), "{run:?}");
    assert_eq!(run.ok(), "");
    assert_eq!(parsed(&Home::new().run(&["ls", "--json"]).ok()), json!([]));
}

#[test]
fn inspect_describes_a_folder() {
    let home = Home::new();
    let folder = home.model();
    let text = home.run(&["inspect", folder.to_str().unwrap()]).ok();
    assert!(text.contains("llama") && text.contains("512 tokens"), "{text}");
    let object = parsed(&home.run(&["inspect", folder.to_str().unwrap(), "--json"]).ok());
    for (key, expected) in [
        ("family", json!("llama")),
        ("layers", json!(2)),
        ("vocab_size", json!(101)),
        ("context_length", json!(512)),
        ("quantization", json!("none")),
        // 2 layers, keys and values, 3 heads of 16, 2 bytes, 1000 tokens
        ("kv_bytes_per_1k_tokens", json!(2 * 2 * 3 * 16 * 2 * 1000)),
    ] {
        assert_eq!(object[key], expected, "{key}");
    }
    assert_eq!(object["weight_bytes"].as_u64(), object["parameters"].as_u64().map(|n| 4 * n));
}

#[test]
fn pull_of_a_folder_says_where_it_is() {
    let home = Home::new();
    let folder = home.model().to_str().unwrap().to_owned();
    assert_eq!(home.run(&["pull", &folder]).ok().trim_end(), folder);
    assert_eq!(home.run(&["pull", "--quiet", &folder]).ok(), "");
}

#[test]
fn a_gguf_file_is_pulled_once_listed_and_answers() {
    let home = Home::new();
    let file = tiny_gguf(&home);
    let folder = home.run(&["pull", &file]).ok();
    assert_eq!(home.run(&["pull", &file]).ok(), folder);
    let list = parsed(&home.run(&["ls", "--json"]).ok());
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!((&list[0]["path"], &list[0]["origin"]), (&json!(folder.trim_end()), &json!(file)));
    let name = list[0]["name"].as_str().unwrap();
    assert!(home.run(&["ls"]).ok().starts_with(name));
    for model in [&file, name] {
        home.run(&["generate", "--raw", "--temp", "0", "-n", "3", "--model", model, "hello"]).ok();
    }
}

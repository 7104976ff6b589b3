//! Quantized keys and values, asked for on the command line. The model has one layer with heads of 32 values.

use crate::support::Home;
use serde_json::Value;
use std::fs;

const PROMPT: &str = "the quick brown fox jumps over";

fn answer(home: &Home, args: &[&str]) -> String {
    let args: Vec<&str> = [PROMPT, "--raw", "--json", "-n", "40"].iter().chain(args).copied().collect();
    let object: Value = serde_json::from_str(&home.generate(&args).ok()).unwrap();
    object["tokens"].to_string()
}

#[test]
fn quantized_keys_and_values_are_used_from_their_start_on() {
    let home = Home::of("llama/kv");
    for kernels in ["reference", "fast"] {
        let answer = |args: &[&str]| answer(&home, &[args, &["--kernels", kernels]].concat());
        let plain = answer(&[]);
        let quantized = answer(&["--kv-bits", "2", "--kv-group-size", "32", "--quantized-kv-start", "0"]);
        assert_ne!(quantized, plain, "2 bits leave a trace");
        // mlx-lm's default is 5000 tokens.
        assert_eq!(answer(&["--kv-bits", "2", "--kv-group-size", "32"]), plain);
        assert_eq!(
            answer(&["--kv-bits", "2", "--kv-group-size", "32", "--quantized-kv-start", "500"]),
            plain
        );
        let late = answer(&["--kv-bits", "2", "--kv-group-size", "32", "--quantized-kv-start", "33"]);
        assert!(late != quantized && late != plain, "between the two");
    }
}

#[test]
fn keys_and_values_are_rounded_to_a_codebook_when_that_is_asked_for() {
    let home = Home::of("llama/kv");
    for kernels in ["reference", "fast"] {
        let answer = |args: &[&str]| answer(&home, &[args, &["--kernels", kernels]].concat());
        let plain = answer(&[]);
        let coarse = answer(&["--kv-turbo", "1"]);
        assert_ne!(coarse, plain, "1 bit leaves a trace");
        assert_eq!(answer(&["--kv-turbo", "1,1"]), coarse);
        assert_ne!(answer(&["--kv-turbo", "1,4"]), coarse);
        assert_eq!(answer(&["--kv-turbo", "1", "--quantized-kv-start", "500"]), plain);
    }
}

#[test]
fn a_kv_config_json_is_applied_when_it_is_asked_for() {
    let home = Home::of("llama/kv");
    let plain = answer(&home, &[]);
    let quantized = answer(&home, &["--kv-bits", "2", "--kv-group-size", "32", "--quantized-kv-start", "0"]);
    home.generate(&[PROMPT, "--kv-config", "auto"]).refused(&["holds no kv_config.json"]);
    let text = r#"[{"layer_idx": 0, "bits": 2, "group_size": 32}]"#;
    fs::write(home.model().join("kv_config.json"), text).unwrap();
    assert_eq!(answer(&home, &[]), plain, "the maker's proposal is not applied unasked");
    assert_eq!(answer(&home, &["--kv-config", "auto"]), quantized);
    assert_eq!(answer(&home, &["--kv-config", "auto", "--quantized-kv-start", "500"]), plain);
    let elsewhere = home.path("mine.json");
    fs::write(&elsewhere, text).unwrap();
    fs::remove_file(home.model().join("kv_config.json")).unwrap();
    assert_eq!(answer(&home, &["--kv-config", elsewhere.to_str().unwrap()]), quantized);
}

#[test]
fn a_kv_config_json_that_does_not_fit_is_refused() {
    let home = Home::of("llama/kv");
    for (text, words) in [
        ("[{", "is not valid JSON"),
        ("{\"layer_idx\": 0}", "must be a list of layers"),
        ("[]", "at least one layer"),
        (r#"[{"layer_idx": 0, "bits": 7}]"#, "entry 0: affine quantization has no 7-bit form"),
        (r#"[{"layer_idx": 0, "bits": 8}]"#, "layer 0 cannot keep keys and values in this format: "),
        (r#"[{"layer_idx": 3, "bits": 8, "group_size": 32}]"#, "number of layers is 1"),
    ] {
        fs::write(home.model().join("kv_config.json"), text).unwrap();
        home.generate(&[PROMPT, "--kv-config", "auto"]).refused(&[words]);
    }
    home.generate(&[PROMPT, "--kv-config", "nowhere.json"]).refused(&["there is no file nowhere.json"]);
    home.generate(&[PROMPT, "--kv-bits", "8", "--quantized-kv-start", "0"]).refused(&["layer 0 cannot keep"]);
}

#[test]
fn chat_and_bench_take_the_same_flags() {
    let home = Home::of("llama/kv");
    let model = home.model();
    let kv = ["--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", "4"];
    let bench = ["bench", "--json", "--prompt", "8", "--gen", "4", "--runs", "1", "--batch", "2", "--model"];
    let bench = [&bench[..], &[model.to_str().unwrap()], &kv].concat();
    let object: Value = serde_json::from_str(&home.run(&bench).ok()).unwrap();
    assert_eq!(object["kv"]["start"], 4);
    assert_eq!(object["kv"]["format"]["affine"]["bits"], 8, "{object}");
    let chat = [&["chat", "--quiet", "-n", "4", "--model", model.to_str().unwrap()][..], &kv].concat();
    let run = crate::support::pipe(home.command(&chat), b"hello\nand more\n");
    run.ok();
}

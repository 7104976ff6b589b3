//! The first line of a file says what the file is.

use super::Problem;
use super::tree::{File, Tree};

/// A crate's root may begin with its README, which says so at more length.
const README: &str = "#![doc = include_str!(\"../README.md\")]";

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let faulty = |file: &File| {
        let first = file.text.lines().next().unwrap_or_default();
        match file.extension() {
            "rs" if says_something(first, "//!") || file.name() == "lib.rs" && first == README => None,
            "rs" => {
                Some("must begin with `//!`: what the file is, its invariant, what it leaves to neighbours")
            }
            "metal" | "cu" | "cuh" | "cpp" | "h"
                if says_something(first, "//") || first.starts_with("/*") =>
            {
                None
            }
            "metal" | "cu" | "cuh" | "cpp" | "h" => {
                Some("must begin with a comment that says what the file is")
            }
            _ => None,
        }
    };
    tree.files().filter_map(|file| Some(Problem::at(&file.path, 1, faulty(file)?))).collect()
}

fn says_something(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|words| !words.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_header_is_found() {
        let found = check(&Tree::of(&[
            ("crates/a/src/bare.rs", "use std::fmt;\n"),
            ("crates/a/src/empty.rs", "//!\n"),
            ("crates/a/src/good.rs", "//! Masks only.\n"),
            ("crates/a/src/lib.rs", "#![doc = include_str!(\"../README.md\")]\n"),
            ("crates/a/src/x/bare.metal", "uint i;\n"),
            ("crates/a/src/x/good.cu", "// One thread a row.\n"),
        ]));
        let paths: Vec<_> = found.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["crates/a/src/bare.rs", "crates/a/src/empty.rs", "crates/a/src/x/bare.metal"]);
    }
}

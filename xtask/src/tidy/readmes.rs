//! Every crate has a README with an example, and a library's example is compiled as a test of its documentation.

use super::Problem;
use super::tree::{File, Tree};

const INCLUDE: &str = "#![doc = include_str!(\"../README.md\")]";

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let crates = tree.crates().filter(|(folder, _)| folder.starts_with("crates/"));
    crates.filter_map(|(folder, _)| check_crate(tree, folder)).collect()
}

fn check_crate(tree: &Tree, folder: &str) -> Option<Problem> {
    let path = format!("{folder}/README.md");
    let Some(readme) = tree.file(&path) else {
        return Some(Problem::in_file(
            path,
            "is missing: what the crate owns, what it never does, an example",
        ));
    };
    let Some(library) = tree.file(&format!("{folder}/src/lib.rs")) else {
        let has_example = readme.text.contains("```");
        return (!has_example).then(|| Problem::in_file(path, "has no example (a block between ``` lines)"));
    };
    if !has_compiled_example(readme) {
        let message = "has no example that is compiled: a block that opens with ``` or ```no_run";
        return Some(Problem::in_file(path, message));
    }
    let is_included = library.text.lines().any(|line| line == INCLUDE);
    (!is_included)
        .then(|| Problem::in_file(&library.path, format!("lacks `{INCLUDE}`, so the example is not tested")))
}

/// Whether some block is Rust that rustdoc compiles.
fn has_compiled_example(readme: &File) -> bool {
    // Fences alternate: the first, third, … open a block.
    let openings = readme.text.lines().filter_map(|line| line.strip_prefix("```")).step_by(2);
    openings.into_iter().any(|language| matches!(language.trim(), "" | "rust" | "no_run" | "rust,no_run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_readme_a_missing_example_and_an_untested_one_are_found() {
        let found = check(&Tree::of(&[
            ("crates/a/Cargo.toml", ""),
            ("crates/b/Cargo.toml", ""),
            ("crates/b/README.md", "# b\n```text\nx\n```\n"),
            ("crates/b/src/lib.rs", INCLUDE),
            ("crates/c/Cargo.toml", ""),
            ("crates/c/README.md", "# c\n```sh\nc\n```\n```\nlet a = 1;\n```\n"),
            ("crates/c/src/lib.rs", "//! c\n"),
            ("crates/d/Cargo.toml", ""),
            ("crates/d/README.md", "# d\n```no_run\nlet a = 1;\n```\n"),
            ("crates/d/src/lib.rs", INCLUDE),
            ("xtask/Cargo.toml", ""),
        ]));
        let paths: Vec<_> = found.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["crates/a/README.md", "crates/b/README.md", "crates/c/src/lib.rs"], "{found:?}");
    }
}

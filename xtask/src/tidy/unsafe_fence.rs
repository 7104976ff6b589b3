//! `unsafe` has an address: the few places that talk to C, to SIMD registers or to a file mapping. Every crate says
//! at its root whether it forbids `unsafe` or only fences it in.

use super::Problem;
use super::source::words;
use super::tree::Tree;

/// Files and folders that may hold `unsafe`.
const ADDRESSES: [&str; 4] =
    ["crates/sys/", "crates/tensor/src/raw/", "crates/kernels/src/host/", "crates/artifacts/src/mmap.rs"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, source) in tree.rust() {
        if ADDRESSES.iter().any(|address| file.path.starts_with(address)) {
            continue;
        }
        for (line, _) in words(&source.code, "unsafe") {
            let message = format!(
                "`unsafe` outside its addresses ({}): go through the safe layer",
                ADDRESSES.join(", ")
            );
            problems.push(Problem::at(&file.path, line, message));
        }
    }
    for (folder, _) in tree.crates() {
        problems.extend(root_line(tree, folder));
    }
    problems
}

/// The lint line of a crate's root; the crate of raw declarations is all fence.
fn root_line(tree: &Tree, folder: &str) -> Option<Problem> {
    if folder == "crates/sys" {
        return None;
    }
    let inside = format!("{folder}/");
    let lint = if ADDRESSES.iter().any(|address| address.starts_with(&inside)) {
        "#![deny(unsafe_code)]"
    } else {
        "#![forbid(unsafe_code)]"
    };
    let roots = ["src/lib.rs", "src/main.rs"].map(|root| format!("{folder}/{root}"));
    let mut present = roots.iter().filter_map(|root| tree.file(root)).peekable();
    if present.peek().is_none() {
        return Some(Problem::in_file(
            format!("{folder}/Cargo.toml"),
            "the crate has neither src/lib.rs nor src/main.rs",
        ));
    }
    let missing =
        present.find(|file| file.source.as_ref().is_some_and(|source| !source.code.contains(lint)))?;
    Some(Problem::in_file(&missing.path, format!("lacks the line `{lint}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unsafe_outside_its_addresses_is_found_by_line() {
        let found = check_one(&[
            (
                "crates/state/src/kv.rs",
                "//! unsafe in words is fine\nconst A: &str = \"unsafe\";\nunsafe fn b() {}\n",
            ),
            ("crates/tensor/src/raw/array.rs", "unsafe fn a() {}\n"),
            ("crates/artifacts/src/mmap.rs", "unsafe fn a() {}\n"),
            ("crates/kernels/src/host/pool.rs", "unsafe fn a() {}\n"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/state/src/kv.rs:3: `unsafe` outside"), "{found:?}");
    }

    #[test]
    fn a_crate_root_without_its_lint_is_found() {
        let found = check_one(&[
            ("crates/state/Cargo.toml", ""),
            ("crates/state/src/lib.rs", "#![deny(unsafe_code)]\n"),
            ("crates/tensor/Cargo.toml", ""),
            ("crates/tensor/src/lib.rs", "#![deny(unsafe_code)]\n"),
            ("crates/cli/Cargo.toml", ""),
            ("crates/cli/src/main.rs", "// #![forbid(unsafe_code)]\n"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("crates/cli/src/main.rs: lacks the line `#![forbid(unsafe_code)]`"),
            "{found:?}"
        );
        assert!(found[1].starts_with("crates/state/src/lib.rs: lacks"), "{found:?}");
    }
}

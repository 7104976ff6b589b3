//! `unsafe` has an address: the few places that talk to C, to SIMD registers or to a file mapping. Every crate says
//! at its root whether it forbids `unsafe` or only fences it in.

use super::Problem;
use super::source::words;
use super::tree::Tree;

/// What may hold `unsafe`, for people.
const ADDRESSES: &str =
    "crates/sys, crates/tensor/src/raw, the host parts of crates/kernels, crates/artifacts/src/mmap.rs";

/// Crates that have such a place; `crates/sys` is nothing else.
const FENCED: [&str; 3] = ["crates/tensor", "crates/kernels", "crates/artifacts"];

/// Whether a file may hold `unsafe`.
fn is_address(path: &str) -> bool {
    // `host/` is what the host kernels share; each of them has its own `host.rs` or `host/`.
    let is_host = |inside: &str| inside.split('/').any(|part| matches!(part, "host" | "host.rs"));
    path.starts_with("crates/sys/")
        || path.starts_with("crates/tensor/src/raw/")
        || path == "crates/artifacts/src/mmap.rs"
        || path.strip_prefix("crates/kernels/src/").is_some_and(is_host)
}

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, source) in tree.rust() {
        if is_address(&file.path) {
            continue;
        }
        for (line, _) in words(&source.code, "unsafe") {
            let message = format!("`unsafe` outside its addresses ({ADDRESSES}): go through the safe layer");
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
    let lint = if FENCED.contains(&folder) { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
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
            ("crates/kernels/src/attention/host.rs", "unsafe fn a() {}\n"),
            ("crates/kernels/src/attention/host/few.rs", "unsafe fn a() {}\n"),
            ("crates/kernels/src/attention/mod.rs", "unsafe fn a() {}\n"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("crates/kernels/src/attention/mod.rs:1: `unsafe` outside"), "{found:?}");
        assert!(found[1].starts_with("crates/state/src/kv.rs:3: `unsafe` outside"), "{found:?}");
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

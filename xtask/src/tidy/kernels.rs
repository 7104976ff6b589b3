//! A kernel is a folder: its contract, at least one implementation, and, once it is a node of MLX's graph, a reference
//! in tensor operations to measure it by. Without a node it is a part of other kernels, measured through them.

use super::Problem;
use super::tree::Tree;
use std::collections::BTreeSet;

const FOLDER: &str = "crates/kernels/src/";

/// Folders that are no kernels: what host kernels share, and pieces of source that device kernels share.
const SHARED: [&str; 2] = ["host", "shared"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let inside = tree.files().filter_map(|file| file.path.strip_prefix(FOLDER)?.split_once('/'));
    let kernels: BTreeSet<&str> =
        inside.map(|(kernel, _)| kernel).filter(|name| !SHARED.contains(name)).collect();
    kernels.into_iter().flat_map(|kernel| check_kernel(tree, kernel)).collect()
}

fn check_kernel(tree: &Tree, kernel: &str) -> Vec<Problem> {
    let folder = format!("{FOLDER}{kernel}");
    let has = |name: &str| tree.exists(&format!("{folder}/{name}"));
    let device = [format!("{kernel}.metal"), format!("{kernel}.cu")].iter().any(|name| has(name));
    let mut problems = Vec::new();
    if !has("mod.rs") {
        problems.push(Problem::in_file(&folder, "is a kernel without mod.rs, the contract"));
    }
    if (device || has("node.rs")) && !has("reference.rs") {
        let message = "is a kernel of MLX's graph without reference.rs, the formula in tensor operations";
        problems.push(Problem::in_file(&folder, message));
    }
    if !device && !has("host.rs") && !has("host") {
        let message =
            format!("is a kernel without an implementation: host.rs, {kernel}.metal or {kernel}.cu");
        problems.push(Problem::in_file(&folder, message));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_its_parts_is_found() {
        let found = check(&Tree::of(&[
            ("crates/kernels/src/lib.rs", ""),
            ("crates/kernels/src/host/pool.rs", ""),
            ("crates/kernels/src/norm/mod.rs", ""),
            ("crates/kernels/src/norm/reference.rs", ""),
            ("crates/kernels/src/norm/host.rs", ""),
            ("crates/kernels/src/part/mod.rs", ""),
            ("crates/kernels/src/part/host.rs", ""),
            ("crates/kernels/src/rope/mod.rs", ""),
            ("crates/kernels/src/rope/rope.metal", ""),
            ("crates/kernels/src/scan/mod.rs", ""),
            ("crates/kernels/src/scan/reference.rs", ""),
        ]));
        let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].starts_with("crates/kernels/src/rope: is a kernel of MLX's graph without reference.rs"),
            "{lines:?}"
        );
        assert!(
            lines[1].starts_with("crates/kernels/src/scan: is a kernel without an implementation"),
            "{lines:?}"
        );
    }
}

//! `cargo xtask tidy`: the rules of the house that a compiler does not know, one file each under `tidy/`.
//!
//! A check reads text and nothing else, so all of them run offline, in a moment, and when nothing builds. The last
//! test here runs them over the workspace: `cargo test` holds every rule that CI holds.

use anyhow::{Result, bail};
use std::fmt;
use std::path::Path;

mod docs;
mod families;
mod headers;
mod kernels;
mod layers;
mod length;
mod purity;
mod readmes;
mod source;
mod text;
mod tree;
mod unsafe_fence;

use tree::Tree;

/// A check: its name, and what it finds wrong with a tree.
type Check = (&'static str, fn(&Tree) -> Vec<Problem>);

const CHECKS: [Check; 10] = [
    ("layers", layers::check),
    ("unsafe fence", unsafe_fence::check),
    ("headers", headers::check),
    ("length", length::check),
    ("kernels", kernels::check),
    ("families", families::check),
    ("purity", purity::check),
    ("docs", docs::check),
    ("readmes", readmes::check),
    ("text", text::check),
];

/// One broken rule: where, what is wrong, and what to do instead.
#[derive(Debug)]
struct Problem {
    path: String,
    /// Counted from 1; 0 when the whole file is meant.
    line: usize,
    message: String,
}

impl Problem {
    fn in_file(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::at(path, 0, message)
    }

    fn at(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Prints every broken rule of the workspace under `root`; an error if there is one.
pub(crate) fn run(root: &Path) -> Result<()> {
    let report = report(&Tree::read(root)?);
    if report.is_empty() {
        return Ok(());
    }
    for line in &report {
        eprintln!("{line}");
    }
    bail!("tidy found {} broken rules", report.len())
}

fn report(tree: &Tree) -> Vec<String> {
    let problems =
        |&(name, check): &Check| check(tree).into_iter().map(move |problem| format!("{problem} [{name}]"));
    CHECKS.iter().flat_map(problems).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let tree = Tree::read(&crate::workspace_root()).expect("the workspace can be read");
        let report = report(&tree);
        assert!(report.is_empty(), "broken rules:\n{}", report.join("\n"));
    }
}

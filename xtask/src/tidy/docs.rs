//! The documents tell the truth about names: docs/ARCHITECTURE.md has one section for every crate and none for
//! others, and a path or an mlx-c function that is quoted somewhere exists.

use super::Problem;
use super::source::words;
use super::tree::{File, Tree};
use std::collections::BTreeMap;

const MAP: &str = "docs/ARCHITECTURE.md";
const BINDINGS: &str = "crates/sys/src/bindings.rs";

/// Beginnings of a quoted path that must resolve from the root.
const ROOTED: [&str; 5] = ["crates/", "xtask/", "tests/", "docs/", ".ci/"];

/// Names that begin like a function of mlx-c and are none: mlx-lm's package, and where libmlx's wheels keep things.
const NO_FUNCTIONS: [&str; 3] = ["mlx_lm", "mlx_cpu", "mlx_metal"];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = sections(tree);
    for file in tree.files() {
        let prose = match (&file.source, file.extension()) {
            (Some(source), _) => &source.comments,
            (None, "md") => &file.text,
            _ => continue,
        };
        for (line, quoted) in quotations(prose) {
            if let Some(message) = unresolved(tree, quoted) {
                problems.push(Problem::at(&file.path, line, message));
            }
        }
        if file.extension() == "md" {
            problems.extend(links(tree, file));
        }
    }
    problems
}

/// Crates and sections, one for one. A section's heading begins with the crate's name in back-ticks.
fn sections(tree: &Tree) -> Vec<Problem> {
    let Some(map) = tree.file(MAP) else {
        return vec![Problem::in_file(MAP, "is missing")];
    };
    let mut headings = BTreeMap::new();
    for (index, line) in map.text.lines().enumerate() {
        let quoted = line.strip_prefix("## `").and_then(|rest| rest.split_once('`'));
        if let Some((name, _)) = quoted {
            headings.insert(name, index + 1);
        }
    }
    let mut problems = Vec::new();
    for (folder, manifest) in tree.crates() {
        let name = manifest.text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let name = name.unwrap_or(folder);
        if headings.remove(name).is_none() {
            problems.push(Problem::in_file(
                MAP,
                format!("has no section \"## `{name}`\", the crate in {folder}"),
            ));
        }
    }
    for (name, line) in headings {
        problems.push(Problem::at(MAP, line, format!("has a section for `{name}`, which is no crate")));
    }
    problems
}

/// What stands between single back-ticks on one line, with the line's number. Blocks between ``` lines are skipped.
fn quotations(prose: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    prose.lines().enumerate().flat_map(move |(index, line)| {
        let is_fence = line.trim_start_matches(['/', '!', '*', ' ']).starts_with("```");
        in_block ^= is_fence;
        let line = if is_fence || in_block { "" } else { line };
        line.split('`').skip(1).step_by(2).map(move |quoted| (index + 1, quoted))
    })
}

/// Links of a document to files that are not there.
fn links(tree: &Tree, file: &File) -> Vec<Problem> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let targets =
            line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        for target in targets.filter(|target| !target.contains("://") && !target.starts_with('#')) {
            let path = resolve(folder, target.split('#').next().unwrap_or(target));
            if !tree.exists(&path) {
                problems.push(Problem::at(
                    &file.path,
                    index + 1,
                    format!("links to {path}, which does not exist"),
                ));
            }
        }
    }
    problems
}

/// A path relative to a folder, from the root.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

fn unresolved(tree: &Tree, quoted: &str) -> Option<String> {
    if ROOTED.iter().any(|root| quoted.starts_with(root)) {
        // `crates/NAME/`, `tests/*.rs`: a form of path, not a path.
        let is_plain =
            quoted.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/._-".contains(c))
                || tree.exists(quoted);
        return (is_plain && !tree.exists(quoted))
            .then(|| format!("quotes the path `{quoted}`, which does not exist"));
    }
    let name = quoted.strip_suffix("()").unwrap_or(quoted);
    let is_function = name.starts_with("mlx_") && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_function || NO_FUNCTIONS.contains(&name) {
        return None;
    }
    let bindings = &tree.file(BINDINGS)?.text;
    words(bindings, name)
        .next()
        .is_none()
        .then(|| format!("quotes `{name}`, which mlx-c does not have ({BINDINGS})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn crates_and_sections_pair_up() {
        let found = check_one(&[
            ("docs/ARCHITECTURE.md", "# Map\n## Threads\n## `strata-text` (crates/text)\n## `strata-gone`\n"),
            ("crates/text/Cargo.toml", "[package]\nname = \"strata-text\"\n"),
            ("crates/state/Cargo.toml", "[package]\nname = \"strata-state\"\n"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("no section \"## `strata-state`\""), "{found:?}");
        assert!(found[1].starts_with("docs/ARCHITECTURE.md:4: has a section for `strata-gone`"), "{found:?}");
    }

    #[test]
    fn a_quoted_path_resolves() {
        let found = check_one(&[
            (
                "docs/ARCHITECTURE.md",
                "`crates/text/`, `crates/NAME/src`,\n`crates/text/src/gone.rs`\n```\n`docs/x`\n```\n",
            ),
            (
                "crates/text/src/lib.rs",
                "//! See `docs/gone.md` and\n// `docs/ARCHITECTURE.md`.\nconst A: &str = \"`docs/x`\";\n",
            ),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("crates/text/src/lib.rs:1: quotes the path `docs/gone.md`"),
            "{found:?}"
        );
        assert!(
            found[1].starts_with("docs/ARCHITECTURE.md:2: quotes the path `crates/text/src/gone.rs`"),
            "{found:?}"
        );
    }

    #[test]
    fn a_link_leads_to_a_file() {
        let found = check_one(&[
            (
                "docs/ARCHITECTURE.md",
                "[a](../README.md) [b](parity.md#x) [c](https://example.org/x) [d](#e)\n",
            ),
            ("README.md", "[a](docs/ARCHITECTURE.md), [b](crates/gone)\n"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("README.md:1: links to crates/gone"), "{found:?}");
        assert!(found[1].starts_with("docs/ARCHITECTURE.md:1: links to docs/parity.md"), "{found:?}");
    }

    #[test]
    fn a_quoted_function_of_mlx_c_exists() {
        let found = check_one(&[
            ("docs/ARCHITECTURE.md", ""),
            ("crates/sys/src/bindings.rs", "pub fn mlx_eval(outputs: mlx_vector_array);\n"),
            ("crates/tensor/src/lib.rs", "//! `mlx_eval`, `mlx_eval()`, `mlx_lm`\n//! `mlx_vector`\n"),
        ]);
        assert!(
            found.len() == 1 && found[0].contains("lib.rs:2: quotes `mlx_vector`, which mlx-c"),
            "{found:?}"
        );
    }
}

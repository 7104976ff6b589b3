//! A family is one file that the registry knows, and no family leans on another: what two of them share is a layer.

use super::Problem;
use super::source::words;
use super::tree::Tree;

const FOLDER: &str = "crates/models/src/families/";
const REGISTRY: &str = "crates/models/src/registry.rs";

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    // A family is `NAME.rs`, or a folder `NAME/` where it has parts.
    let mut families: Vec<&str> = tree.files().filter_map(|file| family(&file.path)).collect();
    families.dedup();
    if families.is_empty() {
        return Vec::new();
    }
    let Some(registry) = tree.file(REGISTRY).and_then(|file| file.source.as_ref()) else {
        return vec![Problem::in_file(REGISTRY, "is missing, though there are families")];
    };
    let mut problems = Vec::new();
    for name in &families {
        if words(&registry.code, name).next().is_none() {
            problems.push(Problem::in_file(
                format!("{FOLDER}{name}.rs"),
                format!("is not in {REGISTRY}: add its line"),
            ));
        }
    }
    for (line, at) in words(&registry.code, "families::") {
        let name = identifier(&registry.code[at + "families::".len()..]);
        if !name.is_empty() && !families.contains(&name) {
            problems.push(Problem::at(
                REGISTRY,
                line,
                format!("names the family `{name}`, which has no file in {FOLDER}"),
            ));
        }
    }
    for (file, source) in tree.rust() {
        let Some(own) = family(&file.path) else { continue };
        for other in families.iter().filter(|other| **other != own) {
            for path in ["families::", "super::"] {
                for (line, _) in words(&source.code, &format!("{path}{other}")) {
                    let message =
                        format!("family `{own}` leans on family `{other}`: move what they share to layers/");
                    problems.push(Problem::at(&file.path, line, message));
                }
            }
        }
    }
    problems
}

/// The family that a file belongs to.
fn family(path: &str) -> Option<&str> {
    let inside = path.strip_prefix(FOLDER)?;
    let name = inside.split('/').next()?.trim_end_matches(".rs");
    (name != "mod").then_some(name)
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn folder_and_registry_agree() {
        let found = check_one(&[
            ("crates/models/src/families/mod.rs", "pub mod llama;"),
            ("crates/models/src/families/llama.rs", ""),
            ("crates/models/src/families/gemma.rs", ""),
            (
                "crates/models/src/registry.rs",
                "// gemma\nuse crate::families::llama;\nuse crate::families::phi;\n",
            ),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("crates/models/src/families/gemma.rs: is not in"), "{found:?}");
        assert!(found[1].contains("registry.rs:3: names the family `phi`"), "{found:?}");
    }

    #[test]
    fn no_family_imports_another() {
        let found = check_one(&[
            ("crates/models/src/families/llama.rs", "use crate::layers::mlp;\n"),
            ("crates/models/src/families/qwen.rs", "use crate::layers::mlp;\nuse super::llama::Attention;\n"),
            ("crates/models/src/registry.rs", "families::llama families::qwen"),
        ]);
        assert!(
            found.len() == 1 && found[0].contains("qwen.rs:2: family `qwen` leans on family `llama`"),
            "{found:?}"
        );
    }
}

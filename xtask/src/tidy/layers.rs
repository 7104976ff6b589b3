//! Dependencies point down: the permitted edges between the workspace's crates, as data, held against every
//! Cargo.toml. A new edge is one line of this table, reviewed on its own.

use super::Problem;
use super::tree::{File, Tree};
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// What one crate may depend on.
struct Layer {
    package: &'static str,
    /// In normal and build dependencies.
    normal: &'static [&'static str],
    /// In dev-dependencies, besides `normal`.
    dev: &'static [&'static str],
}

/// From the bottom up.
const LAYERS: [Layer; 14] = [
    layer("strata-contracts", &[], &[]),
    layer("strata-sys", &[], &[]),
    layer("strata-tensor", &["strata-contracts", "strata-sys"], &[]),
    layer("strata-artifacts", &["strata-contracts"], &[]),
    layer("strata-text", &["strata-contracts"], &[]),
    layer("strata-kernels", &["strata-contracts", "strata-tensor"], &[]),
    layer("strata-state", &["strata-contracts", "strata-tensor", "strata-kernels"], &[]),
    layer(
        "strata-models",
        &["strata-contracts", "strata-tensor", "strata-artifacts", "strata-kernels", "strata-state"],
        &[],
    ),
    // Artifacts only in tests: they load a model folder, which the crate itself never does.
    layer(
        "strata-generate",
        &["strata-contracts", "strata-tensor", "strata-kernels", "strata-state", "strata-models"],
        &["strata-artifacts"],
    ),
    layer(
        "strata-engine",
        &[
            "strata-contracts",
            "strata-tensor",
            "strata-artifacts",
            "strata-text",
            "strata-state",
            "strata-models",
            "strata-generate",
        ],
        &[],
    ),
    layer("strata-server", &["strata-contracts", "strata-engine"], &[]),
    // strata-sys only tells the build script where libmlx lies. All after strata-server goes once strata-engine carries
    // the command: the command then knows no arrays.
    layer(
        "strata",
        &[
            "strata-contracts",
            "strata-artifacts",
            "strata-engine",
            // For the number of threads and the machine's ceilings that `bench` prints.
            "strata-kernels",
            "strata-sys",
            "strata-server",
            "strata-generate",
            "strata-models",
            "strata-state",
            "strata-tensor",
            "strata-text",
        ],
        &[],
    ),
    layer("strata-tests", EVERY_LIBRARY, &[]),
    layer("xtask", &[], &[]),
];

const EVERY_LIBRARY: &[&str] = &[
    "strata-contracts",
    "strata-sys",
    "strata-tensor",
    "strata-artifacts",
    "strata-text",
    "strata-kernels",
    "strata-state",
    "strata-models",
    "strata-generate",
    "strata-engine",
    "strata-server",
];

/// Portable by promise: they reach none of `NATIVE`, directly or through others, not even in tests.
const PORTABLE: [&str; 3] = ["strata-contracts", "strata-artifacts", "strata-text"];
const NATIVE: [&str; 2] = ["strata-sys", "mlx-sys"];

const fn layer(
    package: &'static str,
    normal: &'static [&'static str],
    dev: &'static [&'static str],
) -> Layer {
    Layer { package, normal, dev }
}

/// A dependency of one crate of the workspace.
struct Edge {
    to: String,
    dev: bool,
}

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut crates = Vec::new();
    for (_, manifest) in tree.crates() {
        match read_manifest(manifest) {
            Ok((package, edges)) => crates.push((package, edges, manifest)),
            Err(message) => problems.push(Problem::in_file(&manifest.path, message)),
        }
    }
    let packages: BTreeSet<_> = crates.iter().map(|(package, ..)| package.as_str()).collect();
    for (package, edges, manifest) in &crates {
        let Some(layer) = LAYERS.iter().find(|layer| layer.package == package) else {
            let message =
                format!("`{package}` has no row in the table of xtask/src/tidy/layers.rs: give it a layer");
            problems.push(Problem::in_file(&manifest.path, message));
            continue;
        };
        for edge in edges.iter().filter(|edge| packages.contains(edge.to.as_str())) {
            let permitted =
                layer.normal.contains(&edge.to.as_str()) || edge.dev && layer.dev.contains(&edge.to.as_str());
            if !permitted {
                problems.push(Problem::in_file(&manifest.path, forbidden(package, edge)));
            }
        }
    }
    problems.extend(portability(tree, &crates));
    problems
}

fn forbidden(package: &str, edge: &Edge) -> String {
    let kind = if edge.dev { "dev-dependency" } else { "dependency" };
    format!(
        "{kind} `{package}` -> `{}` is not in the table of xtask/src/tidy/layers.rs: move the code to the layer that \
         may know both, or argue for the edge there",
        edge.to
    )
}

/// Walks all dependencies, ours by manifest and others by lock file, from each portable crate.
fn portability(tree: &Tree, crates: &[(String, Vec<Edge>, &File)]) -> Vec<Problem> {
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (package, edges, _) in crates {
        graph.entry(package).or_default().extend(edges.iter().map(|edge| edge.to.as_str()));
    }
    let lock = tree.file("Cargo.lock").and_then(|file| file.text.parse::<Table>().ok()).unwrap_or_default();
    for entry in lock.get("package").and_then(Value::as_array).into_iter().flatten() {
        let Some(name) = entry.get("name").and_then(Value::as_str) else { continue };
        if crates.iter().any(|(package, ..)| package == name) {
            continue;
        }
        let dependencies = entry.get("dependencies").and_then(Value::as_array).into_iter().flatten();
        // "name", or "name version" where several versions are locked.
        let names = dependencies.filter_map(|dependency| dependency.as_str()?.split(' ').next());
        graph.entry(name).or_default().extend(names);
    }
    let portable = crates.iter().filter(|(package, ..)| PORTABLE.contains(&package.as_str()));
    let breaches = portable.filter_map(|(package, _, manifest)| {
        let way = way_to_native(&graph, package)?;
        let message =
            format!("portable `{package}` reaches native code: {}; cut the first edge", way.join(" -> "));
        Some(Problem::in_file(&manifest.path, message))
    });
    breaches.collect()
}

/// A shortest way from `package` to a native crate.
fn way_to_native<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>, package: &'a str) -> Option<Vec<&'a str>> {
    let mut seen = BTreeSet::from([package]);
    let mut ways = vec![vec![package]];
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let last = way[way.len() - 1];
            if NATIVE.contains(&last) {
                return Some(way);
            }
            for next in graph.get(last).into_iter().flatten() {
                if seen.insert(next) {
                    longer.push([way.as_slice(), &[*next]].concat());
                }
            }
        }
        ways = longer;
    }
    None
}

/// The package's name and all its dependencies, of every target.
fn read_manifest(file: &File) -> Result<(String, Vec<Edge>), String> {
    let table: Table = file.text.parse().map_err(|error| format!("cannot be read as TOML: {error}"))?;
    let name = table.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
    let name = name.ok_or("has no package.name")?;
    let mut edges = Vec::new();
    collect_edges(&table, &mut edges);
    for target in table.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values) {
        collect_edges(target.as_table().ok_or("has a target that is no table")?, &mut edges);
    }
    Ok((name.to_owned(), edges))
}

fn collect_edges(table: &Table, edges: &mut Vec<Edge>) {
    for (section, dev) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
    {
        for (key, value) in table.get(section).and_then(Value::as_table).into_iter().flatten() {
            let renamed = value.get("package").and_then(Value::as_str);
            edges.push(Edge { to: renamed.unwrap_or(key).to_owned(), dev });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n{rest}")
    }

    fn check_one(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_edge_that_points_up_is_named() {
        let state = manifest("strata-state", "[dependencies]\nstrata-models = { workspace = true }\n");
        let models = manifest("strata-models", "[dependencies]\nstrata-state = { workspace = true }\n");
        let found = check_one(&[("crates/state/Cargo.toml", &state), ("crates/models/Cargo.toml", &models)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("crates/state/Cargo.toml: dependency `strata-state` -> `strata-models`"),
            "{found:?}"
        );
    }

    #[test]
    fn edges_of_tests_targets_and_renamed_crates_are_judged_too() {
        let tensor = manifest("strata-tensor", "");
        let generate =
            manifest("strata-generate", "[dependencies]\n[dev-dependencies]\nstrata-artifacts = \"1\"\n");
        let artifacts = manifest("strata-artifacts", "");
        let state = manifest(
            "strata-state",
            "[dev-dependencies]\nstrata-generate = \"1\"\n[target.'cfg(unix)'.dependencies]\nx = { package = \"strata-artifacts\" }\n",
        );
        let found = check_one(&[
            ("crates/tensor/Cargo.toml", &tensor),
            ("crates/generate/Cargo.toml", &generate),
            ("crates/artifacts/Cargo.toml", &artifacts),
            ("crates/state/Cargo.toml", &state),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|line| line.contains("dev-dependency `strata-state` -> `strata-generate`")));
        assert!(found.iter().any(|line| line.contains("dependency `strata-state` -> `strata-artifacts`")));
        let normal = manifest("strata-generate", "[dependencies]\nstrata-artifacts = \"1\"\n");
        let found = check_one(&[
            ("crates/generate/Cargo.toml", &normal),
            ("crates/artifacts/Cargo.toml", &artifacts),
        ]);
        assert_eq!(found.len(), 1, "an edge for tests is no edge for the crate: {found:?}");
    }

    #[test]
    fn a_crate_without_a_layer_is_refused() {
        let found = check_one(&[("crates/new/Cargo.toml", &manifest("strata-new", ""))]);
        assert!(found.len() == 1 && found[0].contains("`strata-new` has no row"), "{found:?}");
    }

    #[test]
    fn a_portable_crate_reaches_no_native_code_through_others() {
        let text = manifest("strata-text", "[dependencies]\nouter = \"1\"\n");
        let lock = "[[package]]\nname = \"outer\"\ndependencies = [\"inner 1.0\"]\n\
                    [[package]]\nname = \"inner\"\ndependencies = [\"strata-sys\"]\n";
        let found = check_one(&[("crates/text/Cargo.toml", &text), ("Cargo.lock", lock)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("strata-text -> outer -> inner -> strata-sys"), "{found:?}");
    }
}

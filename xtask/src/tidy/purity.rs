//! A graph is built the same way on every device and never waits for it: no `cfg`, no read back to the host, nothing
//! left undone in the families and layers. Tests inside those files may read.

use super::Problem;
use super::source::words;
use super::tree::Tree;

const GRAPHS: [&str; 2] = ["crates/models/src/families/", "crates/models/src/layers/"];

/// What a graph holds none of, and what to do instead.
const FORBIDDEN: [(&str, &str); 9] = [
    ("cfg!", "ask the composition, not the target"),
    ("#[cfg", "ask the composition, not the target"),
    ("#[cfg_attr", "ask the composition, not the target"),
    ("todo!", "refuse what is not supported when the config is read"),
    (".item(", "a read waits for the device: keep the value in the graph"),
    (".item::<", "a read waits for the device: keep the value in the graph"),
    (".to_vec(", "a read waits for the device: keep the value in the graph"),
    (".to_vec::<", "a read waits for the device: keep the value in the graph"),
    ("eval(", "the caller decides when to evaluate"),
];

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (file, source) in
        tree.rust().filter(|(file, _)| GRAPHS.iter().any(|folder| file.path.starts_with(folder)))
    {
        for (token, instead) in FORBIDDEN {
            for (line, _) in words(&source.shipped, token) {
                problems.push(Problem::at(&file.path, line, format!("`{token}` in a graph: {instead}")));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_impurity_is_found_and_tests_are_free() {
        let text = "//! eval( in words\nfn f() { a.item::<f32>(); cfg!(x); }\n#[cfg(unix)]\nfn g() { todo!() }\n\
                    fn h() { b.to_vec(); eval(&c); d.item(); retrieval(e) }\n#[cfg(test)]\nmod tests { fn t() { x.item(); } }\n";
        let found = check(&Tree::of(&[
            ("crates/models/src/layers/mlp.rs", text),
            ("crates/generate/src/step.rs", text),
        ]));
        let lines: Vec<_> = found.iter().map(|problem| (problem.path.as_str(), problem.line)).collect();
        let expected = [2, 3, 4, 5, 2, 5, 5].map(|line| ("crates/models/src/layers/mlp.rs", line));
        assert_eq!(lines, expected, "{found:?}");
    }
}

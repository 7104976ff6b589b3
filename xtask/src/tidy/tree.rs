//! The workspace as the checks see it: paths with their text, and the crates among them. No check touches the disk.

use super::source::Source;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What is read for its text; of other files only the path is kept.
const TEXT: [&str; 9] = ["rs", "toml", "md", "lock", "metal", "cu", "h", "cpp", "py"];

/// Where the project's own files are. The root's own files are read too.
const FOLDERS: [&str; 5] = ["crates", "xtask", "tests", "docs", ".ci"];

/// A file of the workspace.
#[derive(Debug)]
pub(super) struct File {
    /// From the root, with `/`.
    pub(super) path: String,
    /// Empty for a file that is not text.
    pub(super) text: String,
    /// Comments and code apart, of a Rust file.
    pub(super) source: Option<Source>,
}

impl File {
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(super) fn extension(&self) -> &str {
        self.name().rsplit_once('.').map_or("", |(_, extension)| extension)
    }
}

/// Every file of the workspace, in order of path.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, File>,
}

impl Tree {
    /// Reads the workspace that lies at `root`.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "", false)?;
        for folder in FOLDERS {
            if root.join(folder).is_dir() {
                tree.read_folder(&root.join(folder), &format!("{folder}/"), true)?;
            }
        }
        Ok(tree)
    }

    /// A tree of the given paths and texts.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.insert((*path).to_owned(), (*text).to_owned());
        }
        tree
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &File> {
        self.files.values()
    }

    /// The Rust files, with their text taken apart.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&File, &Source)> {
        self.files().filter_map(|file| file.source.as_ref().map(|source| (file, source)))
    }

    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// Whether a file or a folder lies at the path.
    pub(super) fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let inside = format!("{path}/");
        self.files.contains_key(path)
            || self.files.range(inside.clone()..).next().is_some_and(|(key, _)| key.starts_with(&inside))
    }

    /// The workspace's crates as (folder, manifest): those under `crates/`, then xtask and the crossing tests.
    pub(super) fn crates(&self) -> impl Iterator<Item = (&str, &File)> {
        self.files().filter_map(|file| {
            let folder = file.path.strip_suffix("/Cargo.toml")?;
            let is_crate = match folder.split_once('/') {
                Some((parent, name)) => parent == "crates" && !name.contains('/'),
                None => true,
            };
            is_crate.then_some((folder, file))
        })
    }

    fn insert(&mut self, path: String, text: String) {
        let mut file = File { path, text, source: None };
        if file.extension() == "rs" {
            file.source = Some(Source::parse(&file.text));
        }
        self.files.insert(file.path.clone(), file);
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str, deep: bool) -> Result<()> {
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            if entry.file_type()?.is_dir() {
                if deep && name != "target" && name != "__pycache__" {
                    self.read_folder(&entry.path(), &format!("{path}/"), true)?;
                }
                continue;
            }
            let is_text = name.rsplit_once('.').is_some_and(|(_, extension)| TEXT.contains(&extension));
            let text = if is_text {
                fs::read_to_string(entry.path()).with_context(|| format!("cannot read {path} as text"))?
            } else {
                String::new()
            };
            self.insert(path, text);
        }
        Ok(())
    }
}

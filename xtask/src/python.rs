//! Python environments below target/: made from pinned requirements, and made again when those or the build settings
//! change.

use crate::command::finish;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What an environment is made of.
pub(crate) struct Recipe<'a> {
    /// Name of its folder below target/.
    pub(crate) folder: &'a str,
    /// Pinned requirements, relative to the workspace.
    pub(crate) requirements: &'a str,
    /// Environment variables of packages that are compiled here; none where all of them come as wheels.
    pub(crate) build: Option<(&'a str, String)>,
}

/// An interpreter with the packages of a recipe.
pub(crate) struct Environment {
    python: PathBuf,
}

impl Environment {
    /// Makes the environment, unless the same one is there.
    pub(crate) fn prepare(root: &Path, recipe: &Recipe) -> Result<Self> {
        let requirements = root.join(recipe.requirements);
        let packages = fs::read_to_string(&requirements)
            .with_context(|| format!("cannot read {}", requirements.display()))?;
        let wanted = match &recipe.build {
            Some((name, value)) => format!("{packages}# {name}={value}\n"),
            None => packages,
        };
        let folder = root.join("target").join(recipe.folder);
        let python = folder.join("bin/python");
        // Written last, so an environment that was interrupted is made again.
        let installed = folder.join("requirements.txt");
        if fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
            return Ok(Self { python });
        }
        eprintln!("making {} from {}", folder.display(), recipe.requirements);
        finish(
            Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder),
            "python3 -m venv (Debian: apt-get install python3-venv)",
        )?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        if let Some((name, value)) = &recipe.build {
            // pip's cache does not know the settings that a wheel was compiled with.
            pip.env(name, value).arg("--no-cache-dir");
        }
        finish(pip.arg("--requirement").arg(&requirements), "pip install")?;
        fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))?;
        Ok(Self { python })
    }

    /// The interpreter, to be given a script.
    pub(crate) fn command(&self) -> Command {
        Command::new(&self.python)
    }
}

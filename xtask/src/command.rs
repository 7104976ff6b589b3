//! Starting other programs: cargo as the user's own shell would start it, and any program with a clear error.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// A cargo in the workspace. What the cargo that runs this program says of our package is taken away: build scripts that
/// look at it would run again, and everything above them be compiled anew, each time the two ways to build alternate.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root);
    let ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(ours) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command whose output goes where ours goes.
pub(crate) fn finish(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {what}"))?;
    if !status.success() {
        bail!("{what} failed ({status})");
    }
    Ok(())
}

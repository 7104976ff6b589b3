//! `cargo xtask dist`: a folder with the release binary and the native libraries it was built against, which runs
//! wherever it is moved to.
//!
//! The folder keeps the arrangement of MLX's wheel (`mlx/lib` with its private libraries in a folder beside `mlx`), since
//! libmlx finds the latter by a path relative to itself; the binary finds libmlx relative to itself.

use crate::command::cargo;
use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Message;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Sources that libmlx's CUDA backend compiles kernels with at run time; the other headers serve builds only.
const RUN_TIME_HEADERS: [&str; 3] = ["cccl", "cute", "cutlass"];

/// Builds the binary and lays out `target/dist/strata-TARGET`.
pub(crate) fn run(root: &Path) -> Result<()> {
    let target = host_target()?;
    let origin = if target.contains("apple") { "@executable_path" } else { "$ORIGIN" };
    let built = build(root, Some(format!("{origin}/mlx/lib")))?;
    let folder = root.join("target/dist").join(format!("strata-{target}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot replace {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;

    copy_file(&built.binary, &folder.join("strata"))?;
    copy_runtime(&built.libraries, &folder)?;
    for text in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        copy_file(&root.join(text), &folder.join(text))?;
    }
    prove(&folder)?;
    println!("{}", folder.display());
    Ok(())
}

/// What a build left.
pub(crate) struct Built {
    pub(crate) binary: PathBuf,
    /// The folder of libmlx, `mlx/lib` of an unpacked wheel or `lib` of STRATA_MLX_DIR.
    libraries: PathBuf,
}

/// The binary, and where libmlx was found. It looks for libmlx at `rpath`, or where it was found.
pub(crate) fn build(root: &Path, rpath: Option<String>) -> Result<Built> {
    let mut cargo = cargo(root)
        .args(["build", "--release", "--package", "strata", "--message-format", "json-render-diagnostics"])
        .envs(rpath.map(|rpath| ("STRATA_RPATH", rpath)))
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let output = cargo.stdout.take().context("cargo has no output")?;
    let (mut binary, mut libraries) = (None, None);
    for message in Message::parse_stream(BufReader::new(output)) {
        match message.context("cannot read cargo's messages")? {
            Message::CompilerArtifact(artifact) if artifact.target.name == "strata" => {
                binary = artifact.executable.or(binary);
            }
            Message::BuildScriptExecuted(script) => {
                let found = script.env.into_iter().find(|(name, _)| name == "STRATA_MLX_LIB_DIR");
                libraries = found.map(|(_, folder)| folder).or(libraries);
            }
            _ => {}
        }
    }
    ensure!(cargo.wait()?.success(), "the release build failed");
    Ok(Built {
        binary: binary.context("cargo built no binary `strata`")?.into(),
        libraries: libraries.context("the build script of strata-sys did not say where libmlx is")?.into(),
    })
}

/// The target triple that cargo builds for on this machine.
fn host_target() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(ToOwned::to_owned).context("`rustc -vV` names no host")
}

/// Copies libmlx, what it loads from beside itself, and the sources its kernels are compiled from at run time.
fn copy_runtime(libraries: &Path, folder: &Path) -> Result<()> {
    copy_folder(libraries, &folder.join("mlx/lib"), |name| name != "cmake")?;
    let mlx = libraries.parent().context("libmlx lies in no folder")?;
    for headers in RUN_TIME_HEADERS.map(|name| mlx.join("include").join(name)) {
        if let Some(name) = headers.file_name().filter(|_| headers.is_dir()) {
            copy_folder(&headers, &folder.join("mlx/include").join(name), |_| true)?;
        }
    }
    let Some(beside) = mlx.parent() else { return Ok(()) };
    for entry in fs::read_dir(beside).with_context(|| format!("cannot read {}", beside.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir()
            && (path.extension().is_some_and(|extension| extension == "libs") || name == "nvidia")
        {
            copy_folder(&path, &folder.join(&name), |_| true)?;
        }
    }
    Ok(())
}

/// Runs the binary without any environment, so that nothing outside the folder helps it find its libraries.
fn prove(folder: &Path) -> Result<()> {
    let binary = folder.join("strata");
    let output = Command::new(&binary).arg("--version").env_clear().current_dir("/").output();
    let output = output.with_context(|| format!("cannot start {}", binary.display()))?;
    if !output.status.success() {
        bail!("{} does not run: {}", binary.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn copy_folder(from: &Path, to: &Path, wanted: fn(&str) -> bool) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|name| wanted(&name.to_string_lossy())) else { continue };
        if path.is_dir() {
            copy_folder(&path, &to.join(name), wanted)?;
        } else {
            copy_file(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

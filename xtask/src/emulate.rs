//! `cargo xtask emulate`: the tests of strata-kernels, built for aarch64 Linux and run under QEMU, so that the NEON forms of host kernels
//! run on a machine of another kind.
//!
//! Emulation says whether results are right and whether only instructions of the processor are used (any other ends the
//! program), not how fast anything is.

use crate::command::{cargo, finish};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::{Command, Stdio};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// All that QEMU knows, and a processor without dot products of bytes.
const PROCESSORS: [&str; 2] = ["max", "cortex-a53"];

/// The programs that are needed, and Debian's packages of them.
const PROGRAMS: [(&str, &str); 3] = [
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
    ("qemu-aarch64", "qemu-user"),
];

/// Where those packages put the C library.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Runs the tests once for each processor, with `arguments` for the test programs.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    for (program, package) in PROGRAMS {
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .with_context(|| format!("cannot start {program}: install it (Debian's package {package})"))?;
    }
    for processor in PROCESSORS {
        println!("== {processor}");
        let runner = format!("qemu-aarch64 -cpu {processor} -L {LIBRARIES}");
        let mut tests = cargo(root);
        tests
            .args(["test", "--package", "strata-kernels", "--lib", "--tests", "--target", TARGET, "--"])
            .args(arguments)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        // A CXX without a target is the host's.
        if std::env::var_os("CXX_aarch64_unknown_linux_gnu").is_none() {
            tests.env("CXX_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-g++");
        }
        finish(&mut tests, &format!("the tests on {processor} (is there a `rustup target add {TARGET}`?)"))?;
    }
    Ok(())
}

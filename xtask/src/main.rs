//! `cargo xtask TASK`: the build, policy and parity tasks of the workspace, one module each.

#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

mod bench;
mod bindings;
mod command;
mod dist;
mod emulate;
mod parity;
mod python;
mod tidy;

/// The tasks of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, policy and parity tasks of Strata")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure Strata beside other engines: same weights, prompt and threads, in turns, on this machine
    Bench(bench::Arguments),
    /// Regenerate crates/sys/src/bindings.rs from the pinned mlx-c headers
    Bindgen {
        /// Write nothing; fail when the committed file differs from a fresh one
        #[arg(long)]
        check: bool,
    },
    /// Make target/dist/strata-TARGET: the release binary with its libraries, to be moved anywhere
    Dist,
    /// Run the tests of strata-kernels for aarch64 Linux under QEMU, on a processor with dot products of bytes and on one without
    Emulate {
        /// For the test programs, such as a filter
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Compare Strata with mlx-lm, bit for bit, on this machine
    Parity(parity::Arguments),
    /// Check the rules that a compiler does not know: layers, unsafe, headers, length, names in documents
    Tidy,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Bench(arguments) => bench::run(&workspace_root(), &arguments),
        Task::Bindgen { check } => bindings::run(&workspace_root(), check),
        Task::Dist => dist::run(&workspace_root()),
        Task::Emulate { arguments } => emulate::run(&workspace_root(), &arguments),
        Task::Parity(arguments) => parity::run(&workspace_root(), &arguments),
        Task::Tidy => tidy::run(&workspace_root()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folder that holds the workspace's Cargo.toml: of the tree that cargo runs this in, which may have moved since
/// it was compiled.
fn workspace_root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    xtask.parent().expect("xtask lies in the workspace").to_path_buf()
}

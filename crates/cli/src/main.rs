//! The `strata` command: what was typed, matched to what runs, and one place that decides exit codes.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod output;
mod session;

use args::{Arguments, Command};
use clap::Parser;
use std::process::ExitCode;

/// Also replaces `malloc` for libmlx, which asks for a few small pieces at every node of the graph and frees them on
/// another thread: glibc's takes several times as long over that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let started = std::time::Instant::now();
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .with_max_level(if arguments.verbose { tracing::Level::DEBUG } else { tracing::Level::WARN })
        .init();
    let result = match &arguments.command {
        Command::Generate(args) => commands::generate::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Pull(args) => commands::pull::run(args),
        Command::Ls(args) => commands::ls::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Convert(args) => commands::convert::run(args),
        Command::Bench(args) => commands::bench::run(args, started),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

//! `cargo xtask bench`: Strata beside other engines on the same weights, the same prompt and the same number of threads.
//!
//! Rules, which docs/benchmarks.md explains:
//! 1. Sides take turns (A B C A B C …), so that a machine that slows down slows them all.
//! 2. Each turn is a fresh process with a run that is not counted and one that is; nobody else's threads are alive.
//! 3. Each peer is compared with turns of Strata over the same number of tokens.
//! 4. A peer that cannot be set up or run is an error.

use crate::command::finish;
use crate::dist;
use crate::python::Environment;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod report;
mod side;
mod weights;

use report::Report;
use side::{Sample, Side, Work};
use weights::Weights;

/// What to measure.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Engines to measure Strata beside
    #[arg(long, value_enum, value_delimiter = ',', required = true, value_name = "PEER,…")]
    vs: Vec<Peer>,
    /// smollm2, gemma3-270m, or a GGUF file
    #[arg(long, default_value = "smollm2", value_name = "NAME")]
    model: String,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prompt: u32,
    /// Tokens to produce
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    r#gen: u32,
    /// Turns of each side
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Threads of each engine that takes a number [default: all that the machine offers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Another engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// mlx-lm, in the type that the weights name and in float32
    #[value(name = "mlx-lm")]
    MlxLm,
    /// llama.cpp, by llama-cpp-python
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// Where everything of a benchmark lies.
struct Bench<'a> {
    root: &'a Path,
    /// The command, built for release.
    strata: PathBuf,
    /// The file that llama.cpp reads.
    gguf: PathBuf,
    /// What Strata reads: the file, or a folder with its own form of it.
    own: PathBuf,
    /// The file as a model folder, for mlx-lm.
    folder: PathBuf,
    threads: u32,
}

pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    let threads = match arguments.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().context("how many threads are there?")?.get() as u32,
    };
    let mut environments = Vec::new();
    for &peer in &arguments.vs {
        let recipe = side::recipe(peer);
        let environment = Environment::prepare(root, &recipe)
            .with_context(|| format!("cannot set up {} (in target/{})", side::name(peer), recipe.folder))?;
        environments.push((peer, environment));
    }
    let Weights { gguf, form } = weights::find(root, &arguments.model, &environments[0].1)?;
    let strata = dist::build(root, None)?.binary;
    let own = if form.is_empty() { gguf.clone() } else { root.join("target/bench/own") };
    let bench = Bench { root, strata, gguf, own, folder: root.join("target/bench/folder"), threads };
    if !form.is_empty() {
        bench.convert(&bench.own, form)?;
    }
    if arguments.vs.contains(&Peer::MlxLm) {
        bench.convert(&bench.folder, &[])?;
    }

    let work = Work { prompt: arguments.prompt, r#gen: arguments.r#gen };
    let sides = side::line_up(&environments, work);
    let mut samples: Vec<Vec<Sample>> = sides.iter().map(|_| Vec::new()).collect();
    for turn in 1..=arguments.runs {
        for (side, samples) in sides.iter().zip(&mut samples) {
            eprintln!("turn {turn} of {}: {side}", arguments.runs);
            samples.push(side.measure(&bench).with_context(|| format!("{side} cannot be measured"))?);
        }
    }
    same_prompt(&sides, &samples)?;
    let report =
        Report { model: &arguments.model, form, threads, runs: arguments.runs, sides: &sides, samples };
    if arguments.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

/// The prompt's ids follow from the size of the vocabulary, so the sizes must agree.
fn same_prompt(sides: &[Side], samples: &[Vec<Sample>]) -> Result<()> {
    let expected = samples[0][0].vocab_size;
    for (side, samples) in sides.iter().zip(samples) {
        let found = samples[0].vocab_size;
        ensure!(
            found == expected,
            "{side} has a vocabulary of {found} tokens but Strata one of {expected}: the prompts differ"
        );
    }
    Ok(())
}

impl Bench<'_> {
    /// The command with a store of the benchmark's own.
    fn strata(&self) -> Command {
        let mut command = Command::new(&self.strata);
        command
            .env("STRATA_HOME", self.root.join("target/bench/store"))
            .env("STRATA_THREADS", self.threads.to_string());
        command
    }

    /// Makes a folder of the file, and makes it anew: Strata's conversion may have changed since it was made.
    fn convert(&self, folder: &Path, form: &[&str]) -> Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot replace {}", folder.display()))?;
        }
        let mut command = self.strata();
        command.args(["convert", "--quiet"]).arg(&self.gguf).arg(folder).args(form);
        finish(&mut command, "strata convert")
    }
}

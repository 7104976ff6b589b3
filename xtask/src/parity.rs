//! `cargo xtask parity`: mlx-lm and Strata run the same inputs on this machine, one after the other, and every
//! difference is shown.
//!
//! This file prepares the Python environment and starts both sides. What is run stands in tests/oracle (mlx-lm) and in
//! the binary `parity` of strata-tests (Strata, the comparison, and the table).

use crate::command::{cargo, finish};
use crate::python::{Environment, Recipe};
use anyhow::{Context, Result};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The pinned mlx-lm.
pub(crate) const ENVIRONMENT: Recipe =
    Recipe { folder: "parity-venv", requirements: "tests/oracle/requirements.txt", build: None };

/// What to compare.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Families, by the names of tests/oracle/families.py; all of them by default
    families: Vec<String>,
    /// Print the results as JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Rewrite the committed fixtures of the families instead of comparing
    #[arg(long, conflicts_with_all = ["json", "model"])]
    regen: bool,
    /// Compare on a real model folder instead of tiny random models
    #[arg(long, value_name = "DIR", conflicts_with = "families")]
    model: Option<PathBuf>,
    /// With --model: the prompt
    #[arg(long, default_value = "The capital of France is", requires = "model")]
    prompt: String,
    /// With --model: how many greedy steps follow the prompt
    #[arg(long, default_value_t = 16, requires = "model")]
    steps: usize,
    /// With --model: run the greedy steps in this dtype, float32, bfloat16 or float16 [default: the model's own]. How
    /// far fast mode is, which is measured in float32, is left out in the other two
    #[arg(long, requires = "model")]
    dtype: Option<String>,
}

/// Runs both sides. Fails when something differs.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    let oracle = Oracle::prepare(root)?;
    if arguments.regen {
        return oracle.run("make_fixtures.py", |command| command.args(&arguments.families));
    }
    let out = root.join("target/parity");
    if let Some(model) = &arguments.model {
        return compare_model(root, &oracle, &out, model, arguments);
    }
    let cases = out.join("cases");
    if cases.exists() {
        fs::remove_dir_all(&cases).with_context(|| format!("cannot replace {}", cases.display()))?;
    }
    oracle.run("run.py", |command| {
        command.arg("cases").arg("--out").arg(&cases);
        arguments.families.iter().fold(command, |command, family| command.args(["--family", family]))
    })?;
    strata(root, arguments.json, |command| command.arg("cases").arg(&cases))
}

fn compare_model(
    root: &Path,
    oracle: &Oracle,
    out: &Path,
    model: &Path,
    arguments: &Arguments,
) -> Result<()> {
    let model = model.canonicalize().with_context(|| format!("there is no model at {}", model.display()))?;
    let (greedy, score) = (out.join("model/greedy.safetensors"), out.join("model/score.safetensors"));
    let steps = arguments.steps.to_string();
    let with_dtype = |command: &mut Command| {
        if let Some(dtype) = &arguments.dtype {
            command.args(["--dtype", dtype]);
        }
    };
    oracle.run("run.py", |command| {
        command.arg("model").arg("--model").arg(&model).arg("--out").arg(&greedy);
        with_dtype(command);
        command.args(["--prompt", &arguments.prompt, "--steps", &steps])
    })?;
    // In half types the reference takes seconds a token on a CPU, so a text is scored in float32, which is what the
    // command runs there.
    let measured = arguments.dtype.as_deref().is_none_or(|dtype| dtype == "float32");
    if measured {
        oracle.run("run.py", |command| {
            command.arg("score").arg("--model").arg(&model).arg("--out").arg(&score);
            command.args(["--dtype", "float32", "--text", "tests/fixtures/text/american.txt"])
        })?;
    }
    strata(root, arguments.json, |command| {
        command.arg("model").arg("--model").arg(&model).arg("--greedy").arg(&greedy);
        with_dtype(command);
        if measured {
            command.arg("--score").arg(&score);
        }
        command
    })
}

/// Starts Strata's side; its exit status says whether everything is equal.
fn strata(root: &Path, json: bool, arguments: impl FnOnce(&mut Command) -> &mut Command) -> Result<()> {
    let mut command = cargo(root);
    command.args(["run", "--release", "--quiet", "--package", "strata-tests", "--bin", "parity", "--"]);
    arguments(&mut command);
    if json {
        command.arg("--json");
    }
    finish(&mut command, "Strata's side")
}

/// The Python side: mlx-lm, driven by the scripts of tests/oracle.
struct Oracle {
    root: PathBuf,
    environment: Environment,
}

impl Oracle {
    fn prepare(root: &Path) -> Result<Self> {
        Ok(Self { root: root.to_owned(), environment: Environment::prepare(root, &ENVIRONMENT)? })
    }

    fn run(&self, script: &str, arguments: impl FnOnce(&mut Command) -> &mut Command) -> Result<()> {
        let mut command = self.environment.command();
        // What mlx-lm says while it works is no part of the results, which may be read as JSON.
        command.stdout(std::io::stderr());
        command.current_dir(&self.root).arg(Path::new("tests/oracle").join(script));
        arguments(&mut command);
        finish(&mut command, script)
    }
}

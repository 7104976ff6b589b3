//! Strata's side of `cargo xtask parity`: runs what the oracle ran, compares, prints a line a case, and exits with 1
//! unless every case is equal.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use strata_artifacts::SafetensorsFile;
use strata_contracts::{Composition, Dtype, KernelSet};
use strata_tests::parity::{Case, Fidelity, Model, Results, Tensor, compare, perplexity};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// One JSON object a line
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Compare on a folder of tiny models with their results, `FAMILY/VARIANT/PLAN.safetensors`
    Cases { folder: PathBuf },
    /// Compare on a real model
    Model {
        #[arg(long)]
        model: PathBuf,
        /// Results of a prompt and greedy steps
        #[arg(long)]
        greedy: PathBuf,
        /// Results of scoring a text in float32; with them fast mode is measured
        #[arg(long)]
        score: Option<PathBuf>,
        /// Dtype of activations in the greedy steps, as the oracle was told
        #[arg(long, value_parser = parse_dtype)]
        dtype: Option<Dtype>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let all_equal = match &arguments.command {
        Command::Cases { folder } => compare_cases(folder, arguments.json),
        Command::Model { model, greedy, score, dtype } => {
            compare_model(model, greedy, score.as_deref(), *dtype, arguments.json)
        }
    };
    match all_equal {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare_cases(folder: &Path, json: bool) -> Result<bool> {
    let mut families = Vec::new();
    for family in sorted(folder)?.iter().filter(|path| path.is_dir()) {
        let (mut equal, mut cases) = (0, 0);
        for variant in sorted(family)?.iter().filter(|path| path.is_dir()) {
            let name = format!("{}/{}", file_name(family), file_name(variant));
            let models = load(&variant.join("model"), None);
            for plan in
                sorted(variant)?.iter().filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
            {
                cases += 1;
                let name = format!("{name}/{}", plan.file_stem().unwrap_or_default().to_string_lossy());
                match &models {
                    Ok((reference, fast)) => {
                        let case = Case::run(name, &Results::read(plan)?, reference, Some(fast));
                        equal += usize::from(case.is_equal());
                        print(&case, json);
                    }
                    Err(error) if json => {
                        println!(
                            "{}",
                            json!({ "case": name, "equal": false, "error": format!("{error:#}") })
                        );
                    }
                    Err(error) => println!("{name:<36} FAILED {error:#}"),
                }
            }
        }
        families.push((file_name(family), equal, cases));
    }
    if !json {
        for (name, equal, cases) in &families {
            println!("{name:<16} {equal:>4} of {cases:>4} cases equal");
        }
    }
    Ok(!families.is_empty() && families.iter().all(|(_, equal, cases)| equal == cases && *cases > 0))
}

fn compare_model(
    folder: &Path,
    greedy: &Path,
    score: Option<&Path>,
    dtype: Option<Dtype>,
    json: bool,
) -> Result<bool> {
    let name = file_name(folder);
    let greedy = Results::read(greedy)?;
    let case = Case::run(format!("{name}/greedy"), &greedy, &load(folder, dtype)?.0, None);
    print(&case, json);
    let Some(score) = score else { return Ok(case.is_equal()) };

    let (reference, fast) = load(folder, Some(Dtype::Float32))?;
    let oracle = Score::read(score)?;
    let found = Fidelity::measure(&reference, &fast, &greedy.rows[0].tokens, &oracle.tokens, oracle.chunk)?;
    let mismatch = compare(&oracle.nll, &found.nll);
    let of_oracle = perplexity(&oracle.nll);
    if json {
        let score =
            json!({ "case": format!("{name}/score"), "equal": mismatch.is_none(), "perplexity": of_oracle });
        println!("{score}");
        println!("{}", json!({ "case": format!("{name}/fast"), "fast": found.json() }));
    } else {
        let verdict = mismatch.as_ref().map_or_else(|| "equal".to_owned(), |m| format!("DIFFERENT nll: {m}"));
        let tokens = oracle.nll.shape[0];
        println!(
            "{:<36} {verdict} ({tokens} likelihoods, perplexity {of_oracle:.4})",
            format!("{name}/score")
        );
        println!("{found}");
    }
    Ok(case.is_equal() && mismatch.is_none() && found.is_near())
}

/// The model in reference mode and in fast mode.
fn load(folder: &Path, activations: Option<Dtype>) -> Result<(Model, Model)> {
    let load = |kernels| Model::load(folder, Composition { kernels, activations, ..Composition::default() });
    Ok((load(KernelSet::Reference)?, load(KernelSet::Fast)?))
}

/// What the oracle wrote of scoring a text.
struct Score {
    tokens: Vec<i32>,
    chunk: usize,
    nll: Tensor,
}

impl Score {
    fn read(path: &Path) -> Result<Self> {
        let file = SafetensorsFile::open(path)?;
        let tensor = |name: &str| {
            let info = file.tensors().iter().find(|info| info.name == name);
            let info = info.with_context(|| format!("{} has no `{name}`", path.display()))?;
            anyhow::Ok(Tensor::of(&file.view(info)))
        };
        let chunk = *tensor("chunk")?.integers().first().context("the chunk is empty")?;
        Ok(Self {
            tokens: tensor("row.0.tokens")?.integers(),
            chunk: usize::try_from(chunk)?,
            nll: tensor("row.0.nll")?,
        })
    }
}

fn print(case: &Case, json: bool) {
    if json {
        println!("{}", case.json());
    } else {
        println!("{case}");
    }
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn parse_dtype(text: &str) -> Result<Dtype, String> {
    let known = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
    known
        .into_iter()
        .find(|dtype| dtype.name() == text)
        .ok_or_else(|| format!("{text} is no dtype of activations"))
}

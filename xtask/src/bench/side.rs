//! Who is measured, over how many tokens, and how one turn of each is run.

use super::{Bench, Peer};
use crate::parity;
use crate::python::{Environment, Recipe};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt;
use std::process::{Command, Stdio};

/// Tokens of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) prompt: u32,
    pub(super) r#gen: u32,
}

/// One engine in one configuration.
pub(super) struct Side<'a> {
    pub(super) engine: Engine<'a>,
    pub(super) work: Work,
}

pub(super) enum Engine<'a> {
    Strata,
    LlamaCpp(&'a Environment),
    /// The type of activations: `stored` or `float32`.
    MlxLm(&'a Environment, &'static str),
}

/// What one turn gave.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) prompt_rate: f64,
    pub(super) decode_rate: f64,
    pub(super) first_token_ms: f64,
    pub(super) vocab_size: u64,
    /// Type of activations.
    pub(super) dtype: String,
    /// Of the engine, where it says so.
    pub(super) version: Option<String>,
}

pub(super) fn name(peer: Peer) -> &'static str {
    match peer {
        Peer::MlxLm => "mlx-lm",
        Peer::LlamaCpp => "llama.cpp",
    }
}

/// How a peer's environment is made. mlx-lm is the one that parity is proven with.
pub(super) fn recipe(peer: Peer) -> Recipe<'static> {
    match peer {
        Peer::MlxLm => parity::ENVIRONMENT,
        Peer::LlamaCpp => Recipe {
            folder: "bench-llama-cpp",
            requirements: "xtask/src/bench/requirements.txt",
            build: Some(("CMAKE_ARGS", instructions())),
        },
    }
}

/// What llama.cpp is compiled for: each instruction set that this processor and system really offer. Left to itself it
/// goes by the processor's flags, and there are virtual machines that show AMX and then refuse it.
fn instructions() -> String {
    let sets: &[(&str, bool)] = &[
        #[cfg(target_arch = "x86_64")]
        ("AVX512", {
            std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512cd")
                && std::arch::is_x86_feature_detected!("avx512vl")
                && std::arch::is_x86_feature_detected!("avx512dq")
                && std::arch::is_x86_feature_detected!("avx512bw")
        }),
        #[cfg(target_arch = "x86_64")]
        ("AVX512_VNNI", std::arch::is_x86_feature_detected!("avx512vnni")),
        #[cfg(target_arch = "x86_64")]
        ("AVX512_BF16", std::arch::is_x86_feature_detected!("avx512bf16")),
        #[cfg(target_arch = "x86_64")]
        ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        #[cfg(target_arch = "x86_64")]
        ("FMA", std::arch::is_x86_feature_detected!("fma")),
        #[cfg(target_arch = "x86_64")]
        ("F16C", std::arch::is_x86_feature_detected!("f16c")),
        #[cfg(target_arch = "x86_64")]
        ("BMI2", std::arch::is_x86_feature_detected!("bmi2")),
    ];
    let native = ("NATIVE", !cfg!(target_arch = "x86_64"));
    let option = |&(set, there): &(&str, bool)| format!("-DGGML_{set}={}", if there { "ON" } else { "OFF" });
    let options: Vec<String> = [native].iter().chain(sets).map(option).collect();
    options.join(" ")
}

/// The sides in the order of their turns: before the peers of each amount of work, Strata over the same.
pub(super) fn line_up(environments: &[(Peer, Environment)], work: Work) -> Vec<Side<'_>> {
    let at_most = |prompt, r#gen| Work { prompt: work.prompt.min(prompt), r#gen: work.r#gen.min(r#gen) };
    let peers = environments.iter().flat_map(|(peer, environment)| match peer {
        Peer::LlamaCpp => vec![Side { engine: Engine::LlamaCpp(environment), work }],
        // On a CPU its operations are scalar loops, which take seconds a token in float16.
        Peer::MlxLm => vec![
            Side { engine: Engine::MlxLm(environment, "float32"), work: at_most(64, 16) },
            Side { engine: Engine::MlxLm(environment, "stored"), work: at_most(4, 3) },
        ],
    });
    let mut sides: Vec<Side> = Vec::new();
    for peer in peers {
        match sides.iter().rposition(|side| side.work == peer.work) {
            Some(last) => sides.insert(last + 1, peer),
            None => sides.extend([Side { engine: Engine::Strata, work: peer.work }, peer]),
        }
    }
    sides
}

impl Engine<'_> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Strata => "Strata",
            Self::LlamaCpp(_) => name(Peer::LlamaCpp),
            Self::MlxLm(..) => name(Peer::MlxLm),
        }
    }
}

impl Side<'_> {
    /// One turn.
    pub(super) fn measure(&self, bench: &Bench) -> Result<Sample> {
        let mut command = match self.engine {
            Engine::Strata => {
                let mut command = bench.strata();
                command.args(["bench", "--json", "--runs", "1", "--model"]).arg(&bench.own);
                command
            }
            Engine::LlamaCpp(environment) => {
                let mut command = environment.command();
                command.arg("xtask/src/bench/llama_cpp_side.py").arg("--model").arg(&bench.gguf);
                command
            }
            Engine::MlxLm(environment, dtype) => {
                let mut command = environment.command();
                command.arg("xtask/src/bench/mlx_lm_side.py").arg("--model").arg(&bench.folder);
                command.args(["--dtype", dtype]);
                command
            }
        };
        let threads = bench.threads.to_string();
        if !matches!(self.engine, Engine::Strata) {
            command.args(["--threads", &threads]).env("OMP_NUM_THREADS", &threads);
        }
        let (prompt, r#gen) = (self.work.prompt.to_string(), self.work.r#gen.to_string());
        command.current_dir(bench.root).args(["--prompt", &prompt, "--gen", &r#gen]);
        Sample::read(&mut command)
    }
}

impl fmt::Display for Side<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {} + {} tokens", self.engine.name(), self.work.prompt, self.work.r#gen)
    }
}

impl Sample {
    /// Runs a program that prints one JSON object.
    fn read(command: &mut Command) -> Result<Self> {
        let output = command.stderr(Stdio::inherit()).output().context("it cannot be started")?;
        if !output.status.success() {
            bail!("it failed ({})", output.status);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Self::parse(&text).with_context(|| format!("it printed {text:?}"))
    }

    fn parse(text: &str) -> Result<Self> {
        let object: Value = serde_json::from_str(text).context("this is not JSON")?;
        let number = |key: &str| {
            let value = object[key].as_f64().filter(|value| value.is_finite() && *value > 0.0);
            value.with_context(|| format!("{key} is no number above 0"))
        };
        Ok(Self {
            prompt_rate: number("prompt_tokens_per_s")?,
            decode_rate: number("decode_tokens_per_s")?,
            first_token_ms: number("first_token_ms")?,
            vocab_size: object["vocab_size"].as_u64().context("vocab_size is no number")?,
            dtype: object["dtype"].as_str().context("dtype is no text")?.to_owned(),
            version: object["version"].as_str().map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_compiled_in_and_never_amx() {
        let arguments = instructions();
        assert!(arguments.starts_with("-DGGML_NATIVE=O") && !arguments.contains("AMX"), "{arguments}");
        if cfg!(target_arch = "x86_64") {
            assert_eq!(
                arguments.matches("=ON").count() + arguments.matches("=OFF").count(),
                8,
                "{arguments}"
            );
        }
    }

    #[test]
    fn output_that_is_no_measurement_is_refused() {
        let good = r#"{"prompt_tokens_per_s": 2, "decode_tokens_per_s": 1.5, "first_token_ms": 3,
            "vocab_size": 9, "dtype": "float32"}"#;
        assert_eq!(Sample::parse(good).unwrap().decode_rate, 1.5);
        for (from, to) in [("1.5", "0"), ("1.5", "null"), ("\"vocab_size\": 9, ", ""), ("{", "")] {
            assert!(Sample::parse(&good.replace(from, to)).is_err(), "{from} -> {to}");
        }
    }
}

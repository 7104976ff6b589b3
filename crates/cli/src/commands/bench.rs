//! `strata bench`: prompt and decode speed of a model here, with what limits them.
//!
//! A run reads a prompt of arbitrary ids into empty state and produces tokens greedily, ignoring stop tokens. The first
//! run warms up and is not counted; the others give a median and their spread.

use crate::args::BenchArgs;
use crate::output::bytes;
use crate::session::{composition, open_model, write_stdout};
use anyhow::Result;
use serde_json::json;
use std::hint::black_box;
use std::time::{Duration, Instant};
use strata_contracts::{Composition, KvFormat};
use strata_generate::{Options, TokenStream, check_prompt, prefill};
use strata_kernels::{host::pool, sample};
use strata_models::{DecodeStep, Graph};
use strata_state::{Phase, State, projected_bytes};
use strata_tensor::{Array, Device, Dtype, async_eval, eval, memory, ops};

/// Times of one run.
struct Run {
    first_token: Duration,
    decode: Duration,
}

pub(crate) fn run(args: &BenchArgs, started: Instant) -> Result<()> {
    let folder = open_model(&args.model.model, args.json)?;
    let composition = composition(&args.model, &folder)?;
    let graph = strata_models::load(&folder, &composition)?;
    let startup = started.elapsed();

    let bench = Bench { graph: graph.as_ref(), composition: &composition, args };
    let prompt = bench.prompt()?;
    memory::reset_peak_memory()?;
    bench.run(&prompt)?;
    let runs: Vec<Run> = (0..args.runs).map(|_| bench.run(&prompt)).collect::<Result<_>>()?;
    let peak = memory::peak_memory()?;

    let (rows, steps) = (f64::from(args.batch), f64::from(args.r#gen - 1));
    let rate = |amount: f64, time: Duration| amount / time.as_secs_f64();
    let prompt_rates = Spread::of(runs.iter().map(|r| rate(rows * prompt.len() as f64, r.first_token)));
    let decode_rates = Spread::of(runs.iter().map(|r| rate(rows * steps, r.decode)));
    let first = Spread::of(runs.iter().map(|r| r.first_token.as_secs_f64() * 1e3));

    let [primitives, kernels] = bench.primitives(&prompt)?;
    let kv_bytes = kv_bytes(graph.as_ref(), &composition, prompt.len() + args.r#gen as usize / 2)?;
    let step_bytes = graph.step_bytes(args.batch as usize) as u64 + u64::from(args.batch) * kv_bytes;
    let on_a_cpu = Device::current()? == Device::Cpu;
    let bandwidth = if on_a_cpu { host_bandwidth() } else { device_bandwidth()? };
    let share = decode_rates.median / rows * step_bytes as f64 / bandwidth;
    let dtype = composition.activations.map_or("as stored", Dtype::name);
    let threads = pool::threads();

    if args.json {
        let object = json!({
            "model": args.model.model,
            "kernels": composition.kernels,
            "kv": composition.kv,
            "dtype": dtype,
            "backend": strata_tensor::BACKEND,
            "threads": threads,
            "batch": args.batch,
            "vocab_size": graph.declaration().vocab_size,
            "prompt_tokens": prompt.len(),
            "generated_tokens": args.r#gen,
            "runs": args.runs,
            "prompt_tokens_per_s": prompt_rates.median,
            "prompt_tokens_per_s_range": [prompt_rates.low, prompt_rates.high],
            "decode_tokens_per_s": decode_rates.median,
            "decode_tokens_per_s_range": [decode_rates.low, decode_rates.high],
            "first_token_ms": first.median,
            "startup_ms": startup.as_secs_f64() * 1e3,
            "peak_memory_bytes": peak,
            "primitives_per_token": primitives,
            "kernels_per_token": kernels,
            "bytes_per_token": step_bytes,
            "memory_bandwidth_bytes_per_s": bandwidth,
            "bandwidth_share": share,
        });
        write_stdout(&format!("{object}\n"))?;
        return Ok(());
    }
    let rows_text = [
        ("model", args.model.model.clone()),
        (
            "kernels",
            format!(
                "{:?}, {dtype}, {}, libmlx {}",
                composition.kernels,
                if on_a_cpu { format!("{threads} threads") } else { "GPU".to_owned() },
                strata_tensor::BACKEND
            ),
        ),
        ("start-up", format!("{:.0} ms", startup.as_secs_f64() * 1e3)),
        ("prompt", format!("{} tokens: {prompt_rates} tokens/s", prompt.len())),
        ("first token", format!("{first} ms")),
        ("decode", format!("{} x {} tokens: {decode_rates} tokens/s", args.batch, args.r#gen)),
        ("primitives", format!("{primitives} a step, of {kernels} that the graph has")),
        (
            "memory read",
            format!(
                "{} a step, {:.0}% of the measured {}/s",
                bytes(step_bytes),
                100.0 * share,
                bytes(bandwidth as u64)
            ),
        ),
        ("peak memory", bytes(peak as u64)),
    ];
    for (name, value) in rows_text {
        write_stdout(&format!("{name:>12}  {value}\n"))?;
    }
    Ok(())
}

struct Bench<'a> {
    graph: &'a dyn Graph,
    composition: &'a Composition,
    args: &'a BenchArgs,
}

impl Bench<'_> {
    /// Ids that repeat only after the whole vocabulary.
    fn prompt(&self) -> Result<Vec<u32>> {
        let vocab = u64::from(self.graph.declaration().vocab_size);
        let ids: Vec<u32> =
            (0..u64::from(self.args.prompt)).map(|i| ((i * 7919 + 13) % vocab) as u32).collect();
        check_prompt(self.graph.declaration(), &ids, self.args.r#gen as usize)?;
        Ok(ids)
    }

    fn state(&self) -> Result<State> {
        Ok(State::compose(&self.graph.declaration().layers, self.composition)?)
    }

    fn run(&self, prompt: &[u32]) -> Result<Run> {
        if self.args.batch > 1 {
            return self.run_batch(prompt);
        }
        let mut state = self.state()?;
        let options = Options { max_tokens: self.args.r#gen as usize, ..Options::default() };
        let mut stream = TokenStream::start(self.graph, &mut state, prompt, options)?;
        for token in stream.by_ref() {
            token?;
        }
        let statistics = stream.statistics();
        Ok(Run { first_token: statistics.first_token, decode: statistics.decode })
    }

    /// Rows read alone, then decoded together.
    fn run_batch(&self, prompt: &[u32]) -> Result<Run> {
        let start = Instant::now();
        let states: Vec<State> = (0..self.args.batch)
            .map(|_| {
                let mut state = self.state()?;
                prefill(self.graph, &mut state, prompt, Options::default().prefill_step)?;
                Ok(state)
            })
            .collect::<Result<_>>()?;
        let mut state = State::merge(&states.iter().collect::<Vec<_>>())?;
        drop(states);
        let rows = self.args.batch as i32;
        let ids = vec![prompt[0] as i32; rows as usize];
        let mut step = DecodeStep::new(self.graph);
        let mut next = greedy(&mut step, &Array::from_slice(&ids, [rows, 1])?, &mut state)?;
        next.eval()?;
        let first_token = start.elapsed();
        let start = Instant::now();
        for _ in 1..self.args.r#gen {
            let following = greedy(&mut step, &next.reshape([rows, 1])?, &mut state)?;
            async_eval([&following])?;
            next.eval()?;
            next = following;
        }
        next.eval()?;
        Ok(Run { first_token, decode: start.elapsed() })
    }

    /// Nodes of MLX's graph that one decode step of one row runs: as it runs, and as the model's graph is made of.
    fn primitives(&self, prompt: &[u32]) -> Result<[usize; 2]> {
        let mut state = self.state()?;
        prefill(self.graph, &mut state, prompt, Options::default().prefill_step)?;
        let ids = Array::from_slice(&[prompt[0] as i32], [1, 1])?;
        let count = |state: &State, next: &Array| -> Result<usize> {
            let names = ops::graph_names(state.arrays().into_iter().chain([next]))?;
            let mut counts = std::collections::BTreeMap::new();
            for name in &names {
                *counts.entry(name.as_str()).or_insert(0) += 1;
            }
            tracing::debug!(?counts, "primitives of a step");
            Ok(names.len())
        };
        // The first step may have to make room.
        let mut step = DecodeStep::new(self.graph);
        eval([&greedy(&mut step, &ids, &mut state)?])?;
        let mut plain = state.clone();
        let hidden = self.graph.hidden(&ids, &mut plain, Phase::Decode)?;
        let next = argmax(&self.graph.logits(&hidden)?.squeeze(&[1])?, &plain)?;
        let built = count(&plain, &next)?;
        let next = greedy(&mut step, &ids, &mut state)?;
        Ok([count(&state, &next)?, built])
    }
}

/// The greedy next ids `[B]` of ids `[B, 1]`.
fn greedy(step: &mut DecodeStep<'_>, ids: &Array, state: &mut State) -> Result<Array> {
    let logits = step.logits(ids, state)?;
    argmax(&logits, state)
}

/// The place of the largest logit of each row, by the host kernel where host kernels run.
fn argmax(logits: &Array, state: &State) -> Result<Array> {
    Ok(if state.host_kernels() { sample::argmax(logits)? } else { logits.argmax(-1, false)? })
}

/// Bytes of one row's state at `length` positions.
fn kv_bytes(graph: &dyn Graph, composition: &Composition, length: usize) -> Result<u64> {
    let activations = composition.activations.unwrap_or(Dtype::Float16);
    let mut composition = composition.clone();
    if length < composition.kv.start as usize {
        composition.kv.format = KvFormat::Plain;
    }
    Ok(projected_bytes(&graph.declaration().layers, &composition, activations, 1, length)? as u64)
}

/// Bytes a second that all threads together read from a buffer larger than the usual caches, again and again.
fn host_bandwidth() -> f64 {
    const WORDS: usize = 80_000_000 / 8;
    let buffer = vec![1u64; WORDS];
    let parts = pool::threads() * 8;
    let read = || {
        pool::parallel_for(parts, |i| {
            let part = &buffer[pool::part(WORDS, parts, 8, i)];
            black_box(part.iter().fold(0u64, |sum, &word| sum.wrapping_add(word)));
        });
    };
    read();
    let best = (0..10)
        .map(|_| {
            let start = Instant::now();
            read();
            start.elapsed()
        })
        .min()
        .unwrap_or_default();
    (WORDS * 8) as f64 / best.as_secs_f64()
}

/// Bytes a second that a GPU reads and writes in an operation on a buffer larger than its caches.
fn device_bandwidth() -> Result<f64> {
    const WORDS: i32 = 1 << 26;
    const STEPS: usize = 16;
    let start = ops::ones([WORDS], Dtype::Float32)?;
    start.eval()?;
    let pass = || -> Result<Duration> {
        let mut x = start.negative()?;
        for _ in 1..STEPS {
            x = x.negative()?;
        }
        let began = Instant::now();
        x.eval()?;
        Ok(began.elapsed())
    };
    let best = (0..10).map(|_| pass()).collect::<Result<Vec<_>>>()?.into_iter().min().unwrap_or_default();
    Ok((STEPS * 2 * 4 * WORDS as usize) as f64 / best.as_secs_f64())
}

/// Median, smallest and largest of a row of figures.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        Self { low: at(0), median: at(values.len() / 2), high: at(values.len() - 1) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} ({:.1} to {:.1})", self.median, self.low, self.high)
    }
}

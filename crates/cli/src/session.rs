//! A loaded model ready to answer: what the arguments meant, and one answer from ids to streamed text.

use crate::args::{ActivationType, Kernels, KvArgs, ModelArgs, SamplingArgs};
use crate::failure::Failure;
use crate::output::Reporter;
use anyhow::Result;
use std::io::Write;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use strata_artifacts::{ModelDir, Sources, read_kv_config};
use strata_contracts::{
    Composition, Dtype, FinishReason, KernelSet, KvFormat, KvScheme, QuantScheme, SamplingOptions, Statistics,
};
use strata_generate::{Options, TokenStream};
use strata_models::Graph;
use strata_state::State;
use strata_tensor::Device;
use strata_text::{ChatTemplate, SpecialTokens, StopMatcher, StopStrings, StopTokens, Tokenizer};

/// Finds a model by name, fetching it if need be.
pub(crate) fn open_model(name: &str, quiet: bool) -> Result<ModelDir> {
    let mut reporter = Reporter::new(quiet);
    let folder = Sources::from_env()?.open(name, &mut |progress| reporter.report(progress));
    reporter.finish();
    Ok(folder?)
}

/// A model, its text side, and what the user chose.
pub(crate) struct Session {
    pub(crate) graph: Box<dyn Graph>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: ChatTemplate,
    composition: Composition,
    stop_tokens: StopTokens,
    stops: StopStrings,
    options: Options,
    /// Set by Ctrl-C: ends the answer that is being given.
    interrupted: Arc<AtomicBool>,
}

/// One answer.
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) finish_reason: FinishReason,
    pub(crate) statistics: Statistics,
}

impl Session {
    pub(crate) fn load(model: &ModelArgs, sampling: &SamplingArgs, quiet: bool) -> Result<Self> {
        let sampling_options =
            sampling_options(sampling).validated().map_err(strata_generate::Error::from)?;
        let stops = StopStrings::new(sampling.stop.iter().cloned())?;
        let folder = open_model(&model.model, quiet)?;
        let composition = composition(model, &folder)?;
        // The vocabulary is parsed while the weights are read.
        let (tokenizer, graph) = thread::scope(|scope| {
            let tokenizer = scope.spawn(|| Tokenizer::open(folder.path()));
            let graph = strata_models::load(&folder, &composition);
            (tokenizer.join().unwrap_or_else(|panic| resume_unwind(panic)), graph)
        });
        let (tokenizer, graph) = (tokenizer?, graph?);
        let template = ChatTemplate::of(&tokenizer)?;
        let stop_tokens = StopTokens::new(&tokenizer, folder.end_tokens()?);
        let options = Options {
            sampling: sampling_options,
            max_tokens: sampling.max_tokens,
            stop_tokens: stop_tokens.ids().to_vec(),
            ..Options::default()
        };
        let interrupted = Arc::new(AtomicBool::new(false));
        Ok(Self { graph, tokenizer, template, composition, stop_tokens, stops, options, interrupted })
    }

    /// A flag that ends the current answer when set.
    pub(crate) fn interrupt_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.interrupted)
    }

    /// State for a new sequence.
    pub(crate) fn new_state(&self) -> Result<State> {
        Ok(State::compose(&self.graph.declaration().layers, &self.composition)?)
    }

    /// Reads `prompt` behind what `state` holds and gives the answer to `write`, piece by piece.
    pub(crate) fn answer(
        &self,
        state: &mut State,
        prompt: &[u32],
        write: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> Result<Answer> {
        self.interrupted.store(false, Ordering::Relaxed);
        let mut stream = TokenStream::start(self.graph.as_ref(), state, prompt, self.options.clone())?;
        let mut detokenizer = self.tokenizer.detokenizer(SpecialTokens::Skip);
        let mut matcher = StopMatcher::new(self.stops.clone());
        let (mut text, mut tokens) = (String::new(), Vec::new());
        let mut emit = |piece: &str| -> Result<()> {
            text.push_str(piece);
            write(piece)?;
            Ok(())
        };
        let mut stopped = false;
        while let Some(token) = stream.next() {
            let token = token?;
            tokens.push(token);
            if self.stop_tokens.contains(token) {
                break;
            }
            let step = matcher.push(detokenizer.push(token));
            emit(&step.text)?;
            if step.stopped.is_some() {
                stopped = true;
                stream.cancel(FinishReason::Stop);
                break;
            }
            if self.interrupted.load(Ordering::Relaxed) {
                stream.cancel(FinishReason::Cancelled);
                break;
            }
        }
        if !stopped {
            let tail = matcher.push(&detokenizer.finish());
            emit(&tail.text)?;
            if tail.stopped.is_none() {
                emit(&matcher.finish())?;
            }
        }
        let finish_reason = stream.finish_reason().unwrap_or(FinishReason::Stop);
        Ok(Answer { statistics: stream.statistics(), finish_reason, text, tokens })
    }
}

/// Writes to standard output and shows it at once.
pub(crate) fn write_stdout(piece: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(piece.as_bytes())?;
    out.flush()
}

fn sampling_options(args: &SamplingArgs) -> SamplingOptions {
    SamplingOptions {
        temperature: args.temp,
        top_p: args.top_p,
        min_p: args.min_p,
        top_k: args.top_k,
        repetition_penalty: args.repetition_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        logit_bias: args.logit_bias.clone(),
        seed: args.seed,
        ..SamplingOptions::default()
    }
}

/// Half types are slow on MLX's CPU backend, so a CPU computes in float32 unless told otherwise.
pub(crate) fn composition(args: &ModelArgs, folder: &ModelDir) -> Result<Composition> {
    let activations = match args.dtype {
        Some(ActivationType::Float32) => Some(Dtype::Float32),
        Some(ActivationType::Float16) => Some(Dtype::Float16),
        Some(ActivationType::Bfloat16) => Some(Dtype::Bfloat16),
        None if Device::current()? == Device::Cpu => Some(Dtype::Float32),
        None => None,
    };
    let kernels = match args.kernels {
        Kernels::Reference => KernelSet::Reference,
        Kernels::Fast => KernelSet::Fast,
    };
    Ok(Composition { kernels, activations, kv: kv_scheme(&args.kv, folder)? })
}

/// Plain unless asked for otherwise: a `kv_config.json` that lies in the model's folder is a proposal.
fn kv_scheme(args: &KvArgs, folder: &ModelDir) -> Result<KvScheme> {
    /// Tokens from which on mlx-lm's command quantizes (mlx_lm/generate.py, `DEFAULT_QUANTIZED_KV_START`).
    const START: u32 = 5000;
    let (format, start) = if let Some(bits) = args.kv_bits {
        (KvFormat::Affine(QuantScheme::affine(bits, args.kv_group_size.unwrap_or(64))?), START)
    } else if let Some([keys, values]) = args.kv_turbo {
        (KvFormat::Turbo { keys, values }, 0)
    } else if let Some(file) = &args.kv_config {
        let (layers, absent, help) = if file.as_os_str() == "auto" {
            let absent = format!("{} holds no kv_config.json", folder.path().display());
            (folder.kv_config()?, absent, "name a file behind --kv-config, or use --kv-bits")
        } else {
            let absent = format!("there is no file {}", file.display());
            (read_kv_config(file)?, absent, "name a kv_config.json, or write `auto` for that of the model")
        };
        (KvFormat::Layers(layers.ok_or_else(|| Failure::error(absent, help))?), 0)
    } else {
        return Ok(KvScheme::default());
    };
    Ok(KvScheme { format, start: args.quantized_kv_start.unwrap_or(start), page: None })
}

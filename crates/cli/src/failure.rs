//! Errors as users see them: one `error:` line, one `help:` line, exit status 1. (clap ends usage errors with 2.)

use crate::output::note;
use std::borrow::Cow;
use std::process::ExitCode;

/// A fault of the command's own, with its remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    help: &'static str,
}

impl Failure {
    pub(crate) fn error(message: impl Into<String>, help: &'static str) -> anyhow::Error {
        anyhow::Error::new(Self { message: message.into(), help })
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Prints the error and gives the exit status. A reader that went away (`strata … | head`) is no error.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let closed = error.chain().any(|e| {
        e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    });
    if closed {
        return ExitCode::SUCCESS;
    }
    let message = format!("{error:#}").replace('\n', "\n  ");
    note(format_args!("error: {message}\nhelp: {}", help(error)));
    ExitCode::FAILURE
}

const LESS_MEMORY: &str = "less memory may do: try a shorter prompt or a smaller model";

/// The remedy that the error itself knows, or where to look.
fn help(error: &anyhow::Error) -> Cow<'static, str> {
    for cause in error.chain() {
        if let Some(own) = cause.downcast_ref::<Failure>() {
            return own.help.into();
        }
        if let Some(help) =
            cause.downcast_ref::<strata_artifacts::Error>().and_then(strata_artifacts::Error::help)
        {
            return help;
        }
        if let Some(models) = cause.downcast_ref::<strata_models::Error>() {
            return model_help(models);
        }
        if let Some(generate) = cause.downcast_ref::<strata_generate::Error>() {
            return generate_help(generate);
        }
        if let Some(state) = cause.downcast_ref::<strata_state::Error>() {
            return state_help(state);
        }
        if cause.is::<strata_text::Error>() {
            return "use --raw to leave out the chat template, or fetch the model's tokenizer files again"
                .into();
        }
    }
    "run `strata --help`, or the same command with --verbose".into()
}

fn model_help(error: &strata_models::Error) -> Cow<'static, str> {
    use strata_models::Error as E;
    match error {
        E::Artifacts(inner) => inner.help().unwrap_or("check the model's files".into()),
        E::UnknownModelType { .. } => "use a model of a supported family".into(),
        E::TensorShape { .. } | E::UnusedTensors { .. } | E::Packing { .. } => {
            "config.json and the weights are not of the same model: fetch both again".into()
        }
        E::UnmatchedQuantization { .. } => "correct the names in config.json's quantization block".into(),
        E::State(inner) => state_help(inner),
        E::Tensor(inner) => tensor_help(inner),
        _ => "use a model whose configuration this version supports".into(),
    }
}

fn state_help(error: &strata_state::Error) -> Cow<'static, str> {
    match error {
        strata_state::Error::Format { .. } => {
            "keys and values have a format of the model's layers: see --kv-bits, --kv-group-size and --kv-config".into()
        }
        strata_state::Error::Tensor(inner) => tensor_help(inner),
        _ => LESS_MEMORY.into(),
    }
}

/// Of what MLX reports while a model runs, a want of memory is the likeliest.
fn tensor_help(error: &strata_tensor::Error) -> Cow<'static, str> {
    // How its CUDA operations say that they have no form for some shapes or types.
    if error.to_string().contains("No implementation") {
        "this libmlx cannot compute that on this device: try another --dtype, or leave out options such as --kv-bits".into()
    } else {
        LESS_MEMORY.into()
    }
}

fn generate_help(error: &strata_generate::Error) -> Cow<'static, str> {
    use strata_generate::Error as E;
    match error {
        E::Model(inner) => model_help(inner),
        E::State(inner) => state_help(inner),
        E::EmptyPrompt => "give some text as the prompt".into(),
        E::TokenRange { .. } => "the tokenizer does not belong to this model: fetch the model again".into(),
        E::ContextLength { .. } => "shorten the prompt, or use a model with a longer context".into(),
        E::Sampling(_) => "see the ranges in `strata generate --help`".into(),
        E::Tensor(inner) => tensor_help(inner),
        _ => LESS_MEMORY.into(),
    }
}

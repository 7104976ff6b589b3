//! GGUF files: read with every bound proven, and converted to a folder in Hugging Face layout.
//!
//! The reader is being built; this file fixes what its neighbours call.

use crate::error::{Error, Result};
use crate::progress::Progress;
use std::path::Path;

/// Why a GGUF file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The first four bytes are not the format's.
    #[error("it does not start with the bytes `GGUF`")]
    Magic,
}

/// How a GGUF file is converted.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ConvertOptions {}

/// Converts a GGUF file to a folder in Hugging Face layout. `out` exists and is empty.
///
/// # Errors
/// [`Error::Gguf`] when the file is not sound or holds what can't be converted, [`Error::Io`] on the way.
pub fn convert(
    gguf: &Path,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let _ = (out, options, progress);
    Err(Error::Gguf { path: gguf.to_owned(), problem: GgufError::Magic })
}

//! MLX's own readers and writers. They trust what a file says of itself: for files from outside use
//! `strata-artifacts`, which proves every bound first.

use crate::error::Result;
use crate::raw::{self, Array};
use std::collections::BTreeMap;
use std::path::Path;

/// Arrays by name, read lazily, and the file's metadata.
///
/// # Errors
/// MLX's message on a file it cannot read.
#[track_caller]
pub fn load_safetensors(path: &Path) -> Result<(BTreeMap<String, Array>, BTreeMap<String, String>)> {
    raw::load_safetensors(path)
}

/// Writes arrays (evaluating them) and metadata.
///
/// # Errors
/// MLX's message on a file it cannot write.
#[track_caller]
pub fn save_safetensors<'a>(
    path: &Path,
    arrays: impl IntoIterator<Item = (&'a str, &'a Array)>,
    metadata: &[(&str, &str)],
) -> Result<()> {
    raw::save_safetensors(path, arrays, metadata)
}

/// A GGUF file as MLX reads it: Q4_0, Q4_1 and Q8_0 become affine groups of 32 (`NAME.weight`, `.scales`, `.biases`),
/// F16 and F32 stay, other types become float16.
pub struct Gguf(raw::Gguf);

/// Reads a GGUF file.
///
/// # Errors
/// MLX's message on a file it cannot read.
#[track_caller]
pub fn load_gguf(path: &Path) -> Result<Gguf> {
    raw::load_gguf(path).map(Gguf)
}

impl Gguf {
    /// Names of the arrays.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn names(&self) -> Result<Vec<String>> {
        self.0.names()
    }

    /// The array called `name`.
    ///
    /// # Errors
    /// MLX's message when there is none.
    pub fn array(&self, name: &str) -> Result<Array> {
        self.0.array(name)
    }

    /// A text of the metadata, if it is one.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn metadata_text(&self, key: &str) -> Result<Option<String>> {
        self.0.metadata_text(key)
    }
}

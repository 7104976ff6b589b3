//! What a model's name means: a folder, a GGUF file, a stored or built-in model, or a Hugging Face repository.
//!
//! In this order:
//! 1. a folder that is there (for a name without a slash only if it holds `config.json`),
//! 2. a file that is there and ends in `.gguf`,
//! 3. a model in the store, or a built-in starter,
//! 4. `organisation/name`, with `@revision` behind it or not: a repository.

use crate::error::{Error, Result};
use crate::fetch::Starter;
use crate::model_dir::CONFIG;
use crate::store::Store;
use std::path::{Path, PathBuf};

/// A name whose kind is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelName {
    /// A folder that exists.
    Folder(PathBuf),
    /// A GGUF file that exists.
    Gguf(PathBuf),
    /// The folder of a model in the store.
    Stored(PathBuf),
    /// A built-in model that is not in the store yet.
    Starter(&'static Starter),
    /// A repository on the Hugging Face hub.
    Repository(RepositoryId),
}

/// `organisation/name` on the Hugging Face hub, at a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryId {
    id: String,
    revision: String,
}

impl ModelName {
    /// Finds out what a name means; looks at the disk, not at the network.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] when it is nothing of the above, [`Error::NotAModelFile`] for an existing file of
    /// another kind, and what [`Store::find`] gives.
    pub fn parse(name: &str, store: &Store) -> Result<Self> {
        let path = Path::new(name);
        let is_bare =
            path.components().count() == 1 && !name.contains(['/', '\\']) && name != "." && name != "..";
        if path.is_dir() && (!is_bare || path.join(CONFIG).is_file()) {
            return Ok(Self::Folder(path.to_owned()));
        }
        let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        if path.is_file() {
            return if is_gguf {
                Ok(Self::Gguf(path.to_owned()))
            } else {
                Err(Error::NotAModelFile { path: path.to_owned() })
            };
        }
        let starter = Starter::named(name);
        if is_bare && !is_gguf {
            match store.find(name) {
                Ok(Some(path)) => return Ok(Self::Stored(path)),
                Ok(None) | Err(Error::ModelName { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        match (starter, RepositoryId::parse(name)) {
            (Some(starter), _) => Ok(Self::Starter(starter)),
            (None, Some(repository)) if !is_gguf => Ok(Self::Repository(repository)),
            _ if path.is_dir() => Ok(Self::Folder(path.to_owned())),
            _ => Err(Error::UnknownModel { name: name.to_owned() }),
        }
    }
}

impl RepositoryId {
    /// Reads `organisation/name` or `organisation/name@revision`.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (organisation, name) = id.split_once('/')?;
        let plain = |part: &str| {
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            (1..=96).contains(&part.len())
                && part.bytes().all(letter)
                && !part.starts_with(['.', '-'])
                && !part.contains("..")
        };
        let valid =
            plain(organisation) && plain(name) && revision.len() <= 200 && revision.split('/').all(plain);
        valid.then(|| Self { id: id.to_owned(), revision: revision.to_owned() })
    }

    /// `organisation/name`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Branch, tag or commit; `main` unless one was named.
    pub fn revision(&self) -> &str {
        &self.revision
    }
}

//! The local store: models that Strata converted or downloaded, below the user's cache folder.
//!
//! The root is `$STRATA_HOME`, else `$XDG_CACHE_HOME/strata`, else `~/.cache/strata`. In it are `models/NAME`,
//! complete model folders and nothing else; `partial/NAME/…`, where installations work; and `locks/NAME`. The
//! invariant: a folder gets its name under `models/` by one rename, after everything in it was written and proven, so
//! a killed process leaves no half-made model, and processes that install the same one wait for each other.

use crate::error::{Error, Result};
use crate::json;
use crate::model_dir::ModelDir;
use crate::progress::{Progress, Stage};
use crate::write::write_json;
use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Raised when [`gguf::convert`](crate::gguf::convert) begins to write other files, so that stored models are made
/// anew.
const LAYOUT: u32 = 1;

/// The file in a stored model that says where it came from.
const MANIFEST: &str = "strata.json";

/// A folder of models.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// A model in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredModel {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub path: PathBuf,
    /// Size of its files.
    pub bytes: u64,
    /// Where it came from, in words.
    pub origin: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    origin: String,
    layout: u32,
}

impl Store {
    /// The user's store. Nothing is made until a model is installed.
    ///
    /// # Errors
    /// [`Error::NoHome`] when no variable says where it is.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(|name| env::var_os(name), env::home_dir())
    }

    fn from_vars(var: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Result<Self> {
        let set = |name| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(root) = set("STRATA_HOME") {
            return Ok(Self { root });
        }
        // The XDG base directory specification: a relative path counts as unset.
        let cache = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let cache = cache.or_else(|| Some(home?.join(".cache"))).ok_or(Error::NoHome)?;
        Ok(Self { root: cache.join("strata") })
    }

    /// A store in the folder `root`, which is made when a model is installed.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The store's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a model, if it is here, complete, and laid out as this version of Strata does.
    ///
    /// # Errors
    /// [`Error::ModelName`] for a name that can't be a folder's, [`Error::Io`] and [`Error::Json`] for a damaged
    /// entry.
    pub fn find(&self, name: &str) -> Result<Option<PathBuf>> {
        let path = self.model_path(name)?;
        let manifest: Option<Manifest> = json::read(&path.join(MANIFEST))?;
        Ok(manifest.is_some_and(|manifest| manifest.layout == LAYOUT).then_some(path))
    }

    /// All models, in ascending order of their names.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Json`] when the store or an entry can't be read. No store yet is no error.
    pub fn list(&self) -> Result<Vec<StoredModel>> {
        let mut models = Vec::new();
        for path in children(&self.root.join("models"))? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
                continue;
            };
            let Some(manifest) = json::read::<Manifest>(&path.join(MANIFEST))? else { continue };
            let bytes = size(&path)?;
            models.push(StoredModel { name, bytes, path, origin: manifest.origin });
        }
        models.sort_by(|first, second| first.name.cmp(&second.name));
        Ok(models)
    }

    /// Removes a model.
    ///
    /// # Errors
    /// [`Error::NotStored`] when it is not here, [`Error::Io`] when it can't be removed.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.model_path(name)?;
        if !path.is_dir() {
            return Err(Error::NotStored { name: name.to_owned() });
        }
        let _lock = self.lock(name, &mut |_| ())?;
        let away = self.work_folder(name)?;
        fs::rename(&path, away.path().join("old")).map_err(|source| Error::io("remove", &path, source))?;
        away.close().map_err(|source| Error::io("remove", &path, source))
    }

    /// The folder of a model, made by `build` if it is not here yet.
    ///
    /// `build` gets an empty folder for the model's files and one for whatever it needs meanwhile; what it wrote is
    /// opened and proven before it gets its name. `origin` says in words where the model came from.
    ///
    /// # Errors
    /// [`Error::Store`] when the store can't be written, whatever `build` gives, and the errors of
    /// [`ModelDir::open`] and [`ModelDir::weights`] when what it made is no sound model. Nothing stays behind.
    pub fn install(
        &self,
        name: &str,
        origin: &str,
        progress: &mut dyn FnMut(Progress),
        build: impl FnOnce(&Path, &Path, &mut dyn FnMut(Progress)) -> Result<()>,
    ) -> Result<PathBuf> {
        if let Some(path) = self.find(name)? {
            return Ok(path);
        }
        let path = self.model_path(name)?;
        let lock = self.lock(name, progress)?;
        // Another process may have made it while this one waited.
        if let Some(path) = self.find(name)? {
            return Ok(path);
        }
        let work = self.work_folder(name)?;
        let (model, scratch) = (work.path().join("model"), work.path().join("scratch"));
        self.create(&model)?;
        self.create(&scratch)?;
        build(&model, &scratch, progress)?;
        ModelDir::open(&model)?.weights()?;
        write_json(&model.join(MANIFEST), &Manifest { origin: origin.into(), layout: LAYOUT })?;
        self.put(&model, &path)?;
        drop((work, lock));
        Ok(path)
    }

    fn put(&self, model: &Path, path: &Path) -> Result<()> {
        self.create(&self.root.join("models"))?;
        if path.exists() {
            // Of another layout, or not a model at all.
            let old = model.with_file_name("old");
            fs::rename(path, old).map_err(|source| Error::io("replace", path, source))?;
        }
        fs::rename(model, path).map_err(|source| Error::io("write", path, source))
    }

    /// Takes the lock of a name; it is freed when the file is dropped, or the process ends in whatever way.
    fn lock(&self, name: &str, progress: &mut dyn FnMut(Progress)) -> Result<File> {
        let folder = self.root.join("locks");
        self.create(&folder)?;
        let file = File::create(folder.join(name)).map_err(|source| self.unwritable(source))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                progress(Progress { stage: Stage::Waiting, done: 0, total: None });
                file.lock().map_err(|source| self.unwritable(source))?;
            }
            // A file system without locks: one process at a time is then the user's care.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(self.unwritable(error)),
            Ok(()) => {}
        }
        Ok(file)
    }

    /// A new folder `partial/NAME/…`, gone when it is dropped; what killed processes left there goes now.
    ///
    /// Every one is new because a program that a killed installation had started may go on writing to its own.
    fn work_folder(&self, name: &str) -> Result<TempDir> {
        let partial = self.root.join("partial").join(name);
        // What such a program still holds on to goes the next time.
        let _ = fs::remove_dir_all(&partial);
        self.create(&partial)?;
        tempfile::tempdir_in(&partial).map_err(|source| self.unwritable(source))
    }

    fn create(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).map_err(|source| self.unwritable(source))
    }

    fn unwritable(&self, source: io::Error) -> Error {
        Error::Store { path: self.root.clone(), source }
    }

    fn model_path(&self, name: &str) -> Result<PathBuf> {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let valid =
            !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.bytes().all(letter);
        if valid {
            Ok(self.root.join("models").join(name))
        } else {
            Err(Error::ModelName { name: name.to_owned() })
        }
    }
}

fn children(folder: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::io("read", folder, source);
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path()).map_err(io)).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(io(error)),
    }
}

/// Bytes of all files below a folder.
pub(crate) fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for path in children(folder)? {
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => bytes += size(&path)?,
            Ok(metadata) => bytes += metadata.len(),
            // Removed since it was listed, as a running download does with its temporary files.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &path, error)),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_where_the_variables_say() {
        let root = |vars: &[(&str, &str)], home: Option<&str>| {
            let var =
                |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            Store::from_vars(var, home.map(PathBuf::from)).map(|store| store.root)
        };
        let (own, xdg, empty) = (("STRATA_HOME", "/s"), ("XDG_CACHE_HOME", "/x"), ("STRATA_HOME", ""));
        assert_eq!(root(&[own, xdg], Some("/h")).unwrap(), Path::new("/s"));
        assert_eq!(root(&[empty, xdg], Some("/h")).unwrap(), Path::new("/x/strata"));
        assert_eq!(root(&[("XDG_CACHE_HOME", "x")], Some("/h")).unwrap(), Path::new("/h/.cache/strata"));
        assert_eq!(root(&[], Some("/h")).unwrap(), Path::new("/h/.cache/strata"));
        assert!(matches!(root(&[], None), Err(Error::NoHome)));
    }
}

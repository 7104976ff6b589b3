//! All tensors of a model, from however many shards, by name.
//!
//! The invariant: the files are those of the rule in `shards.rs`, each opened and proven, each holding exactly what
//! the index maps to it; every name is unique.

use crate::error::{Error, Result};
use crate::safetensors::{SafetensorsFile, TensorInfo, TensorView};
use crate::shards::{ShardError, ShardSet};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The opened weights of a model. Nothing is read from the disk until a tensor's bytes are.
#[derive(Debug)]
pub struct Weights {
    folder: PathBuf,
    files: Vec<SafetensorsFile>,
    /// Name to (position in `files`, position in that file's tensors).
    places: BTreeMap<String, (usize, usize)>,
}

impl Weights {
    /// Opens every shard of a set that [`ShardSet::find`] made.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Safetensors`] for a file, [`Error::Shards`] when a file and the index disagree or
    /// a tensor is in two files.
    pub fn open(folder: &Path, shards: &ShardSet) -> Result<Self> {
        let files: Vec<_> =
            shards.files.iter().map(|path| SafetensorsFile::open(path)).collect::<Result<_>>()?;
        let refuse = |problem| Error::Shards { folder: folder.to_owned(), problem };
        let mut places: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            if let Some(listed) = shards.index.as_ref().and_then(|index| index.get(&file_name(file))) {
                compare(file, listed).map_err(refuse)?;
            }
            for (position, tensor) in file.tensors().iter().enumerate() {
                if let Some((other, _)) = places.insert(tensor.name.clone(), (number, position)) {
                    let (first, second) = (file_name(&files[other]), file_name(file));
                    return Err(refuse(ShardError::TensorTwice {
                        tensor: tensor.name.clone(),
                        first,
                        second,
                    }));
                }
            }
        }
        Ok(Self { folder: folder.to_owned(), files, places })
    }

    /// The tensor of this name, if the model has it.
    pub fn get(&self, name: &str) -> Option<TensorView> {
        let &(file, position) = self.places.get(name)?;
        Some(self.files[file].view(&self.files[file].tensors()[position]))
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`Error::MissingTensor`], naming it.
    pub fn require(&self, name: &str) -> Result<TensorView> {
        self.get(name)
            .ok_or_else(|| Error::MissingTensor { folder: self.folder.clone(), tensor: name.to_owned() })
    }

    /// What is known of the tensor of this name without touching its bytes.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        let &(file, position) = self.places.get(name)?;
        self.files[file].tensors().get(position)
    }

    /// Every name, in ascending order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Every tensor's description, in ascending order of the names.
    pub fn infos(&self) -> impl Iterator<Item = &TensorInfo> {
        self.places.values().map(|&(file, position)| &self.files[file].tensors()[position])
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True when the files hold no tensor.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.infos().map(|tensor| tensor.range.len() as u64).sum()
    }

    /// The opened files.
    pub fn files(&self) -> &[SafetensorsFile] {
        &self.files
    }
}

/// Holds a file's tensors against what the index places in it.
fn compare(file: &SafetensorsFile, listed: &BTreeSet<String>) -> Result<(), ShardError> {
    let held: BTreeSet<&str> = file.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    if let Some(tensor) = listed.iter().find(|name| !held.contains(name.as_str())) {
        return Err(ShardError::MissingTensor { tensor: tensor.clone(), file: file_name(file) });
    }
    match held.into_iter().find(|name| !listed.contains(*name)) {
        Some(tensor) => Err(ShardError::UnlistedTensor { tensor: tensor.to_owned(), file: file_name(file) }),
        None => Ok(()),
    }
}

fn file_name(file: &SafetensorsFile) -> String {
    file.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

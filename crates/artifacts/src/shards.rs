//! Which files of a folder are the model's weights. The rule, written down once:
//!
//! 1. If `model.safetensors.index.json` exists, exactly the files that it names are the weights. Every one must
//!    exist, and must hold exactly the tensors that the index maps to it.
//! 2. Otherwise, if `model.safetensors` exists, it is the weights.
//! 3. Otherwise the files `model-00001-of-0000N.safetensors` … must be there from 1 to N, of one N, and no tensor
//!    twice.
//! 4. Anything else is an error. Other `.safetensors` files in the folder are left alone and noted.
//!
//! So nothing is ever loaded in part or mixed from two shardings.

use crate::error::{Error, Result};
use crate::json;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The name of the index file.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The weight files of a folder, known to exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSet {
    /// Paths in ascending order of their names.
    pub files: Vec<PathBuf>,
    /// What the index says each file holds: file name to tensor names. `None` without an index.
    pub(crate) index: Option<BTreeMap<String, BTreeSet<String>>>,
    /// Names of `.safetensors` files in the folder that are not part of the model.
    pub ignored: Vec<String>,
}

/// Why the weight files of a folder are no model.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// No weight file at all.
    #[error("it holds no weights: neither {SINGLE} nor a set of shards")]
    NoWeights,
    /// Safetensors files, but under names that no rule covers.
    #[error("it holds {found}, but no {SINGLE}, no set model-00001-of-0000N.safetensors and no index")]
    UnknownNames {
        /// One of the files found.
        found: String,
    },
    /// The index names no tensor.
    #[error("{INDEX} maps no tensors")]
    EmptyIndex,
    /// The index names something that is not a plain file name.
    #[error(
        "{INDEX} maps tensor `{tensor}` to {file:?}, which is not the name of a .safetensors file beside it"
    )]
    FileName {
        /// The tensor.
        tensor: String,
        /// What the index has.
        file: String,
    },
    /// A shard is absent.
    #[error("{file} is missing")]
    MissingShard {
        /// Name of the absent file.
        file: String,
    },
    /// Shards of two shardings without an index that chooses.
    #[error("it holds shards of two sets, {first} and {second}, and no index says which is the model")]
    TwoSets {
        /// A shard of one set.
        first: String,
        /// A shard of another.
        second: String,
    },
    /// The index maps a tensor to a file that does not have it.
    #[error("{INDEX} places tensor `{tensor}` in {file}, which does not hold it")]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// A file has a tensor that the index does not place there.
    #[error("{file} holds tensor `{tensor}`, which {INDEX} does not place there")]
    UnlistedTensor {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// Two shards hold the same tensor.
    #[error("tensor `{tensor}` is in {first} and in {second}")]
    TensorTwice {
        /// The tensor.
        tensor: String,
        /// The first file.
        first: String,
        /// The second file.
        second: String,
    },
}

impl ShardSet {
    /// Applies the rule above to a folder. Tensors are compared with the index when the files are opened, in
    /// [`Weights::open`](crate::Weights::open).
    ///
    /// # Errors
    /// [`Error::Shards`] with the [`ShardError`]; [`Error::Io`] and [`Error::Json`] for the folder and the index.
    pub fn find(folder: &Path) -> Result<Self> {
        Self::choose(folder, &safetensors_in(folder)?)
    }

    /// Applies the rule to a folder whose weight files are `present`, there or still to be downloaded; the index must
    /// be in the folder if the model has one.
    pub(crate) fn choose(folder: &Path, present: &BTreeSet<String>) -> Result<Self> {
        let refuse = |problem| Error::Shards { folder: folder.to_owned(), problem };
        let index: Option<Index> = json::read(&folder.join(INDEX))?;
        let index = index.map(Index::by_file).transpose().map_err(refuse)?;
        let names = match &index {
            Some(by_file) => by_file.keys().cloned().collect(),
            None => without_index(present).map_err(refuse)?,
        };
        if let Some(file) = names.iter().find(|name| !present.contains(*name)) {
            return Err(refuse(ShardError::MissingShard { file: file.clone() }));
        }
        let ignored = present.difference(&names).cloned().collect();
        Ok(Self { files: names.iter().map(|name| folder.join(name)).collect(), index, ignored })
    }

    /// The names of the files, in ascending order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter_map(|path| path.file_name()?.to_str())
    }
}

/// The names of the shards in a folder that has no index.
fn without_index(present: &BTreeSet<String>) -> Result<BTreeSet<String>, ShardError> {
    if present.contains(SINGLE) {
        return Ok(BTreeSet::from([SINGLE.to_owned()]));
    }
    let mut shards = present.iter().filter_map(|name| Some((name, shard_of(name)?)));
    let Some((first, count)) = shards.next() else {
        return Err(match present.first() {
            None => ShardError::NoWeights,
            Some(found) => ShardError::UnknownNames { found: found.clone() },
        });
    };
    if let Some((second, _)) = shards.find(|&(_, other)| other != count) {
        return Err(ShardError::TwoSets { first: first.clone(), second: second.clone() });
    }
    // Stops at the first absent shard, so a name that claims 10^5 of them costs nothing.
    let mut names = BTreeSet::new();
    for number in 1..=count {
        let file = format!("model-{number:05}-of-{count:05}.safetensors");
        if !present.contains(&file) {
            return Err(ShardError::MissingShard { file });
        }
        names.insert(file);
    }
    Ok(names)
}

/// The number of shards in the set that a file name `model-00001-of-00003.safetensors` belongs to.
fn shard_of(name: &str) -> Option<u32> {
    let (number, count) = name.strip_prefix("model-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
    let digits = |text: &str| if text.len() == 5 { text.parse::<u32>().ok() } else { None };
    let (number, count) = (digits(number)?, digits(count)?);
    (1..=count).contains(&number).then_some(count)
}

fn safetensors_in(folder: &Path) -> Result<BTreeSet<String>> {
    let io = |source| Error::io("read", folder, source);
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        if let Some(name) = name.to_str().filter(|name| name.ends_with(".safetensors")) {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Index {
    fn by_file(self) -> Result<BTreeMap<String, BTreeSet<String>>, ShardError> {
        let mut by_file: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (tensor, file) in self.weight_map {
            let mut parts = Path::new(&file).components();
            let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
            if !plain || !file.ends_with(".safetensors") {
                return Err(ShardError::FileName { tensor, file });
            }
            by_file.entry(file).or_default().insert(tensor);
        }
        if by_file.is_empty() { Err(ShardError::EmptyIndex) } else { Ok(by_file) }
    }
}

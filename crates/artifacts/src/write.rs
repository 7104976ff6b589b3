//! Writing model files: every file appears under its name whole or not at all.
//!
//! A file is written to a temporary name in the same folder, flushed to the disk and renamed. Weights are written by
//! [`WeightsWriter`], one file or many shards with an index, in the layout that `shards.rs` reads.

use crate::error::{Error, Result};
use crate::safetensors::{HeaderError, dtype_name};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::{HashSet, VecDeque};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use strata_contracts::Dtype;
use tempfile::NamedTempFile;

/// Most bytes of weights in one file of a converted model; more become shards.
pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;

/// A tensor that is going to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Sizes of the axes, outermost first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Bytes of the elements.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().fold(self.dtype.size() as u64, |bytes, &axis| bytes.saturating_mul(axis as u64))
    }
}

/// Writes the weights of a model folder, one tensor after the other; nothing is kept in memory.
///
/// The result is `model.safetensors`, or shards `model-00001-of-0000N.safetensors` with
/// `model.safetensors.index.json`. No file shows before [`WeightsWriter::finish`], the index last.
#[derive(Debug)]
pub struct WeightsWriter {
    folder: PathBuf,
    index: Value,
    /// Shards not begun yet.
    planned: VecDeque<(String, Vec<TensorSpec>)>,
    /// The shard that is being written, and its tensors still to come.
    current: Option<(Shard, VecDeque<TensorSpec>)>,
    written: Vec<Shard>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    file: BufWriter<NamedTempFile>,
}

impl WeightsWriter {
    /// Plans the weights of `folder`, which must exist and hold no weights yet. Shards are filled in the order of
    /// `tensors` up to `max_shard_bytes` of data each; a tensor larger than that gets a shard to itself.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] when the folder holds weights, [`Error::Safetensors`] when two tensors have one
    /// name, [`Error::Io`] when the folder can't be read.
    pub fn create(folder: &Path, tensors: Vec<TensorSpec>, max_shard_bytes: u64) -> Result<Self> {
        refuse_existing_weights(folder)?;
        let mut names = HashSet::new();
        if let Some(twice) = tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
            let problem = HeaderError::Duplicate { tensor: twice.name.clone() };
            return Err(Error::Safetensors { path: folder.to_owned(), problem });
        }

        let total: u64 = tensors.iter().map(TensorSpec::bytes).sum();
        let mut shards: Vec<Vec<TensorSpec>> = vec![Vec::new()];
        let mut filled = 0;
        for tensor in tensors {
            let bytes = tensor.bytes();
            if filled > 0 && filled + bytes > max_shard_bytes {
                shards.push(Vec::new());
                filled = 0;
            }
            filled += bytes;
            if let Some(shard) = shards.last_mut() {
                shard.push(tensor);
            }
        }

        let count = shards.len();
        let mut weight_map = Map::new();
        let mut planned = VecDeque::new();
        for (number, shard) in (1..).zip(shards) {
            let name = match count {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{number:05}-of-{count:05}.safetensors"),
            };
            for tensor in &shard {
                weight_map.insert(tensor.name.clone(), Value::String(name.clone()));
            }
            planned.push_back((name, shard));
        }
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        Ok(Self { folder: folder.to_owned(), index, planned, current: None, written: Vec::new() })
    }

    /// Writes the elements of the next tensor, row-major and little-endian.
    ///
    /// # Errors
    /// [`Error::WrittenBytes`] when the length is not what the tensor's dtype and shape ask for or when no tensor
    /// is left, [`Error::Io`] when the disk refuses.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let found = bytes.len() as u64;
        let Some((shard, tensor)) = self.next_tensor()? else {
            return Err(Error::WrittenBytes { tensor: String::new(), expected: 0, found });
        };
        if tensor.bytes() != found {
            return Err(Error::WrittenBytes { expected: tensor.bytes(), tensor: tensor.name, found });
        }
        shard.file.write_all(bytes).map_err(|source| Error::io("write", shard.file.get_ref().path(), source))
    }

    /// Gives every file its name.
    ///
    /// # Errors
    /// [`Error::WrittenBytes`] when a tensor is missing, [`Error::Io`] when the disk refuses; no file shows then.
    pub fn finish(mut self) -> Result<()> {
        if let Some((_, tensor)) = self.next_tensor()? {
            return Err(Error::WrittenBytes { expected: tensor.bytes(), tensor: tensor.name, found: 0 });
        }
        self.written.extend(self.current.take().map(|(shard, _)| shard));
        let sharded = self.written.len() > 1;
        let mut finished = Vec::new();
        for shard in self.written {
            let path = self.folder.join(&shard.name);
            let file =
                shard.file.into_inner().map_err(|error| Error::io("write", &path, error.into_error()))?;
            file.as_file().sync_all().map_err(|source| Error::io("write", &path, source))?;
            finished.push((file, path));
        }
        for (file, path) in finished {
            persist(file, &path)?;
        }
        if sharded {
            write_json(&self.folder.join("model.safetensors.index.json"), &self.index)
        } else {
            Ok(())
        }
    }

    /// Takes the next tensor off the plan and the shard it goes to, beginning a new shard where one is due.
    fn next_tensor(&mut self) -> Result<Option<(&mut Shard, TensorSpec)>> {
        if self.current.as_ref().is_none_or(|(_, tensors)| tensors.is_empty()) {
            let Some((name, tensors)) = self.planned.pop_front() else { return Ok(None) };
            let shard = Shard::begin(&self.folder, name, &tensors)?;
            self.written.extend(self.current.replace((shard, tensors.into())).map(|(shard, _)| shard));
        }
        let next = self.current.as_mut().and_then(|(shard, tensors)| Some((shard, tensors.pop_front()?)));
        Ok(next)
    }
}

impl Shard {
    /// Opens a temporary file and writes the header that announces `tensors`.
    fn begin(folder: &Path, name: String, tensors: &[TensorSpec]) -> Result<Self> {
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!({ "format": "mlx" }));
        let mut start = 0;
        for tensor in tensors {
            let end = start + tensor.bytes();
            let entry = json!({
                "dtype": dtype_name(tensor.dtype), "shape": tensor.shape, "data_offsets": [start, end],
            });
            header.insert(tensor.name.clone(), entry);
            start = end;
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        // The format pads the header with spaces so that the data starts aligned.
        header.resize(header.len().next_multiple_of(8), b' ');

        let mut file = BufWriter::new(temporary(folder)?);
        let length = (header.len() as u64).to_le_bytes();
        file.write_all(&length)
            .and_then(|()| file.write_all(&header))
            .map_err(|source| Error::io("write", file.get_ref().path(), source))?;
        Ok(Self { name, file })
    }
}

/// Writes a file atomically.
///
/// # Errors
/// [`Error::Io`] when the folder does not exist or can't be written; the old file is untouched then.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = temporary(path.parent().unwrap_or(Path::new("")))?;
    file.write_all(bytes)
        .and_then(|()| file.as_file().sync_all())
        .map_err(|source| Error::io("write", path, source))?;
    persist(file, path)
}

/// Writes a value as indented JSON with a closing newline, atomically.
///
/// # Errors
/// As [`write_bytes`].
pub fn write_json<T: Serialize + ?Sized>(path: &Path, value: &T) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|error| Error::io("write", path, io::Error::other(error)))?;
    text.push(b'\n');
    write_bytes(path, &text)
}

fn refuse_existing_weights(folder: &Path) -> Result<()> {
    let io = |source| Error::io("read", folder, source);
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") {
            return Err(Error::AlreadyExists { path: folder.to_owned() });
        }
    }
    Ok(())
}

/// A temporary file in `folder` that goes when it is dropped, with the permissions of an ordinary new file.
fn temporary(folder: &Path) -> Result<NamedTempFile> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".strata-").suffix(".tmp");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder).map_err(|source| Error::io("write in", folder, source))
}

fn persist(file: NamedTempFile, path: &Path) -> Result<()> {
    file.persist(path).map_err(|error| Error::io("write", path, error.error))?;
    Ok(())
}

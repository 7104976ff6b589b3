//! Safetensors files: the header is parsed and every bound proven before anyone sees a byte of a tensor.
//!
//! The invariant: each [`TensorInfo`] names a byte range that lies in the file, has exactly the size its dtype and
//! shape ask for, and shares no byte with another tensor; together the ranges cover the data section without a gap.
//! The format (<https://github.com/huggingface/safetensors>): 8 bytes of little-endian header length, a JSON
//! object from tensor names to `{dtype, shape, data_offsets}` with an optional `__metadata__` map of strings, then
//! the data. Which files make a model is decided in `shards.rs`.

use crate::error::{Error, Result};
use crate::mmap::Mapped;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use strata_contracts::Dtype;

/// Longest header that is read, in bytes; the reference implementation has the same limit.
const MAX_HEADER: u64 = 100_000_000;

/// An opened file: mapped bytes and the proven place of every tensor in them.
#[derive(Debug, Clone)]
pub struct SafetensorsFile {
    path: PathBuf,
    bytes: Mapped,
    tensors: Vec<TensorInfo>,
    metadata: BTreeMap<String, String>,
}

/// Where one tensor lies in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Sizes of the axes, outermost first; empty for a scalar. Each fits MLX's 32-bit signed sizes.
    pub shape: Vec<usize>,
    /// Bytes of the file that hold the elements, row-major and little-endian.
    pub range: Range<usize>,
}

/// One tensor's bytes, row-major and little-endian, with what they mean. Keeps the file mapped while it lives.
///
/// The bytes need not be aligned for the dtype: a file may start its data at any offset.
#[derive(Debug, Clone)]
pub struct TensorView {
    /// Element type.
    pub dtype: Dtype,
    /// Sizes of the axes, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Exactly the bytes of the elements.
    pub data: Mapped,
}

impl SafetensorsFile {
    /// Maps a file and proves its header.
    ///
    /// # Errors
    /// [`Error::Io`] when the file can't be mapped, [`Error::Safetensors`] with a [`HeaderError`] when its header
    /// is not sound.
    pub fn open(path: &Path) -> Result<Self> {
        Self::parse(path, Mapped::open(path)?)
    }

    /// Proves the header of a file already in memory; `path` is used in messages alone.
    ///
    /// # Errors
    /// [`Error::Safetensors`] with the [`HeaderError`].
    pub fn parse(path: &Path, bytes: Mapped) -> Result<Self> {
        let (tensors, metadata) =
            parse_header(&bytes).map_err(|problem| Error::Safetensors { path: path.to_owned(), problem })?;
        Ok(Self { path: path.to_owned(), bytes, tensors, metadata })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors, in the order of their bytes.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The file's `__metadata__`, such as `format`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The bytes of one of [`SafetensorsFile::tensors`].
    ///
    /// # Panics
    /// When `info` comes from another file and lies outside of this one.
    pub fn view(&self, info: &TensorInfo) -> TensorView {
        TensorView {
            dtype: info.dtype,
            shape: info.shape.clone(),
            data: self.bytes.slice(info.range.clone()),
        }
    }
}

/// Why a safetensors file was refused.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// Too few bytes for the header's length.
    #[error("it has {bytes} bytes, fewer than the 8 that every safetensors file starts with")]
    TooShort {
        /// Bytes in the file.
        bytes: u64,
    },
    /// The header would end after the file does.
    #[error("its header would be {length} bytes long, but only {available} bytes follow the length")]
    BeyondFile {
        /// Length the file states.
        length: u64,
        /// Bytes after the length field.
        available: u64,
    },
    /// The header is longer than any real one.
    #[error("its header would be {length} bytes long; the limit is {MAX_HEADER}")]
    TooLong {
        /// Length the file states.
        length: u64,
    },
    /// The header is not the JSON that the format asks for.
    #[error("its header is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// Two entries have the same name.
    #[error("tensor `{tensor}` is listed twice")]
    Duplicate {
        /// Name of the tensor.
        tensor: String,
    },
    /// The element type is unknown, or known and not readable here.
    #[error("tensor `{tensor}` has dtype `{dtype}`, which Strata can't read")]
    Dtype {
        /// Name of the tensor.
        tensor: String,
        /// Dtype as the file has it.
        dtype: String,
    },
    /// An axis beyond 2^31 - 1, or more bytes than an address can count.
    #[error("tensor `{tensor}` has shape {shape:?}, which is too large to address")]
    Shape {
        /// Name of the tensor.
        tensor: String,
        /// Shape as the file has it.
        shape: Vec<u64>,
    },
    /// Not a pair in ascending order.
    #[error("tensor `{tensor}` has data_offsets {offsets:?}, which are not a start and an end")]
    Offsets {
        /// Name of the tensor.
        tensor: String,
        /// Offsets as the file has them.
        offsets: Vec<u64>,
    },
    /// The offsets disagree with dtype and shape.
    #[error("tensor `{tensor}` ({dtype} {shape:?}) needs {expected} bytes but its data_offsets span {found}")]
    Size {
        /// Name of the tensor.
        tensor: String,
        /// Element type.
        dtype: Dtype,
        /// Shape as the file has it.
        shape: Vec<u64>,
        /// Bytes that dtype and shape ask for.
        expected: u64,
        /// Bytes between the offsets.
        found: u64,
    },
    /// The data ends before the tensor does.
    #[error(
        "tensor `{tensor}` ends at byte {end} of the data, but the file has only {available}: it is truncated"
    )]
    Truncated {
        /// Name of the tensor.
        tensor: String,
        /// Where the tensor ends in the data section.
        end: u64,
        /// Length of the data section.
        available: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
    },
    /// Bytes that belong to no tensor.
    #[error("bytes {start} to {end} of its data belong to no tensor")]
    Gap {
        /// First stray byte of the data section.
        start: u64,
        /// One past the last.
        end: u64,
    },
}

type Header = (Vec<TensorInfo>, BTreeMap<String, String>);

fn parse_header(bytes: &[u8]) -> Result<Header, HeaderError> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(HeaderError::TooShort { bytes: bytes.len() as u64 });
    };
    let length = u64::from_le_bytes(*length);
    let available = rest.len() as u64;
    if length > available {
        return Err(HeaderError::BeyondFile { length, available });
    }
    if length > MAX_HEADER {
        return Err(HeaderError::TooLong { length });
    }
    let (header, data) = rest.split_at(length as usize);
    let RawHeader { entries, metadata } = serde_json::from_slice(header)?;

    let data_start = bytes.len() - data.len();
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        tensors.push(prove(name, entry, data_start, data.len() as u64)?);
    }
    prove_unique(&tensors)?;
    tensors.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
    prove_cover(&tensors, data_start..bytes.len())?;
    Ok((tensors, metadata))
}

/// Checks one entry by itself: dtype, shape, offsets, size, end of data.
fn prove(
    tensor: String,
    entry: RawEntry,
    data_start: usize,
    available: u64,
) -> Result<TensorInfo, HeaderError> {
    let RawEntry { dtype, shape, data_offsets: offsets } = entry;
    let Some(dtype) = parse_dtype(&dtype) else { return Err(HeaderError::Dtype { tensor, dtype }) };
    let &[start, end] = offsets.as_slice() else { return Err(HeaderError::Offsets { tensor, offsets }) };
    if start > end {
        return Err(HeaderError::Offsets { tensor, offsets });
    }
    let expected = shape.iter().try_fold(dtype.size() as u64, |size, &axis| size.checked_mul(axis));
    let (Some(expected), true) = (expected, shape.iter().all(|&axis| i32::try_from(axis).is_ok())) else {
        return Err(HeaderError::Shape { tensor, shape });
    };
    if end - start != expected {
        return Err(HeaderError::Size { tensor, dtype, shape, expected, found: end - start });
    }
    if end > available {
        return Err(HeaderError::Truncated { tensor, end, available });
    }
    Ok(TensorInfo {
        name: tensor,
        dtype,
        shape: shape.into_iter().map(|axis| axis as usize).collect(),
        range: data_start + start as usize..data_start + end as usize,
    })
}

fn prove_unique(tensors: &[TensorInfo]) -> Result<(), HeaderError> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(HeaderError::Duplicate { tensor: pair[0].to_owned() }),
        None => Ok(()),
    }
}

/// Checks sorted tensors together: no overlap, no gap, no trailing bytes.
fn prove_cover(tensors: &[TensorInfo], data: Range<usize>) -> Result<(), HeaderError> {
    let gap = |start: usize, end: usize| HeaderError::Gap {
        start: (start - data.start) as u64,
        end: (end - data.start) as u64,
    };
    let mut covered = data.start;
    let mut previous = "";
    for tensor in tensors {
        if tensor.range.start < covered {
            return Err(HeaderError::Overlap { first: previous.to_owned(), second: tensor.name.clone() });
        }
        if tensor.range.start > covered {
            return Err(gap(covered, tensor.range.start));
        }
        covered = tensor.range.end;
        previous = &tensor.name;
    }
    if covered == data.end { Ok(()) } else { Err(gap(covered, data.end)) }
}

/// The format's names of the types that [`Dtype`] has.
const DTYPES: [(&str, Dtype); 14] = [
    ("BOOL", Dtype::Bool),
    ("U8", Dtype::Uint8),
    ("U16", Dtype::Uint16),
    ("U32", Dtype::Uint32),
    ("U64", Dtype::Uint64),
    ("I8", Dtype::Int8),
    ("I16", Dtype::Int16),
    ("I32", Dtype::Int32),
    ("I64", Dtype::Int64),
    ("F16", Dtype::Float16),
    ("BF16", Dtype::Bfloat16),
    ("F32", Dtype::Float32),
    ("F64", Dtype::Float64),
    ("C64", Dtype::Complex64),
];

fn parse_dtype(name: &str) -> Option<Dtype> {
    DTYPES.iter().find(|(known, _)| *known == name).map(|&(_, dtype)| dtype)
}

/// The format's name of a dtype, such as `BF16`.
pub(crate) fn dtype_name(dtype: Dtype) -> &'static str {
    DTYPES.iter().find(|(_, known)| *known == dtype).map_or("", |&(name, _)| name)
}

/// The header as the file has it; duplicate names are kept so that they can be refused.
struct RawHeader {
    entries: Vec<(String, RawEntry)>,
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: Vec<u64>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor names to their descriptions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut entries = Vec::new();
                let mut metadata: Option<BTreeMap<String, String>> = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name != "__metadata__" {
                        let entry = map.next_value().map_err(|error| in_tensor(&name, &error))?;
                        entries.push((name, entry));
                        continue;
                    }
                    // MLX writes `null` for no metadata.
                    let found = map.next_value::<Option<_>>()?.unwrap_or_default();
                    if metadata.replace(found).is_some() {
                        return Err(A::Error::custom("`__metadata__` is listed twice"));
                    }
                }
                Ok(RawHeader { entries, metadata: metadata.unwrap_or_default() })
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

/// Puts a tensor's name before what serde found wrong with its entry.
fn in_tensor<E: serde::de::Error>(name: &str, error: &E) -> E {
    E::custom(format_args!("tensor `{name}`: {error}"))
}

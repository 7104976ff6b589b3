//! Parses the header of a GGUF file over its bytes and proves every tensor's place in them.
//!
//! Invariants of a [`Gguf`]: every tensor has 1 to 4 dimensions of at least 1, rows of whole blocks, and a byte
//! range that is aligned, inside the data section and shared with no other tensor. Nothing is allocated by a
//! count from the file: entries are added as they are read, and each takes room in the file.
//! Format: the GGUF specification in the repository of ggml (gguf.md in its docs), versions 2 and 3, little endian.

use super::error::GgufError;
use super::metadata::{Array, Metadata, Value};
use super::types::{TensorType, name_of_code};
use std::collections::BTreeMap;

/// A parsed file, borrowed from its bytes.
#[derive(Debug, Clone)]
pub struct Gguf<'a> {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// The key/value pairs.
    pub metadata: Metadata<'a>,
    tensors: BTreeMap<&'a str, Tensor<'a>>,
}

/// One tensor: its type, its shape with rows first, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tensor<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Element type.
    pub kind: TensorType,
    /// Exactly the bytes of the tensor.
    pub data: &'a [u8],
    dims: [usize; 4],
    rank: usize,
}

impl<'a> Tensor<'a> {
    /// Dimensions, slowest first, as MLX and Hugging Face write them.
    pub fn shape(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// Values in one row, the fastest dimension.
    pub fn columns(&self) -> usize {
        self.dims[self.rank - 1]
    }

    /// Rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.dims[..self.rank - 1].iter().product()
    }

    /// The bytes of row `index`, which must be below [`Tensor::rows`].
    pub fn row(&self, index: usize) -> &'a [u8] {
        let bytes = self.data.len() / self.rows();
        &self.data[index * bytes..(index + 1) * bytes]
    }
}

impl<'a> Gguf<'a> {
    /// Parses and checks `file`, the whole content of a GGUF file.
    ///
    /// # Errors
    /// A [`GgufError`] that names the key or the tensor at fault.
    pub fn parse(file: &'a [u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(file);
        if !file.starts_with(b"GGUF") {
            return Err(GgufError::Magic { found: file[..file.len().min(4)].to_vec() });
        }
        cursor.take("the magic", 4)?;
        let version = cursor.u32("the version")?;
        if version.swap_bytes() == 2 || version.swap_bytes() == 3 {
            return Err(GgufError::BigEndian);
        }
        if version != 2 && version != 3 {
            return Err(GgufError::Version { found: version });
        }
        let tensor_count = cursor.u64("the tensor count")?;
        let entry_count = cursor.u64("the metadata count")?;

        let metadata = read_metadata(&mut cursor, entry_count)?;
        let alignment = match metadata.u32("general.alignment")? {
            None => 32,
            Some(found) if found.is_power_of_two() && found >= 8 => u64::from(found),
            Some(found) => return Err(GgufError::Alignment { found: u64::from(found) }),
        };
        let infos = read_tensor_infos(&mut cursor, tensor_count)?;
        let data_start = cursor.at.next_multiple_of(alignment as usize).min(file.len());
        let tensors = place(infos, &file[data_start..], alignment)?;
        Ok(Self { version, metadata, tensors })
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.get(name)
    }

    /// All tensors, names in alphabetical order.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor<'a>> {
        self.tensors.values()
    }
}

/// Deepest nesting of metadata arrays; the files in use have one level.
const ARRAY_DEPTH: u32 = 4;

fn read_metadata<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Metadata<'a>, GgufError> {
    let mut values = BTreeMap::new();
    for index in 0..count {
        let key = cursor.string("a metadata key")?;
        if key.is_empty() {
            return Err(GgufError::EmptyKey { index });
        }
        let code = cursor.u32(key)?;
        let value = read_value(cursor, key, code, 0)?;
        if values.insert(key, value).is_some() {
            return Err(GgufError::DuplicateKey { key: key.to_owned() });
        }
    }
    Ok(Metadata { values })
}

/// Reads one value of type `code`; `depth` counts the arrays around it.
pub(super) fn read_value<'a>(
    cursor: &mut Cursor<'a>,
    key: &str,
    code: u32,
    depth: u32,
) -> Result<Value<'a>, GgufError> {
    Ok(match code {
        0 => Value::Unsigned(u64::from(u8::from_le_bytes(cursor.array(key)?))),
        1 => Value::Signed(i64::from(i8::from_le_bytes(cursor.array(key)?))),
        2 => Value::Unsigned(u64::from(u16::from_le_bytes(cursor.array(key)?))),
        3 => Value::Signed(i64::from(i16::from_le_bytes(cursor.array(key)?))),
        4 => Value::Unsigned(u64::from(u32::from_le_bytes(cursor.array(key)?))),
        5 => Value::Signed(i64::from(i32::from_le_bytes(cursor.array(key)?))),
        6 => Value::F32(f32::from_le_bytes(cursor.array(key)?)),
        7 => match cursor.array::<1>(key)? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [found] => return Err(GgufError::Boolean { key: key.to_owned(), found }),
        },
        8 => Value::String(cursor.string(key)?),
        9 => Value::Array(read_array(cursor, key, depth)?),
        10 => Value::Unsigned(u64::from_le_bytes(cursor.array(key)?)),
        11 => Value::Signed(i64::from_le_bytes(cursor.array(key)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(key)?)),
        _ => return Err(GgufError::ValueType { key: key.to_owned(), code }),
    })
}

/// Walks an array once, so that later walks cannot fail.
fn read_array<'a>(cursor: &mut Cursor<'a>, key: &str, depth: u32) -> Result<Array<'a>, GgufError> {
    if depth >= ARRAY_DEPTH {
        return Err(GgufError::ArrayDepth { key: key.to_owned(), limit: ARRAY_DEPTH });
    }
    let element = cursor.u32(key)?;
    let count = cursor.u64(key)?;
    let start = cursor.at;
    for _ in 0..count {
        read_value(cursor, key, element, depth + 1)?;
    }
    // Every element took at least one byte, so the count is below the file's length.
    Ok(Array { element, count: count as usize, bytes: &cursor.file[start..cursor.at] })
}

/// A tensor's header entry before its place is proven.
struct Info<'a> {
    name: &'a str,
    kind: TensorType,
    dims: [usize; 4],
    rank: usize,
    bytes: usize,
    offset: u64,
}

fn read_tensor_infos<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Vec<Info<'a>>, GgufError> {
    let mut infos = Vec::new();
    for index in 0..count {
        let name = cursor.string("a tensor name")?;
        if name.is_empty() {
            return Err(GgufError::EmptyTensorName { index });
        }
        let rank = cursor.u32(name)?;
        if !(1..=4).contains(&rank) {
            return Err(GgufError::Rank { tensor: name.to_owned(), found: rank });
        }
        let mut stored = [1_u64; 4];
        for dim in &mut stored[..rank as usize] {
            *dim = cursor.u64(name)?;
        }
        let code = cursor.u32(name)?;
        let offset = cursor.u64(name)?;
        let kind = TensorType::from_code(code).ok_or_else(|| unsupported(name, code))?;
        let (dims, bytes) = size(name, kind, &stored[..rank as usize])?;
        infos.push(Info { name, kind, dims, rank: rank as usize, bytes, offset });
    }
    Ok(infos)
}

fn unsupported(name: &str, code: u32) -> GgufError {
    GgufError::TensorType {
        tensor: name.to_owned(),
        code,
        name: name_of_code(code),
        supported: TensorType::ALL.map(TensorType::name).join(", "),
    }
}

/// Dimensions with rows first, and the bytes they take.
fn size(name: &str, kind: TensorType, stored: &[u64]) -> Result<([usize; 4], usize), GgufError> {
    let tensor = || name.to_owned();
    if stored.contains(&0) {
        return Err(GgufError::ZeroDimension { tensor: tensor(), dims: stored.to_vec() });
    }
    let too_large = || GgufError::TooLarge { tensor: tensor(), dims: stored.to_vec() };
    let mut dims = [1; 4];
    let mut elements = 1_usize;
    for (to, &from) in dims.iter_mut().zip(stored.iter().rev()) {
        *to = usize::try_from(from).map_err(|_| too_large())?;
        elements = elements.checked_mul(*to).ok_or_else(too_large)?;
    }
    let block = kind.block();
    let columns = dims[stored.len() - 1];
    if !columns.is_multiple_of(block.values) {
        return Err(GgufError::Blocks { tensor: tensor(), columns, kind: kind.name(), block: block.values });
    }
    let bytes = (elements / block.values).checked_mul(block.bytes).ok_or_else(too_large)?;
    Ok((dims, bytes))
}

/// Gives every tensor its bytes of the data section.
fn place<'a>(
    mut infos: Vec<Info<'a>>,
    data: &'a [u8],
    alignment: u64,
) -> Result<BTreeMap<&'a str, Tensor<'a>>, GgufError> {
    infos.sort_by_key(|info| info.offset);
    let mut tensors = BTreeMap::new();
    let mut previous: Option<(&str, usize)> = None;
    for Info { name, kind, dims, rank, bytes, offset } in infos {
        let tensor = || name.to_owned();
        if !offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { tensor: tensor(), offset, alignment });
        }
        let out_of_range =
            || GgufError::OutOfRange { tensor: tensor(), offset, bytes, available: data.len() };
        let start = usize::try_from(offset).map_err(|_| out_of_range())?;
        let end = start.checked_add(bytes).filter(|&end| end <= data.len()).ok_or_else(out_of_range)?;
        if let Some((first, _)) = previous.filter(|&(_, previous_end)| start < previous_end) {
            return Err(GgufError::Overlap { first: first.to_owned(), second: tensor() });
        }
        previous = Some((name, end));
        let placed = Tensor { name, kind, data: &data[start..end], dims, rank };
        if tensors.insert(name, placed).is_some() {
            return Err(GgufError::DuplicateTensor { tensor: tensor() });
        }
    }
    Ok(tensors)
}

/// A position in the file that only moves over bytes that exist.
pub(super) struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        Self { file, at: 0 }
    }

    fn take(&mut self, what: &str, count: u64) -> Result<&'a [u8], GgufError> {
        let available = self.file.len() - self.at;
        let count = usize::try_from(count).ok().filter(|&count| count <= available).ok_or_else(|| {
            GgufError::Truncated { what: what.to_owned(), at: self.at, wanted: count, available }
        })?;
        let bytes = &self.file[self.at..self.at + count];
        self.at += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(what, N as u64)?);
        Ok(array)
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn string(&mut self, what: &str) -> Result<&'a str, GgufError> {
        let length = self.u64(what)?;
        let at = self.at;
        let bytes = self.take(what, length)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::Utf8 { what: what.to_owned(), at })
    }
}

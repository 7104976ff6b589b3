//! A snapshot as the bytes of a safetensors file: versioned and checksummed. Whatever the bytes are, reading them ends with
//! the snapshot that was written or with a reason why not.
//!
//! The layout is that of safetensors: the header's length as a little-endian u64, a JSON header, then the data. The header's
//! `__metadata__` has `format`, `version`, `namespace`, `layers` (JSON) and `sha256`, which covers all the rest.

use crate::snapshot::{LayerRecord, Part, Snapshot};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::io::Read;
use strata_contracts::Dtype;

const FORMAT: &str = "strata-state";
const VERSION: &str = "1";
/// Longest header that is read.
const HEADER_LIMIT: usize = 64 << 20;

/// Types of saved arrays, by safetensors' names.
const DTYPES: [(Dtype, &str); 6] = [
    (Dtype::Float32, "F32"),
    (Dtype::Float16, "F16"),
    (Dtype::Bfloat16, "BF16"),
    (Dtype::Uint32, "U32"),
    (Dtype::Int32, "I32"),
    (Dtype::Uint8, "U8"),
];

impl Snapshot {
    /// The bytes of a file.
    pub fn encode(&self) -> Vec<u8> {
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let tokens = Part { dtype: Dtype::Uint32, shape: vec![self.tokens.len() as i32], bytes: tokens };
        let mut table = Map::new();
        let mut data = Vec::with_capacity(self.bytes() + tokens.bytes.len());
        for (i, part) in std::iter::once(&tokens).chain(&self.parts).enumerate() {
            let name = if i == 0 { "tokens".to_owned() } else { format!("part.{}", i - 1) };
            let dtype = DTYPES.iter().find(|(dtype, _)| *dtype == part.dtype).map_or("", |(_, name)| name);
            let start = data.len();
            data.extend(&part.bytes);
            let offsets = [start, data.len()];
            table.insert(
                name,
                serde_json::json!({"dtype": dtype, "shape": part.shape, "data_offsets": offsets}),
            );
        }
        let layers = serde_json::json!(self.layers).to_string();
        let sha256 = digest(&self.namespace, &layers, &table, &data);
        let metadata = serde_json::json!({
            "format": FORMAT, "version": VERSION, "namespace": self.namespace, "layers": layers, "sha256": sha256,
        });
        table.insert("__metadata__".to_owned(), metadata);
        let mut header = Value::Object(table).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.extend(data);
        file
    }

    /// Namespace and tokens of a file of `size` bytes, without the rest and without a check of it.
    pub(crate) fn key(file: &mut impl Read, size: u64) -> Result<(String, Vec<u32>), String> {
        let read = |file: &mut dyn Read, bytes: usize| {
            let mut buffer = vec![0; bytes];
            file.read_exact(&mut buffer).map(|()| buffer).map_err(|e| format!("it cannot be read: {e}"))
        };
        let length = u64::from_le_bytes(read(file, 8)?.try_into().map_err(|_| "it is too short")?);
        if length > HEADER_LIMIT as u64 || length > size {
            return Err(format!(
                "its header of {length} bytes is longer than the file or than {HEADER_LIMIT}"
            ));
        }
        let header: Value = serde_json::from_slice(&read(file, length as usize)?)
            .map_err(|e| format!("its header is no JSON: {e}"))?;
        let metadata = &header["__metadata__"];
        if (metadata["format"].as_str(), metadata["version"].as_str()) != (Some(FORMAT), Some(VERSION)) {
            return Err("its format or version is not this program's".to_owned());
        }
        let end = header["tokens"]["data_offsets"][1].as_u64().unwrap_or(u64::MAX);
        if end > size {
            return Err("its tokens end behind the file".to_owned());
        }
        let namespace = metadata["namespace"].as_str().unwrap_or_default().to_owned();
        Ok((namespace, tokens(&read(file, end as usize)?)))
    }

    /// The snapshot that these bytes of a file hold.
    ///
    /// # Errors
    /// Why they hold none.
    pub fn decode(file: &[u8]) -> Result<Self, String> {
        let (header, data) = split(file)?;
        let Value::Object(mut table) =
            serde_json::from_slice(header).map_err(|e| format!("its header is no JSON: {e}"))?
        else {
            return Err("its header is no object".to_owned());
        };
        let metadata = table.shift_remove("__metadata__").unwrap_or_default();
        let text = |key: &str| metadata[key].as_str().ok_or_else(|| format!("its metadata have no {key}"));
        if text("format")? != FORMAT {
            return Err(format!("its format is {}", text("format")?));
        }
        if text("version")? != VERSION {
            return Err(format!("it has version {}, this program reads version {VERSION}", text("version")?));
        }
        let (namespace, layers) = (text("namespace")?.to_owned(), text("layers")?);
        if text("sha256")? != digest(&namespace, layers, &table, data) {
            return Err("its checksum does not fit its content".to_owned());
        }
        let layers: Vec<LayerRecord> =
            serde_json::from_str(layers).map_err(|e| format!("its layers are malformed: {e}"))?;
        let mut parts = parts(&table, data)?;
        let first = parts.remove(0);
        if first.dtype != Dtype::Uint32 {
            return Err("its tokens are not of type U32".to_owned());
        }
        Ok(Self { namespace, tokens: tokens(&first.bytes), layers, parts })
    }
}

fn tokens(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Header and data.
fn split(file: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let (length, rest) = file.split_first_chunk().ok_or("it is shorter than eight bytes")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > HEADER_LIMIT || length > rest.len() {
        return Err(format!("its header of {length} bytes is longer than the file or than {HEADER_LIMIT}"));
    }
    Ok(rest.split_at(length))
}

/// The arrays of a table, in order; they fill the data without gaps.
fn parts(table: &Map<String, Value>, data: &[u8]) -> Result<Vec<Part>, String> {
    let mut start = 0usize;
    let mut parts = Vec::with_capacity(table.len());
    for (i, (name, entry)) in table.iter().enumerate() {
        let expected = if i == 0 { "tokens".to_owned() } else { format!("part.{}", i - 1) };
        let bad = |what: &str| format!("array {name} {what}");
        if *name != expected {
            return Err(bad("is out of order"));
        }
        let dtype = entry["dtype"].as_str().and_then(|d| DTYPES.iter().find(|(_, name)| *name == d));
        let (dtype, _) = *dtype.ok_or_else(|| bad("has an unknown type"))?;
        let shape: Vec<i32> =
            serde_json::from_value(entry["shape"].clone()).map_err(|_| bad("has no shape"))?;
        let size = shape.iter().try_fold(dtype.size(), |size, &n| size.checked_mul(usize::try_from(n).ok()?));
        let size = size.ok_or_else(|| bad("has an impossible shape"))?;
        let end = start.checked_add(size).filter(|&end| end <= data.len());
        let end = end.ok_or_else(|| bad("ends behind the file"))?;
        if entry["data_offsets"] != serde_json::json!([start, end]) {
            return Err(bad("is not where its shape says"));
        }
        parts.push(Part { dtype, shape, bytes: data[start..end].to_vec() });
        start = end;
    }
    if parts.is_empty() || start != data.len() {
        return Err("its arrays do not fill it".to_owned());
    }
    Ok(parts)
}

fn digest(namespace: &str, layers: &str, table: &Map<String, Value>, data: &[u8]) -> String {
    let mut sha = Sha256::new();
    for part in [namespace.as_bytes(), layers.as_bytes(), serde_json::json!(table).to_string().as_bytes()] {
        sha.update((part.len() as u64).to_le_bytes());
        sha.update(part);
    }
    sha.update(data);
    sha.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

//! JSON files from outside: size-limited, and errors that name the file, the place and, for Python's `NaN` and
//! `Infinity`, the cause.

use crate::error::{Error, Result};
use crate::mmap::open_regular;
use serde::de::DeserializeOwned;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Largest JSON file that is read. The longest real ones are shard indices of about 10 MB.
const MAX_BYTES: u64 = 100_000_000;

/// Reads and parses a JSON file; `None` when there is none.
///
/// # Errors
/// [`Error::Io`], [`Error::TooLarge`], [`Error::Json`], [`Error::NotFinite`].
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(Error::io("read", path, error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|source| Error::io("read", path, source))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::TooLarge { path: path.to_owned(), limit: MAX_BYTES });
    }
    parse(&bytes, path).map(Some)
}

/// Parses JSON; `path` is used in messages alone.
///
/// # Errors
/// [`Error::Json`], [`Error::NotFinite`].
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], path: &Path) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|source| {
        let path = path.to_owned();
        match python_constant(bytes, source.line(), source.column()) {
            Some(constant) => Error::NotFinite { path, line: source.line(), constant },
            None => Error::Json { path, source },
        }
    })
}

/// The constant of Python's `json` module at the place where the parser stopped, which no JSON parser reads.
fn python_constant(bytes: &[u8], line: usize, column: usize) -> Option<&'static str> {
    let line = bytes.split(|&byte| byte == b'\n').nth(line.checked_sub(1)?)?;
    // The column counts from 1 and points at the first letter that did not fit.
    let rest = line.get(column.checked_sub(1)?..)?;
    ["NaN", "Infinity"].into_iter().find(|constant| rest.starts_with(constant.as_bytes()))
}

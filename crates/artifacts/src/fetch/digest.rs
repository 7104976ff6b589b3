//! SHA-256 of streams, and the comparison with what it must be.

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Hash of some bytes, in hex.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Compares a finished hash with the one that stands in the source or that a server announced.
pub(super) fn check(path: &Path, found: Sha256, expected: &str) -> Result<()> {
    let found = hex(&found.finalize());
    if found == expected {
        return Ok(());
    }
    Err(Error::Hash { path: path.to_owned(), expected: expected.to_owned(), found })
}

/// Compares the hash of a file.
pub(super) fn check_file(path: &Path, expected: &str) -> Result<()> {
    let read = |source| Error::io("read", path, source);
    let mut hash = Sha256::new();
    copy(&mut File::open(path).map_err(read)?, read, &mut |bytes| {
        hash.update(bytes);
        Ok(())
    })?;
    check(path, hash, expected)
}

/// Passes everything that a reader gives on to `sink`; `refused` makes the error of a failed read.
pub(super) fn copy(
    from: &mut dyn Read,
    refused: impl FnOnce(io::Error) -> Error,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => sink(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(refused(error)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

//! Bytes of a file, mapped into memory and shared: the one place of this crate with `unsafe`.
//!
//! **The promise.** A mapping shows the file as it is, not as it was: whoever truncates or rewrites a file while it
//! is mapped changes bytes under a reader, and reading past a new end raises `SIGBUS`. No operating system Strata
//! runs on can exclude that, so the promise is the user's: *files of a model stay as they are while the model is
//! loaded*. Strata's own writers keep it, because they only ever rename whole new files into place.
//! Everything above this file takes [`Mapped`] as plain safe bytes.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// Shared read-only bytes, or a range of them: cheap to clone, `Send` and `Sync`, alive as long as any clone.
#[derive(Clone)]
pub struct Mapped {
    owner: Arc<Owner>,
    range: Range<usize>,
}

enum Owner {
    Map(memmap2::Mmap),
    Heap(Vec<u8>),
}

impl Mapped {
    /// Maps a file from its first to its last byte.
    ///
    /// # Errors
    /// [`Error::Io`] when the file can't be opened, is no regular file or can't be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::io("read", path, source);
        let file = open_regular(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Ok(Self::from(Vec::new()));
        }
        // SAFETY: the mapping is private to this process and read-only, and it stays valid after `file` is closed.
        // That nobody truncates or rewrites the file meanwhile is the promise in this file's header.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        let range = 0..map.len();
        Ok(Self { owner: Arc::new(Owner::Map(map)), range })
    }

    /// The part `range` of these bytes, sharing their owner.
    ///
    /// # Panics
    /// When `range` is not inside these bytes, as slicing does.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let whole: &[u8] = self;
        let part = &whole[range.clone()];
        let start = self.range.start + range.start;
        Self { owner: Arc::clone(&self.owner), range: start..start + part.len() }
    }
}

impl From<Vec<u8>> for Mapped {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(Owner::Heap(bytes)), range }
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let whole: &[u8] = match &*self.owner {
            Owner::Map(map) => map,
            Owner::Heap(bytes) => bytes,
        };
        &whole[self.range.clone()]
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &*self.owner {
            Owner::Map(_) => "mapped",
            Owner::Heap(_) => "heap",
        };
        write!(f, "Mapped({} {kind} bytes)", self.len())
    }
}

/// Opens a file that is none of the things on which opening or reading may wait for ever, such as a named pipe.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    if std::fs::metadata(path)?.is_file() {
        File::open(path)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_keeps_the_file_alive_and_threads_may_share_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, b"0123456789").unwrap();
        let part = Mapped::open(&path).unwrap().slice(2..9).slice(1..4);
        assert_eq!(std::thread::spawn(move || part.to_vec()).join().unwrap(), b"345");
    }

    #[cfg(unix)]
    #[test]
    fn a_named_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(matches!(Mapped::open(&path), Err(Error::Io { .. })));
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes_and_a_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        assert!(Mapped::open(&path).unwrap().is_empty());
        assert!(matches!(Mapped::open(folder.path()), Err(Error::Io { .. })));
    }
}

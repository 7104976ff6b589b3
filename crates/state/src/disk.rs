//! Snapshots in a folder, for prefixes that outlive the process. Files are written whole under another name and then
//! renamed, by a thread of their own, from bytes that were copied before. The folder holds up to a number of bytes; the files
//! used least recently go first. A file that cannot be read as what it claims to be is reported, deleted and never used.

use crate::snapshot::Snapshot;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::{fs, io};

/// Files of the cache end in this; others in the folder are left alone.
const ENDING: &str = ".state.safetensors";
/// And in this behind the process's number while they are written.
const UNFINISHED: &str = ".part";
/// Snapshots that may wait to be written; more are dropped, as a cache may.
const WAITING: usize = 4;

/// A folder of snapshots.
#[derive(Debug)]
pub struct DiskCache {
    folder: PathBuf,
    queue: Option<SyncSender<Snapshot>>,
    writer: Option<JoinHandle<()>>,
    /// Namespace and tokens of each known file.
    index: BTreeMap<PathBuf, (String, Vec<u32>)>,
}

impl DiskCache {
    /// Opens a folder, which is made if it is not there, and reads which prefixes it holds. It may grow to `limit` bytes.
    ///
    /// # Errors
    /// When the folder cannot be made or listed, or no thread started.
    pub fn open(folder: &Path, limit: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        make_room(folder, limit)?;
        let mut index = BTreeMap::new();
        for (path, size, _) in files(folder)? {
            if !path.as_os_str().to_string_lossy().ends_with(ENDING) {
                continue;
            }
            let key = fs::File::open(&path).map_err(|e| e.to_string());
            match key.and_then(|mut file| Snapshot::key(&mut file, size)) {
                Ok((namespace, tokens)) => {
                    index.insert(path, (namespace, tokens));
                }
                Err(reason) => discard(&path, &reason),
            }
        }
        let (queue, jobs) = sync_channel(WAITING);
        let place = folder.to_owned();
        let writer = std::thread::Builder::new()
            .name("strata-state-disk".to_owned())
            .spawn(move || write_all(&place, limit, &jobs))?;
        Ok(Self { folder: folder.to_owned(), queue: Some(queue), writer: Some(writer), index })
    }

    /// Has a snapshot written in the background. False when too many are waiting; it is dropped then.
    pub fn store(&mut self, snapshot: Snapshot) -> bool {
        let path = self.folder.join(file_name(&snapshot.namespace, &snapshot.tokens));
        let key = (snapshot.namespace.clone(), snapshot.tokens.clone());
        match self.queue.as_ref().map(|queue| queue.try_send(snapshot)) {
            Some(Ok(())) => {
                self.index.insert(path, key);
                true
            }
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => false,
        }
    }

    /// The longest snapshot of the namespace whose tokens are a proper prefix of `tokens`.
    pub fn find(&mut self, namespace: &str, tokens: &[u32]) -> Option<Snapshot> {
        loop {
            let fits = |known: &(String, Vec<u32>)| {
                known.0 == namespace && known.1.len() < tokens.len() && tokens.starts_with(&known.1)
            };
            let fitting = self.index.iter().filter(|(_, known)| fits(known));
            let path = fitting.max_by_key(|(_, known)| known.1.len())?.0.clone();
            match read(&path) {
                Some(snapshot) if fits(&(snapshot.namespace.clone(), snapshot.tokens.clone())) => {
                    // Best effort: the time of use only orders what is deleted first.
                    let _ = fs::File::options()
                        .append(true)
                        .open(&path)
                        .and_then(|file| file.set_modified(std::time::SystemTime::now()));
                    return Some(snapshot);
                }
                _ => self.index.remove(&path),
            };
        }
    }

    /// Waits until everything stored so far has been written, and ends the thread.
    pub fn close(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.finish();
    }
}

fn write_all(folder: &Path, limit: u64, jobs: &Receiver<Snapshot>) {
    for snapshot in jobs {
        let name = file_name(&snapshot.namespace, &snapshot.tokens);
        if let Err(error) = write(folder, &name, &snapshot.encode(), limit) {
            tracing::warn!(%name, %error, "a state could not be written to disk");
        }
    }
}

fn write(folder: &Path, name: &str, bytes: &[u8], limit: u64) -> io::Result<()> {
    if bytes.len() as u64 > limit {
        return Ok(());
    }
    make_room(folder, limit - bytes.len() as u64)?;
    let unfinished = folder.join(format!("{name}.{}{UNFINISHED}", std::process::id()));
    let written = fs::File::create(&unfinished).and_then(|mut file| {
        io::Write::write_all(&mut file, bytes)?;
        file.sync_all()
    });
    let moved = written.and_then(|()| fs::rename(&unfinished, folder.join(name)));
    if moved.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    moved
}

/// Deletes the files used least recently until the rest takes `limit` bytes at most.
fn make_room(folder: &Path, limit: u64) -> io::Result<()> {
    let mut files = files(folder)?;
    files.sort_by_key(|(_, _, used)| *used);
    let mut held: u64 = files.iter().map(|(_, size, _)| size).sum();
    for (path, size, _) in files {
        if held <= limit {
            break;
        }
        fs::remove_file(path)?;
        held -= size;
    }
    Ok(())
}

/// The cache's files, unfinished ones included, which a process that was ended may have left: path, bytes and time of last
/// use.
fn files(folder: &Path) -> io::Result<Vec<(PathBuf, u64, std::time::SystemTime)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(ENDING) || (name.contains(ENDING) && name.ends_with(UNFINISHED)) {
            // A file that another process has just deleted is no file.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() {
                files.push((entry.path(), metadata.len(), metadata.modified()?));
            }
        }
    }
    Ok(files)
}

/// A file's snapshot; a file that holds none is deleted.
fn read(path: &Path) -> Option<Snapshot> {
    let reason = match fs::read(path) {
        Ok(bytes) => match Snapshot::decode(&bytes) {
            Ok(snapshot) if path.ends_with(file_name(&snapshot.namespace, &snapshot.tokens)) => {
                return Some(snapshot);
            }
            Ok(_) => "its name belongs to another state".to_owned(),
            Err(reason) => reason,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => error.to_string(),
    };
    discard(path, &reason);
    None
}

fn discard(path: &Path, reason: &str) {
    tracing::warn!(path = %path.display(), %reason, "a saved state is not usable and is deleted");
    let _ = fs::remove_file(path);
}

fn file_name(namespace: &str, tokens: &[u32]) -> String {
    let mut sha = Sha256::new();
    sha.update((namespace.len() as u64).to_le_bytes());
    sha.update(namespace);
    for token in tokens {
        sha.update(token.to_le_bytes());
    }
    let mut name = String::new();
    for byte in &sha.finalize()[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    name + ENDING
}

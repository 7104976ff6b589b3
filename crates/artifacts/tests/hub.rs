//! The Hugging Face hub, played by a server on this machine: what is asked for, what is kept, and what its failures
//! are called. Truth is the hub's HTTP interface as `huggingface_hub` uses it.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use strata_artifacts::{
    Error, Hub, HubError, ModelDir, Progress, RepositoryId, ShardError, TensorSpec, WeightsWriter,
};
use strata_contracts::Dtype;
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CONFIG: &str = r#"{"model_type": "llama"}"#;

/// A hub with one repository, `org/model`.
struct Server {
    endpoint: String,
    /// Paths that were asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

/// How the server misbehaves.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Status(u16),
    /// Sends other bytes than it announced the hash of.
    Damage,
    /// Closes the connection in the middle of a weight file.
    Cut,
}

impl Server {
    fn start(files: BTreeMap<String, Vec<u8>>, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &files, fault, &log);
            }
        });
        Self { endpoint, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Answers one request and closes the connection.
fn answer(mut stream: TcpStream, files: &BTreeMap<String, Vec<u8>>, fault: Fault, log: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let headers: Vec<String> =
        lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let authorized = headers.iter().any(|line| line == "authorization: bearer secret");
    log.lock().unwrap().push(if authorized { format!("{path} with token") } else { path.clone() });

    if let Fault::Status(status) = fault {
        respond(&mut stream, status, "", b"");
    } else if path == "/api/models/org/model/revision/main" {
        let siblings: Vec<_> = files.keys().map(|name| format!("{{\"rfilename\": \"{name}\"}}")).collect();
        let body = format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{}]}}", siblings.join(", "));
        respond(&mut stream, 200, "Content-Type: application/json\r\n", body.as_bytes());
    } else if let Some(content) =
        path.strip_prefix(&format!("/org/model/resolve/{COMMIT}/")).and_then(|name| files.get(name))
    {
        let range = headers.iter().find_map(|line| line.strip_prefix("range: bytes="));
        let (start, end) = range.and_then(|range| range.split_once('-')).unwrap_or_default();
        let start: usize = start.parse().unwrap_or(0);
        let end = end.parse::<usize>().map_or(content.len(), |end| (end + 1).min(content.len()));
        let mut extra = format!("Content-Range: bytes {start}-{}/{}\r\n", end.max(1) - 1, content.len());
        let etag =
            if path.ends_with(".safetensors") { sha256(content) } else { sha256(content)[..40].to_owned() };
        write!(extra, "ETag: \"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\n").unwrap();
        let mut body = content[start..end].to_vec();
        if path.ends_with(".safetensors") && body.len() > 1 {
            match fault {
                Fault::Damage => body[0] ^= 1,
                Fault::Cut => {
                    let head = format!("HTTP/1.1 206 OK\r\n{extra}Content-Length: {}\r\n\r\n", body.len());
                    stream.write_all(head.as_bytes()).unwrap();
                    stream.write_all(&body[..body.len() / 2]).unwrap();
                    return;
                }
                _ => {}
            }
        }
        respond(&mut stream, 206, &extra, &body);
    } else {
        respond(&mut stream, 404, "", b"");
    }
}

fn respond(stream: &mut TcpStream, status: u16, headers: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // The other side may have gone; the test sees that by itself.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// The files of a repository: two shards with an index, and much that is no part of the model.
fn files() -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let spec = |name: &str| TensorSpec { name: name.into(), dtype: Dtype::Float32, shape: vec![100, 5] };
    let mut writer = WeightsWriter::create(folder.path(), vec![spec("a"), spec("b")], 1).unwrap();
    writer.append(&[1; 2000]).unwrap();
    writer.append(&[2; 2000]).unwrap();
    writer.finish().unwrap();
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        files.insert(entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    }
    for (name, text) in [
        ("config.json", CONFIG),
        ("tokenizer.json", "{}"),
        ("README.md", "# model"),
        ("pytorch_model.bin", "old"),
        ("consolidated.safetensors", "other weights"),
        ("onnx/model.onnx", "other weights"),
        ("../escape.json", "{}"),
    ] {
        files.insert(name.to_owned(), text.as_bytes().to_vec());
    }
    files
}

fn hub(cache: &TempDir, server: &Server) -> Hub {
    Hub { cache: cache.path().to_owned(), endpoint: server.endpoint.clone(), token: None, offline: false }
}

fn repository() -> RepositoryId {
    RepositoryId::parse("org/model").unwrap()
}

fn problem(error: Error) -> HubError {
    match error {
        Error::Hub { repository, problem } => {
            assert_eq!(repository, "org/model");
            assert!(!problem.help().is_empty());
            problem
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_repository_is_downloaded_once_and_then_read_from_the_cache() {
    let (cache, server) = (tempfile::tempdir().unwrap(), Server::start(files(), Fault::None));
    let hub = Hub { token: Some("secret".into()), ..hub(&cache, &server) };
    let mut reports: Vec<Progress> = Vec::new();
    let folder = hub.fetch(&repository(), &mut |report| reports.push(report)).unwrap();
    assert_eq!(folder, cache.path().join("models--org--model/snapshots").join(COMMIT));
    let weights = ModelDir::open(&folder).unwrap().weights().unwrap();
    assert_eq!(&*weights.require("b").unwrap().data, &[2; 2000]);
    let mut kept: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    kept.sort();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    assert_eq!(kept, ["config.json", shards[0], shards[1], "model.safetensors.index.json", "tokenizer.json"]);
    let total = reports[0].total.unwrap();
    assert!(reports.iter().map(|report| report.done).is_sorted(), "{reports:?}");
    assert_eq!(reports.last().unwrap().done, total);
    assert!(server.asked().iter().all(|path| path.ends_with(" with token")));

    let before = server.asked().len();
    assert_eq!(hub.fetch(&repository(), &mut |_| ()).unwrap(), folder);
    let offline = Hub { offline: true, endpoint: String::new(), ..hub };
    assert_eq!(offline.fetch(&repository(), &mut |_| ()).unwrap(), folder);
    let by_commit = RepositoryId::parse(&format!("org/model@{COMMIT}")).unwrap();
    assert_eq!(offline.fetch(&by_commit, &mut |_| ()).unwrap(), folder);
    assert_eq!(server.asked().len(), before, "the cache needs no network");
}

#[test]
fn a_cut_download_is_an_error_leaves_no_snapshot_and_goes_on_later() {
    let cache = tempfile::tempdir().unwrap();
    let cut = Server::start(files(), Fault::Cut);
    let error = hub(&cache, &cut).fetch(&repository(), &mut |_| ()).unwrap_err();
    assert!(matches!(problem(error), HubError::Unreachable { .. } | HubError::Download { .. }));
    assert!(!cache.path().join("models--org--model/refs/main").exists());
    let whole = Server::start(files(), Fault::None);
    let folder = hub(&cache, &whole).fetch(&repository(), &mut |_| ()).unwrap();
    assert!(ModelDir::open(&folder).unwrap().weights().is_ok());
}

#[test]
fn a_part_that_was_complete_when_its_download_was_killed_does_not_stand_in_the_way() {
    let (cache, files) = (tempfile::tempdir().unwrap(), files());
    let blobs = cache.path().join("models--org--model/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let shard = &files["model-00001-of-00002.safetensors"];
    fs::write(blobs.join(format!("{}.part", sha256(shard))), shard).unwrap();
    let server = Server::start(files, Fault::None);
    hub(&cache, &server).fetch(&repository(), &mut |_| ()).unwrap();
}

#[test]
fn a_damaged_download_is_refused_and_not_kept() {
    let cache = tempfile::tempdir().unwrap();
    let damaged = Server::start(files(), Fault::Damage);
    let error = hub(&cache, &damaged).fetch(&repository(), &mut |_| ()).unwrap_err();
    assert!(matches!(error, Error::Hash { .. }), "{error}");
    let whole = Server::start(files(), Fault::None);
    hub(&cache, &whole).fetch(&repository(), &mut |_| ()).unwrap();
}

#[test]
fn refusals_of_the_hub_have_names_and_remedies() {
    let fetch = |status| {
        let server = Server::start(files(), Fault::Status(status));
        problem(hub(&tempfile::tempdir().unwrap(), &server).fetch(&repository(), &mut |_| ()).unwrap_err())
    };
    assert!(matches!(fetch(404), HubError::NotFound { revision } if revision == "main"));
    assert!(matches!(fetch(401), HubError::Refused { status: 401 }));
    assert!(matches!(fetch(403), HubError::Refused { status: 403 }));
    assert!(matches!(fetch(500), HubError::Download { .. }));
}

#[test]
fn no_network_is_one_clear_error() {
    let cache = tempfile::tempdir().unwrap();
    // A port that was free a moment ago and has no listener.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let hub = Hub { cache: cache.path().to_owned(), endpoint, token: None, offline: false };
    let error = hub.fetch(&repository(), &mut |_| ()).unwrap_err();
    assert!(matches!(problem(error), HubError::Unreachable { .. }));
    let offline = Hub { offline: true, ..hub };
    assert!(matches!(
        problem(offline.fetch(&repository(), &mut |_| ()).unwrap_err()),
        HubError::Offline { .. }
    ));
}

#[test]
fn repositories_without_one_complete_set_of_weights_are_refused_before_the_download() {
    let fetch = |files| {
        let server = Server::start(files, Fault::None);
        let error =
            hub(&tempfile::tempdir().unwrap(), &server).fetch(&repository(), &mut |_| ()).unwrap_err();
        assert!(!server.asked().iter().any(|path| path.ends_with(".safetensors")));
        error
    };
    let mut none = files();
    none.retain(|name, _| !name.ends_with(".safetensors"));
    assert!(matches!(problem(fetch(none)), HubError::NoWeights));
    let mut absent = files();
    absent.remove("model-00002-of-00002.safetensors");
    let error = fetch(absent);
    assert!(
        matches!(&error, Error::Shards { problem: ShardError::MissingShard { file }, .. } if file.contains("00002-of")),
        "{error}"
    );
}

#[test]
fn an_incomplete_snapshot_in_the_cache_is_not_used() {
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("models--org--model");
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    let snapshot = folder.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(snapshot.join("config.json"), CONFIG).unwrap();
    let server = Server::start(files(), Fault::None);
    let offline = Hub { offline: true, ..hub(&cache, &server) };
    assert!(matches!(
        problem(offline.fetch(&repository(), &mut |_| ()).unwrap_err()),
        HubError::Offline { .. }
    ));
    let found = hub(&cache, &server).fetch(&repository(), &mut |_| ()).unwrap();
    assert_eq!(found, snapshot);
}

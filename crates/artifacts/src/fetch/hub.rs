//! Repositories of the Hugging Face hub, in the hub's own cache, so that what other programs downloaded is used and
//! the other way round.
//!
//! A snapshot that the cache holds completely is used without touching the network. Otherwise the repository is
//! listed, the listed commit is pinned, the files of one model are chosen by the rule in `shards.rs`, and each is
//! downloaded by `hf-hub`, which renames whole files into place; the branch's name points to the commit only after
//! the last of them.

use super::digest;
use crate::error::{Error, Result};
use crate::model_dir::ModelDir;
use crate::names::RepositoryId;
use crate::progress::{Progress, Stage};
use crate::shards::{INDEX, ShardSet};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo, Metadata};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The hub and its cache.
#[derive(Debug, Clone)]
pub struct Hub {
    /// Folder of the cache, `~/.cache/huggingface/hub` unless told otherwise.
    pub cache: PathBuf,
    /// Address of the hub.
    pub endpoint: String,
    /// Access token, for private and gated repositories.
    pub token: Option<String>,
    /// Never use the network.
    pub offline: bool,
}

/// Why a repository can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The network was ruled out.
    #[error("is not in the local cache {}, and HF_HUB_OFFLINE is set", cache.display())]
    Offline {
        /// Folder of the cache.
        cache: PathBuf,
    },
    /// The server does not answer.
    #[error("can't be reached at {endpoint}: {detail}")]
    Unreachable {
        /// Address of the hub.
        endpoint: String,
        /// What failed.
        detail: String,
    },
    /// There is no such repository or revision.
    #[error("does not exist, or has no revision {revision}")]
    NotFound {
        /// Branch, tag or commit.
        revision: String,
    },
    /// The repository is private or asks for consent first, or does not exist.
    #[error("was refused by the hub (status {status}): it is private or gated, or does not exist")]
    Refused {
        /// HTTP status.
        status: u16,
    },
    /// It holds no weights that can be read.
    #[error("holds no safetensors weights")]
    NoWeights,
    /// A file of it could not be had.
    #[error("could not be downloaded: {detail}")]
    Download {
        /// What failed.
        detail: String,
    },
}

impl HubError {
    /// The remedy in one sentence.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Offline { .. } => "unset HF_HUB_OFFLINE, or name a folder or a GGUF file that is here",
            Self::Unreachable { .. } => {
                "check the network, proxy and HF_ENDPOINT, or name a folder or a GGUF file that is here"
            }
            Self::NotFound { .. } => {
                "check the spelling: organisation/name, with @revision behind it if need be"
            }
            Self::Refused { .. } => {
                "accept its terms on the hub's page, and set HF_TOKEN to a token of your account"
            }
            Self::NoWeights => {
                "choose a repository with *.safetensors files, or download its GGUF file and name that"
            }
            Self::Download { .. } => "try again: what has arrived is kept",
        }
    }
}

impl Hub {
    /// As the variables of Hugging Face's own programs say: `HF_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// [`Error::NoHome`] when no variable says where the cache is.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(|name| env::var(name).ok(), env::home_dir())
    }

    fn from_vars(var: impl Fn(&str) -> Option<String>, home: Option<PathBuf>) -> Result<Self> {
        let set = |name| var(name).filter(|value| !value.is_empty());
        let path = |name| set(name).map(PathBuf::from);
        let home = path("HF_HOME")
            .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface")))
            .or_else(|| Some(home?.join(".cache").join("huggingface")))
            .ok_or(Error::NoHome)?;
        let saved = || fs::read_to_string(home.join("token")).ok().map(|token| token.trim().to_owned());
        let is_on = |value: String| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str());
        Ok(Self {
            cache: path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            endpoint: set("HF_ENDPOINT")
                .map_or_else(|| "https://huggingface.co".into(), |url| url.trim_end_matches('/').to_owned()),
            token: set("HF_TOKEN").or_else(saved).filter(|token| !token.is_empty()),
            offline: set("HF_HUB_OFFLINE").is_some_and(is_on),
        })
    }

    /// The folder of a repository's snapshot, from the cache or else from the network.
    ///
    /// # Errors
    /// [`Error::Hub`] with the [`HubError`], [`Error::Shards`] when the repository's index and files disagree, and
    /// [`Error::Hash`] when a downloaded file is damaged.
    pub fn fetch(&self, repository: &RepositoryId, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
        if let Some(snapshot) = self.cached(repository) {
            return Ok(snapshot);
        }
        if self.offline {
            return Err(hub(repository, HubError::Offline { cache: self.cache.clone() }));
        }
        let refused = |error| self.refused(repository, &error);
        let api = ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_progress(false)
            .with_retries(3)
            .build()
            .map_err(refused)?;
        let listing = api.repo(repo(repository, repository.revision())).info().map_err(refused)?;
        let listed: BTreeSet<String> = listing.siblings.into_iter().map(|file| file.rfilename).collect();
        let commit = listing.sha.as_str();
        if commit.len() != 40 || !commit.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            let detail = format!("the hub named {commit:?} as its commit");
            return Err(hub(repository, HubError::Download { detail }));
        }

        let files = Download {
            repository,
            hub: self,
            api: &api,
            remote: api.repo(repo(repository, commit)),
            local: Cache::new(self.cache.clone()).repo(repo(repository, commit)),
            commit,
        };
        let snapshot = files.local.pointer_path(commit);
        files.all(&listed, &snapshot, progress)?;
        let branch = Cache::new(self.cache.clone()).repo(repo(repository, repository.revision()));
        branch.create_ref(commit).map_err(|source| Error::Store { path: self.cache.clone(), source })?;
        Ok(snapshot)
    }

    /// The snapshot of a repository, if the cache holds a complete model there.
    fn cached(&self, repository: &RepositoryId) -> Option<PathBuf> {
        let folder = self.cache.join(repo(repository, repository.revision()).folder_name());
        let snapshots = folder.join("snapshots");
        let named = fs::read_to_string(folder.join("refs").join(repository.revision()));
        let commit = named.as_deref().map_or(repository.revision(), str::trim);
        let snapshot = snapshots.join(commit);
        let model = ModelDir::open(&snapshot).ok()?;
        model.file("tokenizer.json").map(|_| snapshot)
    }

    fn refused(&self, repository: &RepositoryId, error: &ApiError) -> Error {
        let problem = match error {
            ApiError::TooManyRetries(error) => return self.refused(repository, error),
            ApiError::RequestError(error) => match **error {
                ureq::Error::StatusCode(404) => {
                    HubError::NotFound { revision: repository.revision().to_owned() }
                }
                ureq::Error::StatusCode(status @ (401 | 403)) => HubError::Refused { status },
                ureq::Error::Io(_)
                | ureq::Error::Timeout(_)
                | ureq::Error::HostNotFound
                | ureq::Error::ConnectionFailed
                | ureq::Error::Tls(_)
                | ureq::Error::Rustls(_)
                | ureq::Error::ConnectProxyFailed(_) => {
                    HubError::Unreachable { endpoint: self.endpoint.clone(), detail: error.to_string() }
                }
                _ => HubError::Download { detail: error.to_string() },
            },
            other => HubError::Download { detail: other.to_string() },
        };
        hub(repository, problem)
    }
}

/// The download of one commit.
struct Download<'a> {
    repository: &'a RepositoryId,
    hub: &'a Hub,
    api: &'a Api,
    remote: ApiRepo,
    local: CacheRepo,
    commit: &'a str,
}

impl Download<'_> {
    /// Downloads the files that make the model: settings first, the weights that the index asks for last.
    fn all(
        &self,
        listed: &BTreeSet<String>,
        snapshot: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let (weights, others): (BTreeSet<_>, BTreeSet<_>) = listed
            .iter()
            .filter(|name| is_wanted(name))
            .cloned()
            .partition(|name| name.ends_with(".safetensors"));
        if weights.is_empty() {
            return Err(hub(self.repository, HubError::NoWeights));
        }
        let mut wanted: Vec<String> = others.into_iter().collect();
        if wanted.iter().any(|name| name == INDEX) {
            self.one(INDEX, &self.metadata(INDEX)?, &mut |_| ())?;
            wanted.retain(|name| name != INDEX);
        }
        wanted.extend(ShardSet::choose(snapshot, &weights)?.names().map(str::to_owned));

        let sizes = wanted.iter().map(|name| self.metadata(name)).collect::<Result<Vec<_>>>()?;
        let total = sizes.iter().map(|metadata| metadata.size() as u64).sum();
        let mut before = 0;
        for (name, metadata) in wanted.iter().zip(&sizes) {
            let mut report = |done: u64| {
                let done = (before + done).min(total);
                progress(Progress { stage: Stage::Download, done, total: Some(total) });
            };
            self.one(name, metadata, &mut report)?;
            before += metadata.size() as u64;
        }
        Ok(())
    }

    /// Downloads one file unless it is here, and compares its hash where the hub tells one.
    fn one(&self, name: &str, metadata: &Metadata, progress: &mut dyn FnMut(u64)) -> Result<()> {
        if self.local.pointer_path(self.commit).join(name).exists() {
            progress(metadata.size() as u64);
            return Ok(());
        }
        let blob = self.local.blob_path(metadata.etag());
        // hf-hub goes on where a killed download ended, but can't if that was at the end.
        let part = blob.with_extension("part");
        if fs::metadata(&part).is_ok_and(|part| part.len() >= metadata.size() as u64) {
            fs::remove_file(&part).map_err(|source| Error::io("remove", &part, source))?;
        }
        let pointer = self
            .remote
            .download_with_progress(name, Report { progress, done: 0 })
            .map_err(|error| self.hub.refused(self.repository, &error))?;
        // Large files are stored under their SHA-256; small ones under a hash of git's own.
        let checked = match metadata.etag().len() {
            64 => digest::check_file(&blob, metadata.etag()),
            _ => Ok(()),
        };
        if checked.is_err() {
            for path in [&pointer, &blob] {
                fs::remove_file(path).map_err(|source| Error::io("remove", path, source))?;
            }
        }
        checked
    }

    fn metadata(&self, name: &str) -> Result<Metadata> {
        self.api.metadata(&self.remote.url(name)).map_err(|error| self.hub.refused(self.repository, &error))
    }
}

/// Turns hf-hub's increments into bytes of one file.
struct Report<'a> {
    progress: &'a mut dyn FnMut(u64),
    done: u64,
}

impl hf_hub::api::Progress for Report<'_> {
    fn init(&mut self, _size: usize, _filename: &str) {
        self.done = 0;
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        (self.progress)(self.done);
    }

    fn finish(&mut self) {}
}

/// Files of a model folder: settings, tokenizers, templates and weights, and none from a subfolder.
fn is_wanted(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let plain = name.bytes().all(letter) && !name.starts_with('.');
    let kinds = [".json", ".jinja", ".safetensors"];
    plain && (name == "tokenizer.model" || kinds.iter().any(|kind| name.ends_with(kind)))
}

fn repo(repository: &RepositoryId, revision: &str) -> Repo {
    Repo::with_revision(repository.id().to_owned(), RepoType::Model, revision.to_owned())
}

fn hub(repository: &RepositoryId, problem: HubError) -> Error {
    Error::Hub { repository: repository.id().to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_vars(vars: &[(&str, &str)], home: Option<&str>) -> Result<Hub> {
        let var = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|&(_, value)| value.into());
        Hub::from_vars(var, home.map(PathBuf::from))
    }

    #[test]
    fn the_cache_is_where_hugging_faces_own_programs_have_it() {
        let cache = |vars: &[(&str, &str)]| from_vars(vars, Some("/h")).unwrap().cache;
        let (own, home, xdg) = (("HF_HUB_CACHE", "/c"), ("HF_HOME", "/f"), ("XDG_CACHE_HOME", "/x"));
        assert_eq!(cache(&[own, home, xdg]), Path::new("/c"));
        assert_eq!(cache(&[home, xdg]), Path::new("/f/hub"));
        assert_eq!(cache(&[xdg]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[]), Path::new("/h/.cache/huggingface/hub"));
        assert!(matches!(from_vars(&[], None), Err(Error::NoHome)));
    }

    #[test]
    fn token_endpoint_and_offline_mode_come_from_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), " saved\n").unwrap();
        let home = ("HF_HOME", folder.path().to_str().unwrap());
        let hub = from_vars(&[home], None).unwrap();
        assert_eq!((hub.token.as_deref(), hub.offline), (Some("saved"), false));
        assert_eq!(hub.endpoint, "https://huggingface.co");
        let vars = [home, ("HF_TOKEN", "own"), ("HF_ENDPOINT", "http://host/"), ("HF_HUB_OFFLINE", "true")];
        let hub = from_vars(&vars, None).unwrap();
        assert_eq!((hub.token.as_deref(), hub.offline), (Some("own"), true));
        assert_eq!(hub.endpoint, "http://host");
    }

    #[test]
    fn only_files_of_a_model_are_wanted() {
        for name in
            ["config.json", "chat_template.jinja", "model-00001-of-00002.safetensors", "tokenizer.model"]
        {
            assert!(is_wanted(name), "{name}");
        }
        for name in ["README.md", "a/config.json", "../x.json", ".x.json", "pytorch_model.bin", "model.gguf"]
        {
            assert!(!is_wanted(name), "{name}");
        }
    }
}

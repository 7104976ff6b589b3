//! A model's folder in Hugging Face layout: what must be in it, what may be, and where.
//!
//! Required are `config.json` and weights (which files those are is the rule in `shards.rs`). Optional are
//! `generation_config.json`, `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`,
//! `chat_template.jinja` and others: absent is `None`, broken is an error, never skipped. What the tokenizer files
//! mean is for strata-text to say.

use crate::config::{RawConfig, Settings, end_tokens, read_settings};
use crate::error::{Error, Result};
use crate::json;
use crate::kv_config;
use crate::quantization::Quantization;
use crate::shards::ShardSet;
use crate::weights::Weights;
use serde_json::Value;
use std::path::{Path, PathBuf};
use strata_contracts::LayerKv;

/// The configuration of a model, without which no folder is one.
pub(crate) const CONFIG: &str = "config.json";

/// A folder that holds a model: its configuration is read and its weight files are known to exist.
#[derive(Debug, Clone)]
pub struct ModelDir {
    path: PathBuf,
    config: RawConfig,
    generation: Option<Settings>,
    shards: ShardSet,
}

impl ModelDir {
    /// Reads the configuration and finds the weights.
    ///
    /// # Errors
    /// [`Error::NoFolder`], [`Error::MissingFile`] without `config.json`, [`Error::Shards`] without a complete set of
    /// weights, and [`Error::Json`], [`Error::NotFinite`] or [`Error::Config`] for broken settings.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Err(Error::NoFolder { path: path.to_owned() });
        }
        let file = path.join(CONFIG);
        let config: Value = json::read(&file)?
            .ok_or_else(|| Error::MissingFile { folder: path.to_owned(), file: CONFIG.to_owned() })?;
        let config = RawConfig::from_value(config, &file)?;
        let generation = read_settings(path.join("generation_config.json"))?;
        let shards = ShardSet::find(path)?;
        Ok(Self { path: path.to_owned(), config, generation, shards })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.json`.
    pub fn config(&self) -> &RawConfig {
        &self.config
    }

    /// `generation_config.json`, where there is one.
    pub fn generation_config(&self) -> Option<&Settings> {
        self.generation.as_ref()
    }

    /// The weight files, and those that were left alone.
    pub fn shards(&self) -> &ShardSet {
        &self.shards
    }

    /// The quantization settings; `None` when the weights are plain.
    ///
    /// # Errors
    /// As [`Quantization::from_config`].
    pub fn quantization(&self) -> Result<Option<Quantization>> {
        Quantization::from_config(&self.config)
    }

    /// Opens the weights.
    ///
    /// # Errors
    /// As [`Weights::open`].
    pub fn weights(&self) -> Result<Weights> {
        Weights::open(&self.path, &self.shards)
    }

    /// The ids that end a text: all that `config.json` (in `text_config` too) and `generation_config.json` list,
    /// each once and ascending. The tokenizer's own end token is not among them unless they list it.
    ///
    /// # Errors
    /// [`Error::Config`] when `eos_token_id` is neither an id nor a list of ids.
    pub fn end_tokens(&self) -> Result<Vec<u32>> {
        let mut ids = end_tokens(&self.config.root())?;
        ids.extend(end_tokens(&self.config.text()?)?);
        if let Some(generation) = &self.generation {
            ids.extend(end_tokens(&generation.root())?);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// The formats of keys and values that the model's maker proposes in `kv_config.json`, where there is one.
    ///
    /// # Errors
    /// As [`read_kv_config`](crate::read_kv_config).
    pub fn kv_config(&self) -> Result<Option<Vec<LayerKv>>> {
        kv_config::read_kv_config(&self.path.join(kv_config::FILE))
    }

    /// The path of a file in the folder, if it is there.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        let path = self.path.join(name);
        path.is_file().then_some(path)
    }

    /// The path of a file in the folder.
    ///
    /// # Errors
    /// [`Error::MissingFile`], naming it.
    pub fn require_file(&self, name: &str) -> Result<PathBuf> {
        self.file(name).ok_or_else(|| Error::MissingFile { folder: self.path.clone(), file: name.to_owned() })
    }

    /// The parsed content of an optional JSON file of the folder.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Json`] and [`Error::NotFinite`] when it is there and can't be read.
    pub fn json(&self, name: &str) -> Result<Option<Value>> {
        json::read(&self.path.join(name))
    }
}

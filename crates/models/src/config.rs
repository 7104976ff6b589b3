//! Reading config.json strictly: sizes within bounds, contradictions refused, keys that nobody read reported.

use crate::error::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;
use strata_artifacts::{ConfigValue, Section};

/// Largest size of a dimension that is believed. The largest models of today stay a hundred times below.
const LARGEST: usize = 1 << 24;

/// Settings that describe training, tooling or the file itself, never the computation.
const ABOUT_OTHER_THINGS: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "model_type",
    "pad_token_id",
    "pretraining_tp",
    "quantization",
    "quantization_config",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
];

/// The settings of one family, remembering which were read.
pub(crate) struct Config<'a> {
    family: &'static str,
    section: Section<'a>,
    read: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Config<'a> {
    pub(crate) fn new(family: &'static str, section: Section<'a>) -> Self {
        Self { family, section, read: RefCell::default() }
    }

    /// A size that must be there, at least 1.
    pub(crate) fn size(&self, key: &'static str) -> Result<i32> {
        self.read.borrow_mut().insert(key);
        Ok(self.section.size(key, 1..=LARGEST)? as i32)
    }

    /// A size that may be absent.
    pub(crate) fn get_size(&self, key: &'static str) -> Result<Option<i32>> {
        self.read.borrow_mut().insert(key);
        Ok(self.section.get_size(key, 1..=LARGEST)?.map(|n| n as i32))
    }

    /// A value that may be absent.
    pub(crate) fn get<T: ConfigValue>(&self, key: &'static str) -> Result<Option<T>> {
        self.read.borrow_mut().insert(key);
        Ok(self.section.get(key)?)
    }

    /// A value, or what mlx-lm takes when it is absent.
    pub(crate) fn get_or<T: ConfigValue>(&self, key: &'static str, default: T) -> Result<T> {
        Ok(self.get(key)?.unwrap_or(default))
    }

    /// A value that must be there.
    pub(crate) fn require<T: ConfigValue>(&self, key: &'static str) -> Result<T> {
        self.read.borrow_mut().insert(key);
        Ok(self.section.require(key)?)
    }

    /// A block of settings that may be absent.
    pub(crate) fn section(&self, key: &'static str) -> Result<Option<Section<'a>>> {
        self.read.borrow_mut().insert(key);
        Ok(self.section.section(key)?)
    }

    /// A refusal that names the setting.
    pub(crate) fn unsupported(&self, key: &str, reason: impl Into<String>) -> Error {
        let value = self.section.value(key).map_or_else(|| "(absent)".to_owned(), ToString::to_string);
        Error::Unsupported { family: self.family, key: key.to_owned(), value, reason: reason.into() }
    }

    /// Refuses a setting with any other value than `only`.
    pub(crate) fn demand(&self, key: &'static str, only: &[&str]) -> Result<()> {
        match self.get::<String>(key)? {
            Some(value) if !only.contains(&value.as_str()) => {
                Err(self.unsupported(key, format!("only {} is", only.join(" or "))))
            }
            _ => Ok(()),
        }
    }

    /// Query heads, and key/value heads that divide them.
    pub(crate) fn heads(&self) -> Result<(i32, i32)> {
        let heads = self.size("num_attention_heads")?;
        let kv_heads = self.get_size("num_key_value_heads")?.unwrap_or(heads);
        if heads % kv_heads == 0 {
            return Ok((heads, kv_heads));
        }
        Err(self.unsupported("num_key_value_heads", format!("it does not divide {heads} query heads")))
    }

    /// Values per head: the setting, or the hidden size over the heads.
    pub(crate) fn head_dim(&self, hidden: i32, heads: i32) -> Result<i32> {
        match self.get_size("head_dim")? {
            Some(dim) => Ok(dim),
            None if hidden % heads == 0 => Ok(hidden / heads),
            None => {
                Err(self
                    .unsupported("num_attention_heads", format!("it does not divide hidden_size {hidden}")))
            }
        }
    }

    /// Reports settings that the family did not read and does not know to be harmless: a new setting in a checkpoint
    /// should be somebody's decision. `ignored` are those that mlx-lm's file of this family leaves unread too.
    pub(crate) fn report_unread(&self, ignored: &[&str]) {
        let read = self.read.borrow();
        for (key, value) in self.section.values() {
            let known = read.contains(key.as_str())
                || ABOUT_OTHER_THINGS.contains(&key.as_str())
                || ignored.contains(&key.as_str());
            if !known && !value.is_null() {
                tracing::warn!(family = self.family, key, %value, "setting in config.json has no effect");
            }
        }
    }
}

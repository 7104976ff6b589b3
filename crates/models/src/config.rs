//! Reading config.json strictly: sizes within bounds, contradictions refused, keys that nobody read reported.

use crate::error::{Error, Result};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;
use strata_artifacts::{ConfigValue, RawConfig, Section};

/// Largest size of a dimension that is believed. The largest models of today stay a hundred times below.
pub(crate) const LARGEST: usize = 1 << 24;

const LAYERS: &str = "num_hidden_layers";

/// Most layers that are believed.
const DEEPEST: usize = 1 << 12;

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
    /// The whole file.
    root: Section<'a>,
    /// What describes the language model.
    section: Section<'a>,
    read: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Config<'a> {
    pub(crate) fn new(family: &'static str, file: &'a RawConfig) -> Result<Self> {
        Ok(Self { family, root: file.root(), section: file.text()?, read: RefCell::default() })
    }

    /// True when the language model is a part of a larger one.
    pub(crate) fn is_nested(&self) -> bool {
        !self.section.name().is_empty()
    }

    /// A size that stands outside the language model's part.
    pub(crate) fn outermost_size(&self, key: &'static str) -> Result<Option<i32>> {
        Ok(self.root.get_size(key, 1..=LARGEST)?.map(|n| n as i32))
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

    /// A size, or what mlx-lm takes when it is absent.
    pub(crate) fn size_or(&self, key: &'static str, default: i32) -> Result<i32> {
        Ok(self.get_size(key)?.unwrap_or(default))
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

    /// A number above 0, or what mlx-lm takes when it is absent. An explicit null, which turns something off elsewhere,
    /// is refused.
    pub(crate) fn positive(&self, key: &'static str, default: f64) -> Result<f64> {
        let null = self.section.values().get(key).is_some_and(Value::is_null);
        let number = self.get_or(key, default)?;
        if number > 0.0 && !null {
            Ok(number)
        } else {
            Err(self.unsupported(key, "it must be a number above 0"))
        }
    }

    /// A block of settings that may be absent.
    pub(crate) fn section(&self, key: &'static str) -> Result<Option<Section<'a>>> {
        self.read.borrow_mut().insert(key);
        Ok(self.section.section(key)?)
    }

    /// A refusal that names the setting.
    pub(crate) fn unsupported(&self, key: &str, reason: impl Into<String>) -> Error {
        let value = self.section.values().get(key).map_or_else(|| "(absent)".to_owned(), ToString::to_string);
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

    /// How many layers there are.
    pub(crate) fn layers(&self) -> Result<usize> {
        self.read.borrow_mut().insert(LAYERS);
        Ok(self.section.size(LAYERS, 1..=DEEPEST)?)
    }

    /// How many layers there are, if the file says so.
    pub(crate) fn get_layers(&self) -> Result<Option<usize>> {
        self.read.borrow_mut().insert(LAYERS);
        Ok(self.section.get_size(LAYERS, 1..=DEEPEST)?)
    }

    /// Refuses a `layer_types` that has other layers than these.
    pub(crate) fn demand_layers(&self, only: &str) -> Result<()> {
        let types = self.get::<Vec<String>>("layer_types")?.unwrap_or_default();
        match types.iter().find(|kind| *kind != only) {
            Some(other) => {
                Err(self.unsupported("layer_types", format!("{other:?} is no kind of layer here")))
            }
            None => Ok(()),
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

    /// Base of the rotary encoding and its scaling: `rope_theta` and `rope_scaling`, or both in `rope_parameters`, as
    /// transformers 5 writes them. Without a default the base must be there.
    pub(crate) fn rope(&self, default: Option<f64>) -> Result<(f64, Option<Section<'a>>)> {
        let parameters = self.section("rope_parameters")?;
        let nested = parameters.as_ref().map(|p| p.get::<f64>("rope_theta")).transpose()?.flatten();
        let base = match self.get::<f64>("rope_theta")?.or(nested).or(default) {
            Some(base) => base,
            None => self.require("rope_theta")?,
        };
        if base <= 0.0 {
            return Err(self.unsupported("rope_theta", "it must be above 0"));
        }
        Ok((base, self.section("rope_scaling")?.or(parameters)))
    }

    /// The part of `rope_parameters` for one kind of layer.
    pub(crate) fn rope_parameters_of(&self, kind: &str) -> Result<Option<Section<'a>>> {
        let Some(parameters) = self.section("rope_parameters")? else { return Ok(None) };
        match parameters.section(kind)? {
            Some(of_kind) => Ok(Some(of_kind)),
            None => Err(self.unsupported("rope_parameters", format!("it has no part {kind}"))),
        }
    }

    /// Refuses a setting that asks for something, by any other value than null, false, 0 or nothing at all.
    pub(crate) fn refuse(&self, key: &'static str, reason: &str) -> Result<()> {
        self.read.borrow_mut().insert(key);
        let asks = self.section.value(key).is_some_and(|value| match value {
            Value::Bool(asked) => *asked,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        });
        if asks { Err(self.unsupported(key, reason)) } else { Ok(()) }
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

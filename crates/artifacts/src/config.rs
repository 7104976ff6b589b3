//! `config.json` as the file has it: the model type, and typed access to the rest with errors that name the key and
//! the value found.
//!
//! What keys mean is for the model families to say; nothing here gives a default. A key with the value `null`
//! counts as absent, as it does in Python's configuration classes.

use crate::error::{Error, Result};
use crate::json;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A parsed `config.json`.
#[derive(Debug, Clone)]
pub struct RawConfig {
    origin: Arc<Path>,
    model_type: String,
    architectures: Vec<String>,
    values: Map<String, Value>,
}

/// An object of a configuration: the whole, or a nested one such as `text_config`.
#[derive(Debug, Clone)]
pub struct Section<'a> {
    origin: &'a Path,
    /// Keys that lead here, each with a dot after it.
    prefix: String,
    values: &'a Map<String, Value>,
}

impl RawConfig {
    /// Parses the text of a configuration; `origin` is used in messages alone.
    ///
    /// # Errors
    /// [`Error::Json`] or [`Error::NotFinite`] when it is no JSON, [`Error::Config`] when it is no object or
    /// `model_type` is no text.
    pub fn parse(text: &str, origin: &Path) -> Result<Self> {
        Self::from_value(json::parse(text.as_bytes(), origin)?, origin)
    }

    pub(crate) fn from_value(value: Value, origin: &Path) -> Result<Self> {
        let Value::Object(values) = value else {
            return Err(config_error(origin, String::new(), "an object", &value));
        };
        let section = Section { origin, prefix: String::new(), values: &values };
        let model_type: String = section.require("model_type")?;
        let architectures = section.get("architectures")?.unwrap_or_default();
        Ok(Self { origin: origin.into(), model_type, architectures, values })
    }

    /// The value of `model_type`, such as `llama`.
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// Class names under `architectures`, such as `LlamaForCausalLM`; often none.
    pub fn architectures(&self) -> &[String] {
        &self.architectures
    }

    /// Everything in the file.
    pub fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// The file, as messages name it.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// The outermost object.
    pub fn root(&self) -> Section<'_> {
        Section { origin: &self.origin, prefix: String::new(), values: &self.values }
    }

    /// The object that describes the language model: `text_config` where there is one, else the outermost.
    ///
    /// # Errors
    /// [`Error::Config`] when `text_config` is no object.
    pub fn text(&self) -> Result<Section<'_>> {
        let root = self.root();
        Ok(root.section("text_config")?.unwrap_or(root))
    }
}

impl<'a> Section<'a> {
    /// The untouched value; `None` when the key is absent or `null`.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// The file, as messages name it.
    pub fn origin(&self) -> &'a Path {
        self.origin
    }

    /// The keys that lead here, joined by dots; empty for the outermost object.
    pub fn name(&self) -> &str {
        self.prefix.trim_end_matches('.')
    }

    /// All keys and values.
    pub fn values(&self) -> &'a Map<String, Value> {
        self.values
    }

    /// A nested object.
    ///
    /// # Errors
    /// [`Error::Config`] when the value is something else.
    pub fn section(&self, key: &str) -> Result<Option<Section<'a>>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(values)) => {
                Ok(Some(Section { origin: self.origin, prefix: format!("{}{key}.", self.prefix), values }))
            }
            Some(other) => Err(self.error(key, "an object", other)),
        }
    }

    /// The value as `T`, if the key is there.
    ///
    /// # Errors
    /// [`Error::Config`] when the value is no `T`.
    pub fn get<T: ConfigValue>(&self, key: &str) -> Result<Option<T>> {
        self.value(key).map(|value| T::read(value).ok_or_else(|| self.error(key, T::KIND, value))).transpose()
    }

    /// The value as `T`.
    ///
    /// # Errors
    /// [`Error::Config`] when the key is absent or the value is no `T`.
    pub fn require<T: ConfigValue>(&self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| self.absent(key, T::KIND))
    }

    /// A size or count within `range`, if the key is there. The range is the place to refuse zero and sizes that no
    /// model has, before anything is allocated by them.
    ///
    /// # Errors
    /// [`Error::Config`] when the value is no whole number of the range.
    pub fn get_size(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let size = u64::read(value).and_then(|size| usize::try_from(size).ok());
        match size.filter(|size| range.contains(size)) {
            Some(size) => Ok(Some(size)),
            None => Err(self.error(key, whole_number(&range), value)),
        }
    }

    /// A size or count within `range`.
    ///
    /// # Errors
    /// [`Error::Config`] when the key is absent or the value is no whole number of the range.
    pub fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        self.get_size(key, range.clone())?.ok_or_else(|| self.absent(key, whole_number(&range)))
    }

    /// The error that says `key` must be `expected`, for rules that only a family knows.
    pub fn error(&self, key: &str, expected: impl Into<String>, found: &Value) -> Error {
        config_error(self.origin, format!("{}{key}", self.prefix), expected, found)
    }

    fn absent(&self, key: &str, expected: impl Into<String>) -> Error {
        Error::Config {
            path: self.origin.to_owned(),
            key: format!("{}{key}", self.prefix),
            expected: expected.into(),
            found: "absent".into(),
        }
    }
}

/// A type that [`Section::get`] reads.
pub trait ConfigValue: Sized {
    /// What messages call it, such as "a whole number".
    const KIND: &'static str;

    /// The value, if it has this type.
    fn read(value: &Value) -> Option<Self>;
}

impl ConfigValue for bool {
    const KIND: &'static str = "true or false";

    fn read(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl ConfigValue for String {
    const KIND: &'static str = "a text";

    fn read(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }
}

/// Also takes a whole number written with a fraction, such as `4096.0`.
impl ConfigValue for u64 {
    const KIND: &'static str = "a whole number of at least 0";

    fn read(value: &Value) -> Option<Self> {
        // Up to 2^53 every whole number is exact as a float.
        let whole = |number: &f64| number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(number);
        value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as Self))
    }
}

/// A token id, a layer number and the like.
impl ConfigValue for u32 {
    const KIND: &'static str = "a whole number below 2^32";

    fn read(value: &Value) -> Option<Self> {
        u64::read(value)?.try_into().ok()
    }
}

/// Finite: `1e999` is no JSON number, and transformers' `{"__float__": "Infinity"}` is no number here.
impl ConfigValue for f64 {
    const KIND: &'static str = "a finite number";

    fn read(value: &Value) -> Option<Self> {
        value.as_f64().filter(|number| number.is_finite())
    }
}

/// As `f64`, and still finite after rounding.
impl ConfigValue for f32 {
    const KIND: &'static str = "a finite number of 32 bits";

    fn read(value: &Value) -> Option<Self> {
        value.as_f64().map(|number| number as Self).filter(|number| number.is_finite())
    }
}

macro_rules! lists {
    ($($item:ty: $kind:literal),*) => {$(
        impl ConfigValue for Vec<$item> {
            const KIND: &'static str = $kind;

            fn read(value: &Value) -> Option<Self> {
                value.as_array()?.iter().map(<$item>::read).collect()
            }
        }
    )*};
}

lists! {
    String: "a list of texts",
    u64: "a list of whole numbers",
    u32: "a list of whole numbers below 2^32",
    f64: "a list of finite numbers",
    f32: "a list of finite numbers of 32 bits",
    bool: "a list of true and false"
}

/// The token ids under `eos_token_id`, which may be one id or a list. A negative id means that there is none.
pub(crate) fn end_tokens(section: &Section<'_>) -> Result<Vec<u32>> {
    const KEY: &str = "eos_token_id";
    let Some(value) = section.value(KEY) else { return Ok(Vec::new()) };
    let ids = match value {
        Value::Array(ids) => ids.as_slice(),
        id => std::slice::from_ref(id),
    };
    let valid = ids.iter().filter(|id| id.as_i64() != Some(-1));
    valid
        .map(u32::read)
        .collect::<Option<_>>()
        .ok_or_else(|| section.error(KEY, "a token id or a list of token ids", value))
}

/// A file of plain settings, such as `generation_config.json`.
pub(crate) fn read_settings(path: PathBuf) -> Result<Option<Settings>> {
    let Some(value) = json::read::<Value>(&path)? else { return Ok(None) };
    match value {
        Value::Object(values) => Ok(Some(Settings { path, values })),
        other => Err(config_error(&path, String::new(), "an object", &other)),
    }
}

/// A JSON object from a file of the model other than `config.json`.
#[derive(Debug, Clone)]
pub struct Settings {
    path: PathBuf,
    values: Map<String, Value>,
}

impl Settings {
    /// The outermost object.
    pub fn root(&self) -> Section<'_> {
        Section { origin: &self.path, prefix: String::new(), values: &self.values }
    }
}

fn whole_number(range: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

fn config_error(origin: &Path, key: String, expected: impl Into<String>, found: &Value) -> Error {
    /// Longest value that a message quotes, in characters.
    const QUOTED: usize = 60;
    let mut found = found.to_string();
    if let Some((end, _)) = found.char_indices().nth(QUOTED) {
        found.replace_range(end.., "…");
    }
    Error::Config { path: origin.to_owned(), key, expected: expected.into(), found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(rest: &str) -> Result<RawConfig> {
        RawConfig::parse(&format!("{{\"model_type\": \"llama\", {rest}}}"), Path::new("config.json"))
    }

    /// The message of reading `key` as a size of 1 to 1024.
    fn size_error(rest: &str) -> String {
        config(rest).unwrap().root().size("hidden_size", 1..=1024).unwrap_err().to_string()
    }

    #[test]
    fn sizes_outside_their_range_or_of_the_wrong_type_are_refused_with_key_and_value() {
        let expected = "`hidden_size` must be a whole number from 1 to 1024 but is";
        for found in ["0", "1025", "-1", "1.5", "true", "\"64\"", "[64]", "99999999999999999999999", "1e300"]
        {
            let message = size_error(&format!("\"hidden_size\": {found}"));
            let quoted = if found.starts_with("999") || found == "1e300" { "" } else { found };
            assert!(message.contains(&format!("{expected} {quoted}")), "{message}");
        }
        assert!(size_error("\"hidden_size\": null").contains(&format!("{expected} absent")));
        assert!(size_error("\"other\": 1").contains(&format!("{expected} absent")));
    }

    #[test]
    fn sizes_may_be_written_as_floats() {
        let config = config("\"hidden_size\": 64.0").unwrap();
        assert_eq!(config.root().size("hidden_size", 1..=64).unwrap(), 64);
    }

    #[test]
    fn python_constants_are_refused_by_name() {
        for (rest, constant) in [
            ("\"a\": 1,\n \"rms_norm_eps\": NaN", "NaN"),
            ("\"theta\": Infinity", "Infinity"),
            ("\"limits\": [0.0,\n-Infinity]", "Infinity"),
        ] {
            match config(rest) {
                Err(Error::NotFinite { constant: found, .. }) => assert_eq!(found, constant, "{rest}"),
                other => panic!("{rest}: {other:?}"),
            }
        }
        assert!(matches!(config("\"a\": Nothing"), Err(Error::Json { .. })));
        assert!(matches!(config("\"theta\": 1e999"), Err(Error::Json { .. })));
    }

    #[test]
    fn floats_must_be_finite_in_the_width_asked_for() {
        let config = config("\"a\": 1e300, \"b\": {\"__float__\": \"Infinity\"}").unwrap();
        assert!((config.root().require::<f64>("a").unwrap() - 1e300).abs() < 1e285);
        assert!(config.root().require::<f32>("a").is_err());
        assert!(config.root().require::<f64>("b").is_err());
    }

    #[test]
    fn nested_text_config_is_found_and_named_in_errors() {
        let nested = config("\"text_config\": {\"hidden_size\": 0}").unwrap();
        let message = nested.text().unwrap().size("hidden_size", 1..=8).unwrap_err().to_string();
        assert!(message.contains("`text_config.hidden_size`"), "{message}");
        assert!(config("\"text_config\": 3").unwrap().text().is_err());
        assert!(config("\"hidden_size\": 3").unwrap().text().is_ok());
    }

    #[test]
    fn a_config_without_a_usable_model_type_is_refused() {
        for text in ["[]", "{}", "{\"model_type\": 3}", "{\"model_type\": null}", "", "{"] {
            assert!(RawConfig::parse(text, Path::new("config.json")).is_err(), "{text}");
        }
    }

    #[test]
    fn long_values_are_cut_in_messages() {
        let message = size_error(&format!("\"hidden_size\": \"{}\"", "é".repeat(5000)));
        assert!(message.len() < 300, "{message}");
    }

    #[test]
    fn end_tokens_are_one_id_or_a_list() {
        let ids = |rest: &str| end_tokens(&config(rest).unwrap().root());
        assert_eq!(ids("\"eos_token_id\": 2").unwrap(), [2]);
        assert_eq!(ids("\"eos_token_id\": [1, 106]").unwrap(), [1, 106]);
        assert_eq!(ids("\"eos_token_id\": -1").unwrap(), Vec::<u32>::new());
        assert_eq!(ids("\"eos_token_id\": null").unwrap(), Vec::<u32>::new());
        for wrong in ["\"2\"", "[1, \"2\"]", "-7", "4294967296", "1.5"] {
            assert!(ids(&format!("\"eos_token_id\": {wrong}")).is_err(), "{wrong}");
        }
    }
}

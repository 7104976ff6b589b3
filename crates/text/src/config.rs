//! What the files beside tokenizer.json say: named special tokens and chat templates.
//!
//! Invariant: a file that exists is either understood or reported, never skipped. Which template is used, and how,
//! is the business of `template`.
//!
//! Order of precedence, as in transformers 5 (`PreTrainedTokenizerBase.from_pretrained`): tokenizer_config.json names
//! the special tokens and special_tokens_map.json fills gaps; `chat_template.jinja` and
//! `additional_chat_templates/NAME.jinja` replace what tokenizer_config.json holds, and the older
//! `chat_template.json` of processors is used when there is nothing else. `add_bos_token` and `add_eos_token` are
//! ignored, because transformers ignores them too wherever a tokenizer.json with a post-processor exists.

use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Special tokens and chat templates of a tokenizer. The default has neither.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// Text of each named token: `bos_token`, `eos_token`, `unk_token`, `pad_token` and the like.
    pub special_tokens: BTreeMap<String, String>,
    /// Where the templates below came from, for messages; empty if there are none.
    pub template_origin: String,
    /// Template text by name; a single unnamed template is called `default`.
    pub chat_templates: BTreeMap<String, String>,
}

impl TokenizerConfig {
    /// Reads what `folder` holds; every file is optional.
    ///
    /// # Errors
    /// A file that is there but cannot be read, is not JSON, or holds a field of the wrong type.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut config = Self::default();
        let path = folder.join("tokenizer_config.json");
        if let Some(json) = read_optional(&path)? {
            config = Self::from_json(&json, &path.display().to_string())?;
        }
        let path = folder.join("special_tokens_map.json");
        if let Some(json) = read_optional(&path)? {
            let origin = path.display().to_string();
            for (name, text) in special_tokens(&parse_object(&json, &origin)?, &origin)? {
                config.special_tokens.entry(name).or_insert(text);
            }
        }
        config.read_template_files(folder)?;
        Ok(config)
    }

    /// Reads the text of a tokenizer_config.json; `origin` names it in errors.
    ///
    /// # Errors
    /// Text that is not a JSON object, or a field of the wrong type.
    pub fn from_json(json: &str, origin: &str) -> Result<Self> {
        let object = parse_object(json, origin)?;
        let mut config = Self { special_tokens: special_tokens(&object, origin)?, ..Self::default() };
        if let Some(value) = object.get("chat_template") {
            config.set_templates(named_templates(value, origin)?, origin.to_owned());
        }
        Ok(config)
    }

    fn read_template_files(&mut self, folder: &Path) -> Result<()> {
        let mut templates = BTreeMap::new();
        let path = folder.join("chat_template.jinja");
        if let Some(text) = read_optional(&path)? {
            templates.insert("default".to_owned(), text);
        }
        for extra in jinja_files(&folder.join("additional_chat_templates"))? {
            if let (Some(name), Some(text)) =
                (extra.file_stem().and_then(|stem| stem.to_str()), read_optional(&extra)?)
            {
                templates.insert(name.to_owned(), text);
            }
        }
        self.set_templates(templates, path.display().to_string());

        let path = folder.join("chat_template.json");
        if self.chat_templates.is_empty()
            && let Some(json) = read_optional(&path)?
        {
            let origin = path.display().to_string();
            if let Some(value) = parse_object(&json, &origin)?.get("chat_template") {
                self.set_templates(named_templates(value, &origin)?, origin);
            }
        }
        Ok(())
    }

    fn set_templates(&mut self, templates: BTreeMap<String, String>, origin: String) {
        if !templates.is_empty() {
            self.chat_templates = templates;
            self.template_origin = origin;
        }
    }
}

/// The file's text, or `None` if there is no such file.
pub(crate) fn read_optional(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

fn jinja_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = |source| Error::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(read(source)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            files.push(path);
        }
    }
    Ok(files)
}

fn parse_object(json: &str, origin: &str) -> Result<Map<String, Value>> {
    match serde_json::from_str(json) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(field(origin, "(the whole file)", "a JSON object")),
        Err(source) => Err(Error::Json { origin: origin.to_owned(), source }),
    }
}

/// Every `*_token` that is a string, or an object with its text under `content`; null means there is none.
fn special_tokens(object: &Map<String, Value>, origin: &str) -> Result<BTreeMap<String, String>> {
    let mut tokens = BTreeMap::new();
    for (name, value) in object {
        // `add_bos_token: true` and its like end in `_token` too.
        if !name.ends_with("_token") || value.is_null() || value.is_boolean() {
            continue;
        }
        let text = match value {
            Value::String(text) => text,
            Value::Object(token) => match token.get("content") {
                Some(Value::String(text)) => text,
                _ => return Err(field(origin, &format!("{name}.content"), "a string")),
            },
            _ => return Err(field(origin, name, "a string or an object with `content`")),
        };
        tokens.insert(name.clone(), text.clone());
    }
    Ok(tokens)
}

/// A template, or a list of `{name, template}`, or an object from name to template.
fn named_templates(value: &Value, origin: &str) -> Result<BTreeMap<String, String>> {
    let mut templates = BTreeMap::new();
    match value {
        Value::Null => {}
        Value::String(text) => {
            templates.insert("default".to_owned(), text.clone());
        }
        Value::Array(list) => {
            for (index, entry) in list.iter().enumerate() {
                let part = |key| {
                    entry
                        .get(key)
                        .and_then(Value::as_str)
                        .ok_or_else(|| field(origin, &format!("chat_template[{index}].{key}"), "a string"))
                };
                templates.insert(part("name")?.to_owned(), part("template")?.to_owned());
            }
        }
        Value::Object(map) => {
            for (name, text) in map {
                let text = text
                    .as_str()
                    .ok_or_else(|| field(origin, &format!("chat_template.{name}"), "a string"))?;
                templates.insert(name.clone(), text.to_owned());
            }
        }
        _ => return Err(field(origin, "chat_template", "a string or a list of named templates")),
    }
    Ok(templates)
}

fn field(origin: &str, field: &str, requirement: &'static str) -> Error {
    Error::Field { origin: origin.to_owned(), field: field.to_owned(), requirement }
}

//! `kv_config.json`: in which affine format each layer keeps its keys and values, as mlx-optiq measures and writes it
//! (optiq/cli.py, 0.7.7): a list of `layer_idx`, `bits` and `group_size`. In a model's folder it is what the model's maker
//! proposes; nothing applies it unasked, as in mlx-lm. Whether the model has such layers is for strata-state to say.

use crate::error::{Error, Result};
use crate::json;
use serde_json::Value;
use std::path::Path;
use strata_contracts::LayerKv;

/// Its name in a model's folder.
pub(crate) const FILE: &str = "kv_config.json";

/// The formats that a file lists; `None` when there is no file.
///
/// # Errors
/// [`Error::Io`], [`Error::Json`] and [`Error::NotFinite`] for a file that cannot be read; [`Error::Config`] unless it is a
/// list of at least one layer, each named once; [`Error::KvEntry`] for an entry that is no layer's format.
pub fn read_kv_config(path: &Path) -> Result<Option<Vec<LayerKv>>> {
    let Some(file) = json::read::<Value>(path)? else { return Ok(None) };
    let wrong = |key: String, expected: &str, found: String| Error::Config {
        path: path.to_owned(),
        key,
        expected: expected.to_owned(),
        found,
    };
    let entries = match file {
        Value::Array(entries) if !entries.is_empty() => entries,
        Value::Array(_) => {
            return Err(wrong(String::new(), "a list of at least one layer", "empty".to_owned()));
        }
        Value::Object(_) => return Err(wrong(String::new(), "a list of layers", "an object".to_owned())),
        _ => return Err(wrong(String::new(), "a list of layers", "a single value".to_owned())),
    };
    let mut layers: Vec<LayerKv> = Vec::with_capacity(entries.len());
    for (entry, value) in entries.into_iter().enumerate() {
        let layer: LayerKv = serde_json::from_value(value).map_err(|problem| Error::KvEntry {
            path: path.to_owned(),
            entry,
            problem,
        })?;
        if layers.iter().any(|known| known.layer == layer.layer) {
            let key = format!("layer_idx of entry {entry}");
            return Err(wrong(key, "a layer that no earlier entry names", layer.layer.to_string()));
        }
        layers.push(layer);
    }
    Ok(Some(layers))
}

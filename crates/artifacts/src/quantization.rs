//! Which weights are quantized, and how: the `quantization` block of `config.json` as a default and exceptions.
//!
//! MLX writes `{"group_size": 64, "bits": 4, "mode": "affine", "model.layers.0.mlp": {"bits": 8, …}, "lm_head":
//! false}`: settings for all, and entries for module paths, where `false` means not quantized. Entries are keyed by
//! the names that the converter saw, so they go through the same renaming as the tensors before they are compared
//! with module paths, and an entry that no module asked for is reported by name.

use crate::config::{RawConfig, Section};
use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use strata_contracts::{Dtype, QuantMode, QuantScheme};

/// The quantization settings of a model, keyed as the file has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantization {
    default: QuantScheme,
    exceptions: BTreeMap<String, Option<QuantScheme>>,
}

/// The settings, keyed by module path.
#[derive(Debug, Clone)]
pub struct ResolvedQuantization {
    default: QuantScheme,
    /// Module path to its scheme and the key that the file has.
    exceptions: BTreeMap<String, (Option<QuantScheme>, String)>,
    asked: BTreeSet<String>,
}

impl Quantization {
    /// The settings of a model; `None` when it is not quantized.
    ///
    /// `quantization` is MLX's own block. `quantization_config` is read when it is a copy of that block, or names
    /// one of the methods whose weights MLX reads as they are, `mxfp4` and `mxfp8`.
    ///
    /// # Errors
    /// [`Error::Config`] for a value of the wrong type, [`Error::QuantScheme`] for settings that no kernel holds,
    /// [`Error::QuantMethod`] for the formats of other programs.
    pub fn from_config(config: &RawConfig) -> Result<Option<Self>> {
        let root = config.root();
        if let Some(block) = root.section("quantization")? {
            return Self::read(&block).map(Some);
        }
        let nested = config.text()?;
        match root.section("quantization_config")?.or(nested.section("quantization_config")?) {
            None => Ok(None),
            Some(block) => Self::read(&block).map(Some),
        }
    }

    fn read(block: &Section<'_>) -> Result<Self> {
        if let Some(method) = block.get::<String>("quant_method")? {
            return Self::of_method(block, method);
        }
        let default = scheme(block)?;
        let mut exceptions = BTreeMap::new();
        for (key, value) in block.values() {
            match value {
                Value::Bool(false) => {
                    exceptions.insert(key.clone(), None);
                }
                Value::Object(_) => {
                    if let Some(entry) = block.section(key)? {
                        exceptions.insert(key.clone(), Some(scheme(&entry)?));
                    }
                }
                Value::Bool(true) => {
                    exceptions.insert(key.clone(), Some(default));
                }
                // Settings of the block itself, or notes that other programs left.
                _ => {}
            }
        }
        Ok(Self { default, exceptions })
    }

    /// As mlx-lm 0.32.2 reads the methods that need no change of the weights (`utils.py`, `load_model`).
    fn of_method(block: &Section<'_>, method: String) -> Result<Self> {
        let mode = match method.as_str() {
            "mxfp4" => QuantMode::Mxfp4,
            "mxfp8" => QuantMode::Mxfp8,
            _ => return Err(Error::QuantMethod { path: block.origin().to_owned(), method }),
        };
        let bits = if mode == QuantMode::Mxfp4 { 4 } else { 8 };
        let default = QuantScheme::new(mode, bits, 32).map_err(|problem| Error::QuantScheme {
            path: block.origin().to_owned(),
            key: method,
            problem,
        })?;
        Ok(Self { default, exceptions: BTreeMap::new() })
    }

    /// The scheme of every quantized module without an entry of its own.
    pub fn default_scheme(&self) -> QuantScheme {
        self.default
    }

    /// The entries, keyed as the file has them; `None` means not quantized.
    pub fn exceptions(&self) -> impl Iterator<Item = (&str, Option<QuantScheme>)> {
        self.exceptions.iter().map(|(key, scheme)| (key.as_str(), *scheme))
    }

    /// Brings the entries' keys to module paths. `rename` is the renaming of tensors, applied to a module's path (a
    /// tensor's name without its last part); `None` says that tensors below this path are dropped on purpose, and
    /// the entry goes with them.
    ///
    /// # Errors
    /// [`Error::QuantCollision`] when two entries with different settings get the same path.
    pub fn resolve(&self, mut rename: impl FnMut(&str) -> Option<String>) -> Result<ResolvedQuantization> {
        let mut exceptions: BTreeMap<String, (Option<QuantScheme>, String)> = BTreeMap::new();
        for (key, &scheme) in &self.exceptions {
            let Some(path) = rename(key) else { continue };
            if let Some((other, first)) = exceptions.get(&path)
                && *other != scheme
            {
                return Err(Error::QuantCollision { path, first: first.clone(), second: key.clone() });
            }
            exceptions.insert(path, (scheme, key.clone()));
        }
        Ok(ResolvedQuantization { default: self.default, exceptions, asked: BTreeSet::new() })
    }
}

impl ResolvedQuantization {
    /// The scheme of the module at `path`, whose scales the weights hold; `None` when it is not quantized.
    pub fn scheme_for(&mut self, path: &str) -> Option<QuantScheme> {
        self.entry_for(path).unwrap_or(Some(self.default))
    }

    /// The entry of the module at `path` alone, if the settings have one; `Some(None)` says "not quantized".
    pub fn entry_for(&mut self, path: &str) -> Option<Option<QuantScheme>> {
        let &(scheme, _) = self.exceptions.get(path)?;
        self.asked.insert(path.to_owned());
        Some(scheme)
    }

    /// Entries that neither [`ResolvedQuantization::scheme_for`] nor [`ResolvedQuantization::entry_for`] was asked for, as the file names them. Once the model
    /// is bound, each is a setting that had no effect.
    pub fn unmatched(&self) -> Vec<&str> {
        let unasked = self.exceptions.iter().filter(|(path, _)| !self.asked.contains(*path));
        unasked.map(|(_, (_, key))| key.as_str()).collect()
    }
}

/// The scheme that a stored matrix was packed with, read off its shapes as mlx-lm 0.32.2 does for modules without an
/// entry (`utils.py`, `infer_quant_config`). `columns` is the row length before packing, `packed` that of the packed
/// words, `scales` that of the scales. `None` when no scheme fits.
pub fn infer_scheme(
    columns: usize,
    packed: usize,
    scales: usize,
    scales_dtype: Dtype,
) -> Option<QuantScheme> {
    let per_row = |words: usize, of: usize| u32::try_from(words.checked_div(of)?).ok();
    let group_size = per_row(columns, scales)?;
    let bits = per_row(packed.checked_mul(32)?, columns)?;
    // Only affine keeps its scales in the type of the weights; the others have one pair of bits and group each.
    let mode = match (scales_dtype, bits, group_size) {
        (Dtype::Uint8, 4, 16) => QuantMode::Nvfp4,
        (Dtype::Uint8, 4, 32) => QuantMode::Mxfp4,
        (Dtype::Uint8, 8, 32) => QuantMode::Mxfp8,
        (Dtype::Uint8, ..) => return None,
        _ => QuantMode::Affine,
    };
    let scheme = QuantScheme::new(mode, bits, group_size).ok()?;
    let exact = scheme.packed_columns(columns) == Ok(packed) && columns == scales * group_size as usize;
    exact.then_some(scheme)
}

/// Reads mode, bits and group size; what is absent has MLX's value for the mode, in an entry too
/// (`mlx/ops.cpp`, `quantization_params_from_mode`).
fn scheme(block: &Section<'_>) -> Result<QuantScheme> {
    let mode = match block.get::<String>("mode")? {
        None => QuantMode::Affine,
        Some(name) => [QuantMode::Affine, QuantMode::Mxfp4, QuantMode::Mxfp8, QuantMode::Nvfp4]
            .into_iter()
            .find(|mode| mode.name() == name)
            .ok_or_else(|| block.error("mode", "affine, mxfp4, mxfp8 or nvfp4", &Value::String(name)))?,
    };
    let (usual_bits, usual_group) = match mode {
        QuantMode::Affine => (4, 64),
        QuantMode::Mxfp4 => (4, 32),
        QuantMode::Mxfp8 => (8, 32),
        QuantMode::Nvfp4 => (4, 16),
    };
    let bits = block.get("bits")?.unwrap_or(usual_bits);
    let group_size = block.get("group_size")?.unwrap_or(usual_group);
    QuantScheme::new(mode, bits, group_size).map_err(|problem| Error::QuantScheme {
        path: block.origin().to_owned(),
        key: block.name().to_owned(),
        problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(block: &str) -> Result<Option<Quantization>> {
        let text = format!("{{\"model_type\": \"llama\", {block}}}");
        Quantization::from_config(&RawConfig::parse(&text, Path::new("config.json"))?)
    }

    fn settings(block: &str) -> Quantization {
        read(&format!("\"quantization\": {block}")).unwrap().unwrap()
    }

    fn affine(bits: u32, group_size: u32) -> QuantScheme {
        QuantScheme::affine(bits, group_size).unwrap()
    }

    const MIXED: &str = r#"{"group_size": 64, "bits": 4, "mode": "affine",
        "model.language_model.layers.0.x": {"group_size": 32, "bits": 6},
        "model.visual.y": {"group_size": 32, "bits": 8},
        "model.gone": {"bits": 8}, "lm_head": false}"#;

    /// As a multimodal checkpoint is renamed: vision tensors dropped, the language model moved.
    fn rename(path: &str) -> Option<String> {
        if path.starts_with("model.visual") {
            return None;
        }
        let Some(rest) = path.strip_prefix("model.language_model.") else { return Some(path.to_owned()) };
        Some(format!("language_model.model.{rest}"))
    }

    #[test]
    fn b10_an_entry_keyed_by_the_raw_tensor_prefix_is_renamed_and_applied() {
        let mut resolved = settings(MIXED).resolve(rename).unwrap();
        assert_eq!(resolved.scheme_for("language_model.model.layers.0.x"), Some(affine(6, 32)));
        assert_eq!(resolved.scheme_for("language_model.model.layers.1.x"), Some(affine(4, 64)));
        assert_eq!(resolved.scheme_for("lm_head"), None);
    }

    #[test]
    fn b10_an_entry_that_matches_nothing_is_reported_by_name() {
        let mut resolved = settings(MIXED).resolve(rename).unwrap();
        resolved.scheme_for("lm_head");
        // The entry below model.visual went with its tensors; that is no mistake.
        assert_eq!(resolved.unmatched(), ["model.language_model.layers.0.x", "model.gone"]);
        resolved.scheme_for("language_model.model.layers.0.x");
        assert_eq!(resolved.unmatched(), ["model.gone"]);
    }

    #[test]
    fn two_entries_for_one_module_must_agree() {
        let both = settings(r#"{"bits": 4, "a.x": {"bits": 8}, "b.x": {"bits": 6}, "c.x": {"bits": 6}}"#);
        let merged = |path: &str| Some(path.replace("c.", "b."));
        assert!(both.resolve(merged).is_ok());
        let merged = |path: &str| Some(path.replace("a.", "b."));
        assert!(matches!(both.resolve(merged), Err(Error::QuantCollision { path, .. }) if path == "b.x"));
    }

    #[test]
    fn what_an_entry_lacks_comes_from_its_mode_as_in_mlx() {
        let read =
            settings(r#"{"group_size": 32, "bits": 8, "x": {"bits": 8}, "y": {"mode": "nvfp4"}, "z": true}"#);
        let exceptions: Vec<_> = read.exceptions().collect();
        let nvfp4 = QuantScheme::new(QuantMode::Nvfp4, 4, 16).unwrap();
        assert_eq!(exceptions, [("x", Some(affine(8, 64))), ("y", Some(nvfp4)), ("z", Some(affine(8, 32)))]);
    }

    #[test]
    fn settings_are_found_wherever_converters_put_them() {
        let four = Some(affine(4, 32));
        let block = r#"{"group_size": 32, "bits": 4}"#;
        for place in [
            format!("\"quantization\": {block}"),
            format!("\"quantization_config\": {block}"),
            format!("\"text_config\": {{\"quantization_config\": {block}}}"),
            format!("\"quantization\": {block}, \"quantization_config\": {{\"quant_method\": \"gptq\"}}"),
        ] {
            assert_eq!(read(&place).unwrap().map(|found| found.default_scheme()), four, "{place}");
        }
        assert_eq!(read("\"quantization\": null").unwrap(), None);
        let mxfp4 = read("\"quantization_config\": {\"quant_method\": \"mxfp4\"}").unwrap().unwrap();
        assert_eq!(mxfp4.default_scheme(), QuantScheme::new(QuantMode::Mxfp4, 4, 32).unwrap());
    }

    #[test]
    fn formats_and_numbers_that_no_kernel_holds_are_refused() {
        let gptq = read("\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}");
        assert!(matches!(gptq, Err(Error::QuantMethod { method, .. }) if method == "gptq"));
        for block in [r#"{"bits": 7}"#, r#"{"group_size": 48}"#, r#"{"bits": 4, "x": {"bits": 0}}"#] {
            let result = read(&format!("\"quantization\": {block}"));
            assert!(matches!(result, Err(Error::QuantScheme { .. })), "{block}: {result:?}");
        }
        for block in
            ["4", "[]", r#"{"bits": "4"}"#, r#"{"bits": -4}"#, r#"{"mode": "nf4"}"#, r#"{"mode": 4}"#]
        {
            let result = read(&format!("\"quantization\": {block}"));
            assert!(matches!(result, Err(Error::Config { .. })), "{block}: {result:?}");
        }
    }

    #[test]
    fn a_scheme_is_inferred_from_the_shapes_it_leads_to() {
        for (mode, bits, group, scales) in [
            (QuantMode::Affine, 3, 64, Dtype::Bfloat16),
            (QuantMode::Affine, 6, 32, Dtype::Float32),
            (QuantMode::Mxfp4, 4, 32, Dtype::Uint8),
            (QuantMode::Mxfp8, 8, 32, Dtype::Uint8),
            (QuantMode::Nvfp4, 4, 16, Dtype::Uint8),
        ] {
            let scheme = QuantScheme::new(mode, bits, group).unwrap();
            let (columns, groups) = (384, 384 / group as usize);
            let packed = scheme.packed_columns(columns).unwrap();
            assert_eq!(infer_scheme(columns, packed, groups, scales), Some(scheme));
            assert_eq!(infer_scheme(columns, packed + 1, groups, scales), None);
            assert_eq!(infer_scheme(columns, packed, groups + 1, scales), None);
        }
        assert_eq!(infer_scheme(0, 0, 0, Dtype::Float16), None);
        assert_eq!(infer_scheme(384, usize::MAX, 6, Dtype::Float16), None);
    }
}

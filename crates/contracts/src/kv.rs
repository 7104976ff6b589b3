//! How keys and values are kept: number format, from which length on, and in which pieces of memory.

use crate::{QuantError, QuantScheme};
use serde::{Deserialize, Serialize};

/// Number format and layout of all layers' keys and values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvScheme {
    /// Number format.
    pub format: KvFormat,
    /// A sequence keeps its activations' type until it holds so many tokens at the end of a forward pass, and is converted
    /// then. With 0 the first pass already is the one after which it is converted (mlx-lm's `quantized_kv_start`).
    pub start: u32,
    /// Positions of one page, for full-attention layers kept in pages that sequences can share; `None` keeps each sequence
    /// in one piece.
    pub page: Option<u32>,
}

/// Number format of keys and values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum KvFormat {
    /// The activations' type.
    #[default]
    Plain,
    /// One affine format for every layer.
    Affine(QuantScheme),
    /// Affine formats of single layers; the others keep the activations' type.
    Layers(Vec<LayerKv>),
    /// Rotated and rounded to a codebook (TurboQuant, arXiv 2504.19874).
    Turbo {
        /// Bits of a key's value: 1 to 4.
        keys: u8,
        /// Bits of a value's value: 1 to 4.
        values: u8,
    },
}

/// The affine format of one layer: an entry of `kv_config.json` as mlx-optiq writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "LayerKvEntry", into = "LayerKvEntry")]
pub struct LayerKv {
    /// Index of the layer.
    pub layer: usize,
    /// Its format.
    pub scheme: QuantScheme,
}

/// The entry as it is written; a missing group size means 64.
#[derive(Serialize, Deserialize)]
struct LayerKvEntry {
    layer_idx: usize,
    bits: u32,
    #[serde(default = "default_group")]
    group_size: u32,
}

const fn default_group() -> u32 {
    64
}

impl TryFrom<LayerKvEntry> for LayerKv {
    type Error = QuantError;

    fn try_from(entry: LayerKvEntry) -> Result<Self, QuantError> {
        Ok(Self { layer: entry.layer_idx, scheme: QuantScheme::affine(entry.bits, entry.group_size)? })
    }
}

impl From<LayerKv> for LayerKvEntry {
    fn from(entry: LayerKv) -> Self {
        let (bits, group_size) = (entry.scheme.bits(), entry.scheme.group_size());
        Self { layer_idx: entry.layer, bits, group_size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_config_json_of_mlx_optiq_is_read() {
        let text = r#"[{"layer_idx": 3, "bits": 4, "group_size": 32}, {"layer_idx": 0, "bits": 8}]"#;
        let layers: Vec<LayerKv> = serde_json::from_str(text).unwrap();
        let expected = [(3, 4, 32), (0, 8, 64)];
        let found = layers.iter().map(|l| (l.layer, l.scheme.bits(), l.scheme.group_size()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn kv_config_json_with_bits_that_do_not_exist_is_refused() {
        let error = serde_json::from_str::<Vec<LayerKv>>(r#"[{"layer_idx": 0, "bits": 7}]"#).unwrap_err();
        assert!(error.to_string().contains("affine quantization has no 7-bit form"), "{error}");
    }

    #[test]
    fn scheme_survives_json() {
        let scheme = KvScheme {
            format: KvFormat::Affine(QuantScheme::affine(8, 32).unwrap()),
            start: 128,
            page: None,
        };
        let text = serde_json::to_string(&scheme).unwrap();
        assert_eq!(serde_json::from_str::<KvScheme>(&text).unwrap(), scheme);
    }
}

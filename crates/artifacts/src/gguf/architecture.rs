//! The architectures that are converted: where each GGUF tensor goes in a Hugging Face model, and what it must
//! look like.
//!
//! Names and layout changes are facts of llama.cpp's converter (its `conversion` package, 2026): rows of q and k are
//! permuted for interleaved rope in `llama` alone, and the gemma architectures store norm weights plus one.

use super::error::GgufError;
use super::metadata::{Metadata, require};
use super::reader::{Gguf, Tensor};

/// A supported `general.architecture`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Gemma,
    Gemma2,
    Gemma3,
}

impl Architecture {
    const ALL: [Self; 6] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Gemma, Self::Gemma2, Self::Gemma3];

    /// The architecture that the file names.
    pub(super) fn of(metadata: &Metadata<'_>) -> Result<Self, GgufError> {
        let key = "general.architecture";
        let found = require(key, metadata.string(key)?)?;
        Self::ALL.into_iter().find(|known| known.name() == found).ok_or_else(|| GgufError::Architecture {
            found: found.to_owned(),
            supported: Self::ALL.map(Self::name).join(", "),
        })
    }

    /// Value of `general.architecture`, the prefix of the architecture's keys.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma => "gemma",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
        }
    }

    pub(super) const fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3)
    }
}

/// Sizes of a model, from its metadata and, for the vocabulary, from its embedding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) vocabulary: usize,
    pub(super) context: usize,
}

impl Sizes {
    pub(super) fn read(architecture: Architecture, gguf: &Gguf<'_>) -> Result<Self, GgufError> {
        if let Some(count) = gguf.metadata.u32("split.count")?.filter(|&count| count > 1) {
            return Err(GgufError::Split { count });
        }
        let size = |name: &str, most: u32| -> Result<Option<usize>, GgufError> {
            let key = format!("{}.{name}", architecture.name());
            match gguf.metadata.u32(&key)? {
                Some(found) if found == 0 || found > most => Err(GgufError::KeyValue {
                    key,
                    found: found.to_string(),
                    requirement: format!("from 1 to {most}"),
                }),
                found => Ok(found.map(|found| found as usize)),
            }
        };
        let needed =
            |name: &str, most: u32| require(&format!("{}.{name}", architecture.name()), size(name, most)?);
        let hidden = needed("embedding_length", 1 << 20)?;
        let heads = needed("attention.head_count", 1 << 16)?;
        let rotated = size("rope.dimension_count", 1 << 16)?;
        let head_dim = size("attention.key_length", 1 << 16)?.or(rotated).unwrap_or(hidden / heads);
        for (name, other) in [
            ("rope.dimension_count", rotated),
            ("attention.value_length", size("attention.value_length", 1 << 16)?),
        ] {
            if let Some(found) = other.filter(|&found| found != head_dim) {
                return Err(GgufError::KeyValue {
                    key: format!("{}.{name}", architecture.name()),
                    found: found.to_string(),
                    requirement: format!("the head size {head_dim}; other values are not supported"),
                });
            }
        }
        let kv_heads = size("attention.head_count_kv", 1 << 16)?.unwrap_or(heads);
        let refuse = |name: &str, found: usize, requirement: String| {
            let key = format!("{}.{name}", architecture.name());
            Err(GgufError::KeyValue { key, found: found.to_string(), requirement })
        };
        if head_dim < 2 || !head_dim.is_multiple_of(2) {
            return refuse("attention.key_length", head_dim, "an even number of at least 2".to_owned());
        }
        if !heads.is_multiple_of(kv_heads) {
            return refuse("attention.head_count_kv", kv_heads, format!("a divisor of the {heads} heads"));
        }
        if let Some(found) =
            gguf.metadata.u32(&format!("{}.expert_count", architecture.name()))?.filter(|&n| n > 0)
        {
            return refuse(
                "expert_count",
                found as usize,
                "0; mixtures of experts are not supported".to_owned(),
            );
        }
        let embedding = gguf.tensor("token_embd.weight").ok_or_else(|| missing("token_embd.weight"))?;
        Ok(Self {
            layers: needed("block_count", 1 << 12)?,
            hidden,
            intermediate: needed("feed_forward_length", 1 << 24)?,
            heads,
            kv_heads,
            head_dim,
            vocabulary: embedding.rows(),
            context: needed("context_length", 1 << 30)?,
        })
    }

    const fn of(&self, axis: Axis) -> usize {
        match axis {
            Axis::Hidden => self.hidden,
            Axis::Query => self.heads * self.head_dim,
            Axis::KeyValue => self.kv_heads * self.head_dim,
            Axis::Head => self.head_dim,
            Axis::Intermediate => self.intermediate,
            Axis::Vocabulary => self.vocabulary,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Axis {
    Hidden,
    Query,
    KeyValue,
    Head,
    Intermediate,
    Vocabulary,
}

/// What changes between the file's tensor and Hugging Face's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// Rows of each of `heads` heads interleave the halves that rope rotates against each other.
    InterleavedRows {
        /// Heads along the rows.
        heads: usize,
    },
    /// The values are one too large.
    PlusOne,
}

impl Change {
    /// The file's row that holds row `row` of `rows`.
    ///
    /// Stored row `2i + j` of a head is row `i + j * head_dim / 2` of the model (`LlamaModel.permute` of llama.cpp).
    pub(super) fn source_row(self, row: usize, rows: usize) -> usize {
        let Self::InterleavedRows { heads } = self else { return row };
        let head_dim = rows / heads;
        let (head, within) = (row / head_dim, row % head_dim);
        let (half, index) = (within / (head_dim / 2), within % (head_dim / 2));
        head * head_dim + 2 * index + half
    }
}

/// A tensor of the file, its Hugging Face name and what to do with it.
#[derive(Debug, Clone)]
pub(super) struct Placed<'a, 'g> {
    pub(super) tensor: &'g Tensor<'a>,
    pub(super) name: String,
    pub(super) change: Change,
}

/// Gives every tensor of the file its place, in the model's order, and proves that none is missing, unknown or of
/// another shape. `rope_freqs.weight` has no place: it becomes a setting.
pub(super) fn place<'a, 'g>(
    architecture: Architecture,
    sizes: &Sizes,
    gguf: &'g Gguf<'a>,
) -> Result<Vec<Placed<'a, 'g>>, GgufError> {
    let mut placed = Vec::new();
    let mut put = |from: String, to: String, slot: &Slot| -> Result<(), GgufError> {
        let Some(tensor) = gguf.tensor(&from) else {
            return if slot.required { Err(missing(&from)) } else { Ok(()) };
        };
        let expected: Vec<usize> = slot.axes.iter().map(|&axis| sizes.of(axis)).collect();
        if tensor.shape() != expected {
            return Err(GgufError::TensorShape { tensor: from, found: tensor.shape().to_vec(), expected });
        }
        if expected.len() == 1 && tensor.kind.block().values > 1 {
            return Err(GgufError::QuantizedVector { tensor: from, kind: tensor.kind.name() });
        }
        placed.push(Placed { tensor, name: to, change: change(architecture, sizes, slot) });
        Ok(())
    };
    for slot in &OUTSIDE_LAYERS {
        put(slot.gguf.to_owned(), slot.huggingface.to_owned(), slot)?;
    }
    let slots = layer_slots(architecture, gguf);
    for layer in 0..sizes.layers {
        for slot in &slots {
            let to = format!("model.layers.{layer}.{}", slot.huggingface);
            put(format!("blk.{layer}.{}", slot.gguf), to, slot)?;
        }
    }
    let known: std::collections::HashSet<&str> = placed.iter().map(|placed| placed.tensor.name).collect();
    match gguf.tensors().find(|tensor| !known.contains(tensor.name) && tensor.name != ROPE_FACTORS) {
        None => Ok(placed),
        Some(tensor) => Err(GgufError::UnknownTensor {
            tensor: tensor.name.to_owned(),
            architecture: architecture.name(),
            layers: sizes.layers,
        }),
    }
}

/// The tensor that holds one factor for each rotated pair.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Biases that a llama has all or none of, as its `attention_bias` says.
pub(super) const ATTENTION_BIASES: &[&str] = &["attn_q", "attn_k", "attn_v", "attn_output"];

/// Biases that a llama has all or none of, as its `mlp_bias` says.
pub(super) const MLP_BIASES: &[&str] = &["ffn_gate", "ffn_up", "ffn_down"];

/// Whether the first layer has one of these biases.
pub(super) fn has_bias(gguf: &Gguf<'_>, names: &[&str]) -> bool {
    names.iter().any(|name| gguf.tensor(&format!("blk.0.{name}.bias")).is_some())
}

/// A place in the model: names, shape, whether a file may lack it.
struct Slot {
    gguf: &'static str,
    huggingface: &'static str,
    axes: &'static [Axis],
    required: bool,
}

const fn slot(gguf: &'static str, huggingface: &'static str, axes: &'static [Axis]) -> Slot {
    Slot { gguf, huggingface, axes, required: true }
}

const fn optional(gguf: &'static str, huggingface: &'static str, axes: &'static [Axis]) -> Slot {
    Slot { gguf, huggingface, axes, required: false }
}

const OUTSIDE_LAYERS: [Slot; 3] = [
    slot("token_embd.weight", "model.embed_tokens.weight", &[Axis::Vocabulary, Axis::Hidden]),
    slot("output_norm.weight", "model.norm.weight", &[Axis::Hidden]),
    optional("output.weight", "lm_head.weight", &[Axis::Vocabulary, Axis::Hidden]),
];

fn layer_slots(architecture: Architecture, gguf: &Gguf<'_>) -> Vec<Slot> {
    use Architecture::{Gemma2, Gemma3, Llama, Qwen2, Qwen3};
    use Axis::{Head, Hidden, Intermediate, KeyValue, Query};
    let mut slots = vec![
        slot("attn_norm.weight", "input_layernorm.weight", &[Hidden]),
        slot("attn_q.weight", "self_attn.q_proj.weight", &[Query, Hidden]),
        slot("attn_k.weight", "self_attn.k_proj.weight", &[KeyValue, Hidden]),
        slot("attn_v.weight", "self_attn.v_proj.weight", &[KeyValue, Hidden]),
        slot("attn_output.weight", "self_attn.o_proj.weight", &[Hidden, Query]),
        slot("ffn_gate.weight", "mlp.gate_proj.weight", &[Intermediate, Hidden]),
        slot("ffn_up.weight", "mlp.up_proj.weight", &[Intermediate, Hidden]),
        slot("ffn_down.weight", "mlp.down_proj.weight", &[Hidden, Intermediate]),
    ];
    let attention_biases: [(_, _, &[Axis]); 3] = [
        ("attn_q.bias", "self_attn.q_proj.bias", &[Query]),
        ("attn_k.bias", "self_attn.k_proj.bias", &[KeyValue]),
        ("attn_v.bias", "self_attn.v_proj.bias", &[KeyValue]),
    ];
    match architecture {
        Llama => {
            if has_bias(gguf, ATTENTION_BIASES) {
                slots.extend(attention_biases.map(|(from, to, axes)| slot(from, to, axes)));
                slots.push(slot("attn_output.bias", "self_attn.o_proj.bias", &[Hidden]));
            }
            if has_bias(gguf, MLP_BIASES) {
                slots.push(slot("ffn_gate.bias", "mlp.gate_proj.bias", &[Intermediate]));
                slots.push(slot("ffn_up.bias", "mlp.up_proj.bias", &[Intermediate]));
                slots.push(slot("ffn_down.bias", "mlp.down_proj.bias", &[Hidden]));
            }
        }
        Qwen2 => slots.extend(attention_biases.map(|(from, to, axes)| slot(from, to, axes))),
        _ => {}
    }
    if matches!(architecture, Qwen3 | Gemma3) {
        slots.push(slot("attn_q_norm.weight", "self_attn.q_norm.weight", &[Head]));
        slots.push(slot("attn_k_norm.weight", "self_attn.k_norm.weight", &[Head]));
    }
    if matches!(architecture, Gemma2 | Gemma3) {
        slots.push(slot("post_attention_norm.weight", "post_attention_layernorm.weight", &[Hidden]));
        slots.push(slot("ffn_norm.weight", "pre_feedforward_layernorm.weight", &[Hidden]));
        slots.push(slot("post_ffw_norm.weight", "post_feedforward_layernorm.weight", &[Hidden]));
    } else {
        slots.push(slot("ffn_norm.weight", "post_attention_layernorm.weight", &[Hidden]));
    }
    slots
}

fn change(architecture: Architecture, sizes: &Sizes, slot: &Slot) -> Change {
    match slot.gguf {
        name if architecture.is_gemma() && name.ends_with("norm.weight") => Change::PlusOne,
        "attn_q.weight" | "attn_q.bias" if architecture == Architecture::Llama => {
            Change::InterleavedRows { heads: sizes.heads }
        }
        "attn_k.weight" | "attn_k.bias" if architecture == Architecture::Llama => {
            Change::InterleavedRows { heads: sizes.kv_heads }
        }
        _ => Change::None,
    }
}

fn missing(tensor: &str) -> GgufError {
    GgufError::MissingTensor { tensor: tensor.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_are_those_of_llama_cpps_permutation() {
        // reshape(heads, 2, half, columns).swapaxes(1, 2) of rows 0..12 with 2 heads of 6.
        let stored = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11];
        let change = Change::InterleavedRows { heads: 2 };
        let restored: Vec<usize> = (0..12).map(|row| stored[change.source_row(row, 12)]).collect();
        assert_eq!(restored, (0..12).collect::<Vec<_>>());
    }
}

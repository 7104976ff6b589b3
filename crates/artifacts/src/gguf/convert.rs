//! Converts a GGUF file to a model folder in Hugging Face layout: configuration, weights, tokenizer.
//!
//! Weights that MLX affine groups hold exactly stay exact ([`super::affine`]); floats keep their type; all others
//! are dequantized to bfloat16. One tensor is in memory at a time.

use super::affine::{self, GROUP_SIZE, Groups};
use super::architecture::{Architecture, Change, Placed, Sizes, place};
use super::config::config;
use super::dequant::dequantize;
use super::reader::{Gguf, Tensor};
use super::tokenizer::{SpecialIds, TokenizerFiles};
use super::types::TensorType;
use crate::error::{Error, Result};
use crate::mmap::Mapped;
use crate::progress::{Progress, Stage};
use crate::write::{TensorSpec, WeightsWriter, write_json};
use half::bf16;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use strata_contracts::Dtype;

/// How a GGUF file is converted.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ConvertOptions {}

/// What a conversion wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Value of `general.architecture`.
    pub architecture: &'static str,
    /// Tensors of the GGUF file, counted by type name.
    pub tensors: BTreeMap<&'static str, usize>,
    /// Names of the tensors that were dequantized, because MLX has no exact form of their type.
    pub dequantized: Vec<String>,
}

/// Largest weight file, in bytes; more weights become shards.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Converts a GGUF file to a folder in Hugging Face layout. `out` exists and holds no weights.
///
/// # Errors
/// [`Error::Gguf`] when the file is not sound or holds what can't be converted, [`Error::Io`] on the way.
pub fn convert(
    gguf: &Path,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary> {
    let ConvertOptions {} = options;
    let bytes = Mapped::open(gguf)?;
    let refuse = |problem| Error::Gguf { path: gguf.to_owned(), problem };
    let file = Gguf::parse(&bytes).map_err(refuse)?;
    let architecture = Architecture::of(&file.metadata).map_err(refuse)?;
    let sizes = Sizes::read(architecture, &file).map_err(refuse)?;
    let placed = place(architecture, &sizes, &file).map_err(refuse)?;
    let mut config = config(architecture, &sizes, &file).map_err(refuse)?;
    let tokens = TokenizerFiles::new(&file.metadata, sizes.vocabulary).map_err(refuse)?;

    let plan: Vec<Planned<'_, '_>> = placed.into_iter().map(Planned::new).collect();
    config.insert("torch_dtype".into(), json!(activation_type(&plan).name()));
    add_quantization(&plan, &mut config);
    add_token_ids(&tokens.ids, &mut config);

    write_weights(out, &plan, progress)?;
    write_json(&out.join("tokenizer.json"), &tokens.tokenizer)?;
    write_json(&out.join("tokenizer_config.json"), &tokens.config)?;
    let mut generation = Map::new();
    add_token_ids(&tokens.ids, &mut generation);
    write_json(&out.join("generation_config.json"), &generation)?;
    write_json(&out.join("config.json"), &config)?;
    Ok(summary(architecture, &plan))
}

/// A tensor and the form in which it is stored.
struct Planned<'a, 'g> {
    placed: Placed<'a, 'g>,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// MLX affine groups of 32 with this many bits.
    Affine(u32),
    /// Plain values.
    Dense(Dtype),
}

impl<'a, 'g> Planned<'a, 'g> {
    fn new(placed: Placed<'a, 'g>) -> Self {
        let tensor = placed.tensor;
        let form = match (tensor.kind, affine::bits(tensor)) {
            (TensorType::F32, _) => Form::Dense(Dtype::Float32),
            (TensorType::F16, _) => Form::Dense(Dtype::Float16),
            (_, Some(bits)) if tensor.shape().len() == 2 => Form::Affine(bits),
            _ => Form::Dense(Dtype::Bfloat16),
        };
        Self { placed, form }
    }

    fn is_dequantized(&self) -> bool {
        self.form == Form::Dense(Dtype::Bfloat16) && self.placed.tensor.kind != TensorType::BF16
    }

    /// Name of the module that owns the tensor.
    fn module(&self) -> &str {
        self.placed.name.strip_suffix(".weight").unwrap_or(&self.placed.name)
    }

    fn specs(&self) -> Vec<TensorSpec> {
        let tensor = self.placed.tensor;
        let spec = |name: String, dtype, shape| TensorSpec { name, dtype, shape };
        match self.form {
            Form::Dense(dtype) => vec![spec(self.placed.name.clone(), dtype, tensor.shape().to_vec())],
            Form::Affine(bits) => {
                let (rows, columns) = (tensor.rows(), tensor.columns());
                let groups = columns / GROUP_SIZE as usize;
                vec![
                    spec(self.placed.name.clone(), Dtype::Uint32, vec![rows, groups * bits as usize]),
                    spec(format!("{}.scales", self.module()), Dtype::Float16, vec![rows, groups]),
                    spec(format!("{}.biases", self.module()), Dtype::Float16, vec![rows, groups]),
                ]
            }
        }
    }

    /// The bytes of [`Planned::specs`], in their order.
    fn bytes(&self) -> Vec<Vec<u8>> {
        match self.form {
            Form::Affine(_) => {
                let mut groups = Groups::default();
                for_each_row(self.placed.tensor, self.placed.change, |kind, row| groups.push_row(kind, row));
                vec![groups.weight, groups.scales, groups.biases]
            }
            Form::Dense(dtype) => vec![self.dense(dtype)],
        }
    }

    fn dense(&self, dtype: Dtype) -> Vec<u8> {
        let Placed { tensor, change, .. } = self.placed;
        let mut out = Vec::with_capacity(tensor.rows() * tensor.columns() * dtype.size());
        let mut values = Vec::new();
        for_each_row(tensor, change, |kind, row| {
            values.clear();
            dequantize(kind, row, &mut values);
            for &stored in &values {
                let value = if change == Change::PlusOne { stored - 1.0 } else { stored };
                match dtype {
                    Dtype::Float32 => out.extend(value.to_le_bytes()),
                    Dtype::Float16 => out.extend(half::f16::from_f32(value).to_le_bytes()),
                    _ => out.extend(bf16::from_f32(value).to_le_bytes()),
                }
            }
        });
        out
    }
}

/// Calls `each` with the stored rows in the model's order. A vector whose rows change order has rows of one value.
fn for_each_row<'a>(tensor: &Tensor<'a>, change: Change, mut each: impl FnMut(TensorType, &'a [u8])) {
    let vector = tensor.shape().len() == 1;
    let block = tensor.kind.block();
    let rows = if vector && block.values == 1 { tensor.columns() } else { tensor.rows() };
    let bytes = tensor.data.len() / rows;
    for row in 0..rows {
        let start = change.source_row(row, rows) * bytes;
        each(tensor.kind, &tensor.data[start..start + bytes]);
    }
}

/// The type that activations take unless the user asks for another: bfloat16 where any matrix has it, otherwise
/// the type of the scales or of the embedding table.
fn activation_type(plan: &[Planned<'_, '_>]) -> Dtype {
    let matrices = plan.iter().filter(|planned| planned.placed.tensor.shape().len() == 2);
    let types: Vec<Dtype> = matrices
        .map(|planned| match planned.form {
            Form::Affine(_) => Dtype::Float16,
            Form::Dense(dtype) => dtype,
        })
        .collect();
    [Dtype::Bfloat16, Dtype::Float16]
        .into_iter()
        .find(|dtype| types.contains(dtype))
        .unwrap_or(Dtype::Float32)
}

/// The `quantization` block as mlx-lm writes it: the most frequent width, and an entry for each module that differs.
fn add_quantization(plan: &[Planned<'_, '_>], config: &mut Map<String, Value>) {
    let affine = || {
        plan.iter().filter_map(|planned| match planned.form {
            Form::Affine(bits) => Some((planned.module(), bits)),
            Form::Dense(_) => None,
        })
    };
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for (_, bits) in affine() {
        *counts.entry(bits).or_default() += 1;
    }
    let Some((&usual, _)) = counts.iter().max_by_key(|&(_, count)| count) else { return };
    let settings = |bits: u32| json!({ "group_size": GROUP_SIZE, "bits": bits, "mode": "affine" });
    let mut block = settings(usual);
    for (module, bits) in affine().filter(|&(_, bits)| bits != usual) {
        block[module] = settings(bits);
    }
    config.insert("quantization".into(), block.clone());
    config.insert("quantization_config".into(), block);
}

fn add_token_ids(ids: &SpecialIds, config: &mut Map<String, Value>) {
    let end = match ids.end.as_slice() {
        [] => None,
        [one] => Some(json!(one)),
        several => Some(json!(several)),
    };
    let entries = [
        ("bos_token_id", ids.bos.map(|id| json!(id))),
        ("eos_token_id", end),
        ("pad_token_id", ids.pad.map(|id| json!(id))),
    ];
    config.extend(entries.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
}

fn write_weights(out: &Path, plan: &[Planned<'_, '_>], progress: &mut dyn FnMut(Progress)) -> Result<()> {
    let total = plan.iter().map(|planned| planned.placed.tensor.data.len() as u64).sum();
    let mut done = 0;
    let mut report = |done| progress(Progress { stage: Stage::Convert, done, total: Some(total) });
    report(0);
    let specs = plan.iter().flat_map(Planned::specs).collect();
    let mut writer = WeightsWriter::create(out, specs, SHARD_BYTES)?;
    for planned in plan {
        for bytes in planned.bytes() {
            writer.append(&bytes)?;
        }
        done += planned.placed.tensor.data.len() as u64;
        report(done);
    }
    writer.finish()
}

fn summary(architecture: Architecture, plan: &[Planned<'_, '_>]) -> Summary {
    let mut tensors = BTreeMap::new();
    for planned in plan {
        *tensors.entry(planned.placed.tensor.kind.name()).or_default() += 1;
    }
    let dequantized = plan.iter().filter(|planned| planned.is_dequantized());
    Summary {
        architecture: architecture.name(),
        tensors,
        dequantized: dequantized.map(|planned| planned.placed.name.clone()).collect(),
    }
}

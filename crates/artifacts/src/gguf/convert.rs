//! Converts a GGUF file to a model folder in Hugging Face layout: configuration, weights, tokenizer.
//!
//! Weights that MLX affine groups hold exactly stay exact ([`super::affine`]); floats keep their type; all others
//! are dequantized to bfloat16, or packed again as the caller asks for it: in the nearest groups ([`super::nearest`])
//! or in another scheme. One tensor is in memory at a time.

use super::affine::{self, GROUP_SIZE, Groups};
use super::architecture::{Architecture, Change, Placed, Sizes, place};
use super::config::config;
use super::dequant::dequantize;
use super::nearest;
use super::reader::{Gguf, Tensor};
use super::tokenizer::{SpecialIds, TokenizerFiles};
use super::types::TensorType;
use crate::error::{Error, Result};
use crate::mmap::Mapped;
use crate::progress::{Progress, Stage};
use crate::quantize::{QuantRule, QuantizeError, group_size_beside, packed_specs, quantize, settings};
use crate::write::{MAX_SHARD_BYTES, TensorSpec, WeightsWriter, write_json};
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use strata_contracts::{Dtype, QuantScheme};

/// How a GGUF file is converted.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// What becomes of matrices that MLX affine groups don't hold exactly.
    pub inexact: Inexact,
    /// Settings for modules by their paths, which come before `inexact` and before exactness. The first rule that
    /// fits decides. Rows that don't divide into a rule's groups are left as they would be exactly, or plain.
    pub layers: Vec<QuantRule>,
}

/// What becomes of matrices that MLX affine groups don't hold exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Inexact {
    /// Floats keep their type, quantized types become bfloat16.
    #[default]
    Plain,
    /// Floats keep their type, quantized types become the MLX affine groups nearest to their own, or bfloat16 where
    /// scales are out of float16's range.
    Nearest,
    /// All are quantized, floats too. Rows that don't divide into groups stay plain.
    Quantized(QuantScheme),
}

/// What a conversion wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Value of `general.architecture`.
    pub architecture: &'static str,
    /// Tensors of the GGUF file, counted by type name.
    pub tensors: BTreeMap<&'static str, usize>,
    /// Names of the tensors that were dequantized.
    pub dequantized: Vec<String>,
    /// Names of the tensors that have the MLX groups nearest to their own.
    pub nearest: Vec<String>,
    /// Names of the tensors that were quantized in a scheme that the caller named.
    pub quantized: Vec<String>,
}

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
    let bytes = Mapped::open(gguf)?;
    let refuse = |problem| Error::Gguf { path: gguf.to_owned(), problem };
    let file = Gguf::parse(&bytes).map_err(refuse)?;
    let architecture = Architecture::of(&file.metadata).map_err(refuse)?;
    let sizes = Sizes::read(architecture, &file).map_err(refuse)?;
    let placed = place(architecture, &sizes, &file).map_err(refuse)?;
    let mut config = config(architecture, &sizes, &file).map_err(refuse)?;
    let tokens = TokenizerFiles::new(&file.metadata, sizes.vocabulary).map_err(refuse)?;

    let plan: Vec<Planned<'_, '_>> = placed.into_iter().map(|placed| Planned::new(placed, options)).collect();
    if let Some(pattern) = QuantRule::idle_pattern(&options.layers, &plan.iter().map(Planned::module)) {
        let problem = QuantizeError::IdleRule { pattern: pattern.to_owned() };
        return Err(Error::Quantize { path: gguf.to_owned(), problem });
    }
    config.insert("torch_dtype".into(), json!(activation_type(architecture, &plan).name()));
    add_quantization(&plan, &mut config);
    add_token_ids(&tokens.ids, &mut config);

    write_weights(out, &plan, gguf, progress)?;
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
    /// MLX affine groups of 32 with this many bits, exactly what the file holds.
    Exact(u32),
    /// MLX affine groups of 32 with this many bits, the nearest to what the file holds.
    Nearest(u32),
    /// Quantized from values of this type.
    Quantized(QuantScheme, Dtype),
    /// Plain values.
    Dense(Dtype),
}

impl<'a, 'g> Planned<'a, 'g> {
    fn new(placed: Placed<'a, 'g>, options: &ConvertOptions) -> Self {
        let tensor = placed.tensor;
        let matrix = tensor.shape().len() == 2;
        let fits = |scheme: &QuantScheme| matrix && scheme.packed_columns(tensor.columns()).is_ok();
        let exact = affine::bits(tensor).filter(|_| matrix);
        let rule = QuantRule::find(&options.layers, module(&placed));
        let form = match (rule.map(|rule| rule.scheme(options.inexact.group_size())), exact, options.inexact)
        {
            (Some(Some(scheme)), ..) | (None, None, Inexact::Quantized(scheme)) if fits(&scheme) => {
                quantized(scheme, tensor.kind)
            }
            (Some(None), ..) => plain(tensor.kind),
            (_, Some(bits), _) => Form::Exact(bits),
            (None, None, Inexact::Nearest) if matrix => {
                nearest::bits(tensor).map_or_else(|| plain(tensor.kind), Form::Nearest)
            }
            _ => plain(tensor.kind),
        };
        Self { placed, form }
    }

    fn is_dequantized(&self) -> bool {
        self.form == Form::Dense(Dtype::Bfloat16) && self.placed.tensor.kind != TensorType::BF16
    }

    /// The scheme that the configuration names for the tensor's module.
    fn scheme(&self) -> Option<QuantScheme> {
        match self.form {
            Form::Exact(bits) | Form::Nearest(bits) => QuantScheme::affine(bits, GROUP_SIZE).ok(),
            Form::Quantized(scheme, _) => Some(scheme),
            Form::Dense(_) => None,
        }
    }

    /// Name of the module that owns the tensor.
    fn module(&self) -> &str {
        module(&self.placed)
    }

    fn specs(&self) -> Vec<TensorSpec> {
        let tensor = self.placed.tensor;
        match (self.form, self.scheme()) {
            (Form::Quantized(_, dtype), Some(scheme)) => {
                packed_specs(self.module(), tensor.shape(), scheme, dtype)
            }
            (Form::Exact(_) | Form::Nearest(_), Some(scheme)) => {
                packed_specs(self.module(), tensor.shape(), scheme, Dtype::Float16)
            }
            (Form::Dense(dtype), _) => {
                let (name, shape) = (self.placed.name.clone(), tensor.shape().to_vec());
                vec![TensorSpec { name, dtype, shape }]
            }
            (_, None) => Vec::new(),
        }
    }

    /// The bytes of [`Planned::specs`], in their order.
    fn bytes(&self) -> Result<Vec<Vec<u8>>, QuantizeError> {
        Ok(match self.form {
            Form::Exact(_) => self.groups(|kind, row, groups| groups.push_row(kind, row)),
            Form::Nearest(_) => self.groups(nearest::push_row),
            Form::Quantized(scheme, dtype) => quantize(scheme, dtype, &self.values(dtype))?.into_parts(),
            Form::Dense(dtype) => vec![self.dense(dtype)],
        })
    }

    /// The groups that `push_row` makes of each row.
    fn groups(&self, push_row: impl Fn(TensorType, &[u8], &mut Groups)) -> Vec<Vec<u8>> {
        let mut groups = Groups::default();
        for_each_row(self.placed.tensor, self.placed.change, |kind, row| push_row(kind, row, &mut groups));
        vec![groups.weight, groups.scales, groups.biases]
    }

    /// All values, rounded to `dtype`.
    fn values(&self, dtype: Dtype) -> Vec<f32> {
        let mut values = Vec::new();
        for_each_row(self.placed.tensor, self.placed.change, |kind, row| dequantize(kind, row, &mut values));
        for value in &mut values {
            *value = match dtype {
                Dtype::Float16 => f16::from_f32(*value).to_f32(),
                _ => bf16::from_f32(*value).to_f32(),
            };
        }
        values
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
                    Dtype::Float16 => out.extend(f16::from_f32(value).to_le_bytes()),
                    _ => out.extend(bf16::from_f32(value).to_le_bytes()),
                }
            }
        });
        out
    }
}

/// Scales are float16 as the exact groups' are; a bfloat16 model gives what quantizing it directly does.
fn quantized(scheme: QuantScheme, kind: TensorType) -> Form {
    let dtype = if kind == TensorType::BF16 { Dtype::Bfloat16 } else { Dtype::Float16 };
    Form::Quantized(scheme, dtype)
}

fn plain(kind: TensorType) -> Form {
    Form::Dense(match kind {
        TensorType::F32 => Dtype::Float32,
        TensorType::F16 => Dtype::Float16,
        _ => Dtype::Bfloat16,
    })
}

impl Inexact {
    /// Group size of rules that say bits alone.
    fn group_size(self) -> u32 {
        match self {
            Self::Quantized(scheme) => group_size_beside(scheme),
            Self::Plain | Self::Nearest => GROUP_SIZE,
        }
    }
}

fn module<'p>(placed: &'p Placed<'_, '_>) -> &'p str {
    placed.name.strip_suffix(".weight").unwrap_or(&placed.name)
}

/// Calls `each` with the stored rows in the model's order. A vector whose rows change order has rows of one value.
fn for_each_row<'a>(tensor: &Tensor<'a>, change: Change, mut each: impl FnMut(TensorType, &'a [u8])) {
    let rows = if tensor.shape().len() == 1 { tensor.columns() } else { tensor.rows() };
    let bytes = tensor.data.len() / rows;
    for row in 0..rows {
        let start = change.source_row(row, rows) * bytes;
        each(tensor.kind, &tensor.data[start..start + bytes]);
    }
}

/// The type that activations take unless the user asks for another: bfloat16 where any matrix or scale has it and for
/// gemma, whose activations leave the range of float16; otherwise the type of the scales or of the embedding table.
fn activation_type(architecture: Architecture, plan: &[Planned<'_, '_>]) -> Dtype {
    let matrices = plan.iter().filter(|planned| planned.placed.tensor.shape().len() == 2);
    let types: Vec<Dtype> = matrices
        .map(|planned| match planned.form {
            Form::Exact(_) | Form::Nearest(_) => Dtype::Float16,
            Form::Quantized(_, dtype) | Form::Dense(dtype) => dtype,
        })
        .collect();
    if architecture.is_gemma() {
        return Dtype::Bfloat16;
    }
    [Dtype::Bfloat16, Dtype::Float16]
        .into_iter()
        .find(|dtype| types.contains(dtype))
        .unwrap_or(Dtype::Float32)
}

/// The `quantization` block as mlx-lm writes it: the most frequent scheme, and an entry for each module that differs.
fn add_quantization(plan: &[Planned<'_, '_>], config: &mut Map<String, Value>) {
    let schemes = || plan.iter().filter_map(|planned| Some((planned.module(), planned.scheme()?)));
    let count = |scheme| schemes().filter(|&(_, other)| other == scheme).count();
    let Some((_, usual)) = schemes().max_by_key(|&(_, scheme)| (count(scheme), scheme.bits())) else {
        return;
    };
    let mut block = settings(usual);
    for (module, scheme) in schemes().filter(|&(_, scheme)| scheme != usual) {
        block[module] = settings(scheme);
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

fn write_weights(
    out: &Path,
    plan: &[Planned<'_, '_>],
    gguf: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let total = plan.iter().map(|planned| planned.placed.tensor.data.len() as u64).sum();
    let mut done = 0;
    let mut report = |done| progress(Progress { stage: Stage::Convert, done, total: Some(total) });
    report(0);
    let specs = plan.iter().flat_map(Planned::specs).collect();
    let mut writer = WeightsWriter::create(out, specs, MAX_SHARD_BYTES)?;
    for planned in plan {
        let parts = planned.bytes().map_err(|problem| {
            let problem = QuantizeError::of_tensor(&planned.placed.name, problem);
            Error::Quantize { path: gguf.to_owned(), problem }
        })?;
        for part in &parts {
            writer.append(part)?;
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
    Summary {
        architecture: architecture.name(),
        tensors,
        dequantized: names(plan, Planned::is_dequantized),
        nearest: names(plan, |planned| matches!(planned.form, Form::Nearest(_))),
        quantized: names(plan, |planned| matches!(planned.form, Form::Quantized(..))),
    }
}

fn names<'a, 'g>(plan: &[Planned<'a, 'g>], keep: impl Fn(&Planned<'a, 'g>) -> bool) -> Vec<String> {
    plan.iter().filter(|planned| keep(planned)).map(|planned| planned.placed.name.clone()).collect()
}

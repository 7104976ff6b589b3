//! Quantizes a model folder in Hugging Face layout, as `mlx_lm.convert` does: weights are cast to the model's type,
//! matrices whose rows divide into groups are packed, and the configuration says which.
//!
//! The new folder is complete once config.json shows in it, which is written last.

use super::QuantRules;
use super::error::QuantizeError;
use super::plan::{Planned, plan};
use crate::error::{Error, Result};
use crate::model_dir::ModelDir;
use crate::progress::{Progress, Stage};
use crate::weights::Weights;
use crate::write::{WeightsWriter, write_json};
use serde_json::{Map, Value, json};
use std::path::Path;
use strata_contracts::{Dtype, QuantScheme};

/// How a model folder is quantized.
#[derive(Debug, Clone)]
pub struct QuantizeOptions {
    /// The scheme of each module, by its path, such as `model.layers.0.mlp.up_proj`. Routers of experts
    /// (`*.mlp.gate`) for which no rule is written get 8 bits in groups of 64, as mlx-lm gives them.
    pub rules: QuantRules,
    /// Type of the weights before packing, and of those that stay plain; `None` takes the configuration's
    /// `torch_dtype` or `dtype`, or leaves each tensor in its own.
    pub dtype: Option<Dtype>,
    /// Most bytes of one weight file.
    pub max_shard_bytes: u64,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct QuantizeSummary {
    /// Modules whose weights were packed.
    pub quantized: usize,
    /// Tensors that stayed plain.
    pub plain: usize,
    /// Bits for each weight on average, scales and biases included.
    pub bits_per_weight: f64,
}

/// Writes the model in `from` to the existing folder `to`, quantized.
///
/// # Errors
/// [`Error::Quantize`] when the model is quantized already, a weight is not finite, nothing fits the scheme or a
/// rule fits nothing;
/// [`Error::AlreadyExists`] when `to` holds weights; what reading and writing models can give.
pub fn quantize_folder(
    from: &Path,
    to: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<QuantizeSummary> {
    let model = ModelDir::open(from)?;
    let refuse = |problem| Error::Quantize { path: from.to_owned(), problem };
    if model.quantization()?.is_some() {
        return Err(refuse(QuantizeError::AlreadyQuantized));
    }
    let weights = model.weights()?;
    let declared = options.dtype.or_else(|| declared_dtype(model.config().values()));
    let default = options.rules.default_scheme();
    let plan = plan(&weights, declared, &options.rules).map_err(refuse)?;
    if let Some(pattern) = options.rules.idle_pattern(&plan.iter().filter_map(Planned::module)) {
        return Err(refuse(QuantizeError::IdleRule { pattern: pattern.to_owned() }));
    }
    if plan.iter().all(|planned| planned.scheme.is_none()) {
        return Err(refuse(QuantizeError::NothingFits { group_size: default.group_size() }));
    }

    copy_other_files(from, to)?;
    write_weights(&weights, &plan, to, options.max_shard_bytes, from, progress)?;
    let mut config = model.config().values().clone();
    let block = quantization_block(&plan, default);
    config.insert("quantization".into(), block.clone());
    config.insert("quantization_config".into(), block);
    write_json(&to.join("config.json"), &config)?;
    Ok(summary(&plan))
}

/// The type that the configuration names, where it is one that weights are quantized from.
fn declared_dtype(config: &Map<String, Value>) -> Option<Dtype> {
    let text = config.get("text_config").and_then(Value::as_object);
    let named = [Some(config), text].into_iter().flatten();
    let mut named = named.flat_map(|section| [section.get("torch_dtype"), section.get("dtype")]).flatten();
    let name = named.next()?.as_str()?;
    [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16].into_iter().find(|dtype| dtype.name() == name)
}

/// Copies tokenizer, templates and the like: every file that is not weights or the configuration.
fn copy_other_files(from: &Path, to: &Path) -> Result<()> {
    let io = |source| Error::io("read", from, source);
    for entry in std::fs::read_dir(from).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name();
        let lower = name.to_string_lossy().to_lowercase();
        let weights =
            [".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf"];
        if lower == "config.json" || lower.starts_with('.') || weights.iter().any(|end| lower.ends_with(end))
        {
            continue;
        }
        let path = entry.path();
        if path.is_file() {
            std::fs::copy(&path, to.join(&name)).map_err(|source| Error::io("copy", &path, source))?;
        }
    }
    Ok(())
}

fn write_weights(
    weights: &Weights,
    plan: &[Planned<'_>],
    to: &Path,
    max_shard_bytes: u64,
    from: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let total = Some(weights.total_bytes());
    let mut done = 0;
    progress(Progress { stage: Stage::Convert, done, total });
    let specs = plan.iter().flat_map(Planned::specs).collect();
    let mut writer = WeightsWriter::create(to, specs, max_shard_bytes)?;
    for planned in plan {
        let bytes = planned.bytes(weights, |problem| Error::Quantize { path: from.to_owned(), problem })?;
        for part in &bytes {
            writer.append(part)?;
        }
        done += planned.source_bytes();
        progress(Progress { stage: Stage::Convert, done, total });
    }
    writer.finish()
}

/// The `quantization` block as mlx-lm writes it: the default, and an entry for each module that differs.
fn quantization_block(plan: &[Planned<'_>], default: QuantScheme) -> Value {
    let mut block = settings(default);
    for planned in plan {
        if let (Some(scheme), Some(path)) =
            (planned.scheme.filter(|&scheme| scheme != default), planned.module())
        {
            block[path] = settings(scheme);
        }
    }
    block
}

/// One scheme as mlx-lm writes it.
pub(crate) fn settings(scheme: QuantScheme) -> Value {
    json!({ "group_size": scheme.group_size(), "bits": scheme.bits(), "mode": scheme.mode().name() })
}

fn summary(plan: &[Planned<'_>]) -> QuantizeSummary {
    let quantized = plan.iter().filter(|planned| planned.scheme.is_some()).count();
    let bytes: u64 = plan.iter().flat_map(Planned::specs).map(|spec| spec.bytes()).sum();
    let weights: usize = plan.iter().map(|planned| planned.shape.iter().product::<usize>()).sum();
    let bits_per_weight = bytes as f64 * 8.0 / (weights.max(1)) as f64;
    QuantizeSummary { quantized, plain: plan.len() - quantized, bits_per_weight }
}

//! Quantizes a model folder in Hugging Face layout, as `mlx_lm.convert` does: weights are cast to the model's type,
//! matrices whose rows divide into groups are packed, and the configuration says which.
//!
//! The new folder is complete once config.json shows in it, which is written last.

use super::error::QuantizeError;
use super::{Packed, quantize};
use crate::error::{Error, Result};
use crate::model_dir::ModelDir;
use crate::progress::{Progress, Stage};
use crate::safetensors::{TensorInfo, TensorView};
use crate::weights::Weights;
use crate::write::{TensorSpec, WeightsWriter, write_json};
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::path::Path;
use strata_contracts::{Dtype, QuantScheme};

/// How a model folder is quantized.
pub struct QuantizeOptions<'p> {
    /// The scheme that the configuration names for the whole model.
    pub default: QuantScheme,
    /// Type of the weights before packing, and of those that stay plain; `None` takes the configuration's
    /// `torch_dtype` or `dtype`, or leaves each tensor in its own.
    pub dtype: Option<Dtype>,
    /// The scheme of the module at a path such as `model.layers.0.mlp.up_proj`; `None` leaves it plain.
    pub scheme_for: &'p dyn Fn(&str) -> Option<QuantScheme>,
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
/// [`Error::Quantize`] when the model is quantized already, a weight is not finite or nothing fits the scheme;
/// [`Error::AlreadyExists`] when `to` holds weights; what reading and writing models can give.
pub fn quantize_folder(
    from: &Path,
    to: &Path,
    options: &QuantizeOptions<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<QuantizeSummary> {
    let model = ModelDir::open(from)?;
    let refuse = |problem| Error::Quantize { path: from.to_owned(), problem };
    if model.quantization()?.is_some() {
        return Err(refuse(QuantizeError::AlreadyQuantized));
    }
    let weights = model.weights()?;
    let declared = options.dtype.or_else(|| declared_dtype(model.config().values()));
    let plan: Vec<Planned<'_>> = weights.infos().map(|info| Planned::new(info, declared, options)).collect();
    if plan.iter().all(|planned| planned.scheme.is_none()) {
        return Err(refuse(QuantizeError::NothingFits { group_size: options.default.group_size() }));
    }

    copy_other_files(from, to)?;
    write_weights(&weights, &plan, to, options.max_shard_bytes, from, progress)?;
    let mut config = model.config().values().clone();
    let block = quantization_block(&plan, options.default);
    config.insert("quantization".into(), block.clone());
    config.insert("quantization_config".into(), block);
    write_json(&to.join("config.json"), &config)?;
    Ok(summary(&plan))
}

/// A tensor, the type it is cast to, and the scheme it is packed with.
struct Planned<'w> {
    info: &'w TensorInfo,
    dtype: Dtype,
    scheme: Option<QuantScheme>,
}

impl<'w> Planned<'w> {
    fn new(info: &'w TensorInfo, declared: Option<Dtype>, options: &QuantizeOptions<'_>) -> Self {
        let dtype = declared.filter(|_| info.dtype.is_float()).unwrap_or(info.dtype);
        let columns = info.shape.last().copied().unwrap_or(0);
        // Vectors and convolutions are no matrices; mlx-lm also leaves rows that don't divide by the default.
        let fits = |scheme: &QuantScheme| scheme.packed_columns(columns).is_ok();
        let scheme = module(info)
            .filter(|_| info.dtype.is_float() && info.shape.len() == 2 && fits(&options.default))
            .and_then(|path| (options.scheme_for)(path))
            .filter(fits);
        Self { info, dtype, scheme }
    }

    fn specs(&self) -> Vec<TensorSpec> {
        let TensorInfo { name, shape, .. } = self.info;
        match (self.scheme, module(self.info), &shape[..]) {
            (Some(scheme), Some(path), &[rows, columns]) => {
                packed_specs(path, rows, columns, scheme, self.dtype)
            }
            _ => vec![TensorSpec { name: name.clone(), dtype: self.dtype, shape: shape.clone() }],
        }
    }

    /// The bytes of [`Planned::specs`], in their order.
    fn bytes(&self, view: &TensorView) -> Result<Vec<Vec<u8>>, QuantizeError> {
        let Some(scheme) = self.scheme else { return Ok(vec![self.plain(view)]) };
        let mut values = floats(view);
        for value in &mut values {
            *value = cast(*value, self.dtype);
        }
        Ok(quantize(scheme, self.dtype, &values)?.into_parts())
    }

    fn plain(&self, view: &TensorView) -> Vec<u8> {
        if view.dtype == self.dtype {
            return view.data.to_vec();
        }
        let values = floats(view);
        match self.dtype {
            Dtype::Bfloat16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
            Dtype::Float16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }
}

/// Path of the module whose weight this is.
fn module(info: &TensorInfo) -> Option<&str> {
    info.name.strip_suffix(".weight")
}

/// The elements of a floating-point tensor.
fn floats(view: &TensorView) -> Vec<f32> {
    let data: &[u8] = &view.data;
    match view.dtype {
        Dtype::Float16 => data.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::Bfloat16 => data.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::Float64 => data
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32)
            .collect(),
        _ => data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

fn cast(value: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Bfloat16 => bf16::from_f32(value).to_f32(),
        Dtype::Float16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
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
        let tensor = &planned.info.name;
        let view = weights.require(tensor)?;
        let bytes = planned.bytes(&view).map_err(|problem| {
            let problem = QuantizeError::of_tensor(tensor, problem);
            Error::Quantize { path: from.to_owned(), problem }
        })?;
        for part in &bytes {
            writer.append(part)?;
        }
        done += view.data.len() as u64;
        progress(Progress { stage: Stage::Convert, done, total });
    }
    writer.finish()
}

/// The `quantization` block as mlx-lm writes it: the default, and an entry for each module that differs.
fn quantization_block(plan: &[Planned<'_>], default: QuantScheme) -> Value {
    let mut block = settings(default);
    for planned in plan {
        if let (Some(scheme), Some(path)) =
            (planned.scheme.filter(|&scheme| scheme != default), module(planned.info))
        {
            block[path] = settings(scheme);
        }
    }
    block
}

/// The tensors of a packed matrix of `rows` rows of `columns` values, in the order of [`Packed::into_parts`].
pub(crate) fn packed_specs(
    path: &str,
    rows: usize,
    columns: usize,
    scheme: QuantScheme,
    dtype: Dtype,
) -> Vec<TensorSpec> {
    let groups = vec![rows, columns / scheme.group_size() as usize];
    let words = vec![rows, columns / 16 * scheme.bits() as usize / 2];
    let spec = |part: &str, dtype, shape| TensorSpec { name: format!("{path}.{part}"), dtype, shape };
    let scales = spec("scales", Packed::scale_dtype(scheme, dtype), groups.clone());
    let mut specs = vec![spec("weight", Dtype::Uint32, words), scales];
    if scheme.has_biases() {
        specs.push(spec("biases", dtype, groups));
    }
    specs
}

/// One scheme as mlx-lm writes it.
pub(crate) fn settings(scheme: QuantScheme) -> Value {
    json!({ "group_size": scheme.group_size(), "bits": scheme.bits(), "mode": scheme.mode().name() })
}

fn summary(plan: &[Planned<'_>]) -> QuantizeSummary {
    let quantized = plan.iter().filter(|planned| planned.scheme.is_some()).count();
    let bytes: u64 = plan.iter().flat_map(Planned::specs).map(|spec| spec.bytes()).sum();
    let weights: usize = plan.iter().map(|planned| planned.info.shape.iter().product::<usize>()).sum();
    let bits_per_weight = bytes as f64 * 8.0 / (weights.max(1)) as f64;
    QuantizeSummary { quantized, plain: plan.len() - quantized, bits_per_weight }
}

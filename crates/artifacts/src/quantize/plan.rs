//! What becomes of each tensor of a folder that is quantized: packed or plain, and the experts of a layer as one.

use super::error::QuantizeError;
use super::{Packed, QuantRules, quantize};
use crate::error::{Error, Result};
use crate::safetensors::{TensorInfo, TensorView};
use crate::weights::Weights;
use crate::write::TensorSpec;
use half::{bf16, f16};
use std::collections::BTreeMap;
use strata_contracts::{Dtype, QuantScheme};

/// A tensor of the new folder: where its values come from, the type they are cast to, the scheme they are packed with.
pub(super) struct Planned<'w> {
    name: String,
    pub(super) shape: Vec<usize>,
    /// One tensor, or one an expert.
    sources: Vec<&'w TensorInfo>,
    dtype: Dtype,
    pub(super) scheme: Option<QuantScheme>,
}

/// Plans every tensor of a model. `declared` is the type that floats are cast to, if any.
pub(super) fn plan<'w>(
    weights: &'w Weights,
    declared: Option<Dtype>,
    rules: &QuantRules,
) -> Result<Vec<Planned<'w>>, QuantizeError> {
    let mut experts: BTreeMap<String, BTreeMap<usize, &TensorInfo>> = BTreeMap::new();
    let mut plan = Vec::new();
    for info in weights.infos() {
        match expert(&info.name) {
            Some((stacked, number)) => {
                experts.entry(stacked).or_default().insert(number, info);
            }
            None => plan.push(Planned::new(info.name.clone(), vec![info], declared, rules)),
        }
    }
    for (name, numbered) in experts {
        let missing = (0..).zip(numbered.keys()).find(|(expected, found)| expected != *found);
        if let Some((missing, _)) = missing {
            return Err(QuantizeError::MissingExpert { tensor: name, missing });
        }
        let sources: Vec<&TensorInfo> = numbered.into_values().collect();
        if let Some(odd) = sources.iter().find(|info| info.shape != sources[0].shape) {
            let (found, expected) = (odd.shape.clone(), sources[0].shape.clone());
            return Err(QuantizeError::ExpertShape { tensor: odd.name.clone(), found, expected });
        }
        plan.push(Planned::new(name, sources, declared, rules));
    }
    Ok(plan)
}

/// The stacked tensor that an expert's matrix belongs to, and the expert's number. Original checkpoints have
/// `P.experts.N.NAME.weight`; mlx-lm keeps all of them as `P.switch_mlp.NAME.weight`, which alone can be packed.
fn expert(name: &str) -> Option<(String, usize)> {
    let (prefix, rest) = name.split_once(".mlp.experts.")?;
    let (number, module) = rest.split_once('.')?;
    Some((format!("{prefix}.mlp.switch_mlp.{module}"), number.parse().ok()?))
}

impl<'w> Planned<'w> {
    fn new(name: String, sources: Vec<&'w TensorInfo>, declared: Option<Dtype>, rules: &QuantRules) -> Self {
        let first = sources[0];
        let float = first.dtype.is_float();
        let dtype = declared.filter(|_| float).unwrap_or(first.dtype);
        let stacked = name != first.name;
        let mut shape = first.shape.clone();
        if stacked {
            shape.insert(0, sources.len());
        }
        // Vectors and convolutions are no matrices; mlx-lm also leaves rows that don't divide by the default.
        let matrix = shape.len() == 2 || shape.len() == 3 && name.contains(".switch_mlp.");
        let columns = shape.last().copied().unwrap_or(0);
        let fits = |scheme: &QuantScheme| scheme.packed_columns(columns).is_ok();
        let mut planned = Self { name, shape, sources, dtype, scheme: None };
        if float && matrix && fits(&rules.default_scheme()) {
            planned.scheme = planned.module().and_then(|path| scheme_for(path, rules)).filter(fits);
        }
        planned
    }

    /// Path of the module whose weight this is.
    pub(super) fn module(&self) -> Option<&str> {
        self.name.strip_suffix(".weight")
    }

    /// Bytes of the values as they are stored now.
    pub(super) fn source_bytes(&self) -> u64 {
        let values: usize = self.shape.iter().product();
        values as u64 * self.sources[0].dtype.size() as u64
    }

    pub(super) fn specs(&self) -> Vec<TensorSpec> {
        match (self.scheme, self.module()) {
            (Some(scheme), Some(path)) => packed_specs(path, &self.shape, scheme, self.dtype),
            _ => {
                vec![TensorSpec { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone() }]
            }
        }
    }

    /// The bytes of [`Planned::specs`], in their order. `refuse` makes an error of what is wrong with a tensor.
    pub(super) fn bytes(
        &self,
        weights: &Weights,
        refuse: impl Fn(QuantizeError) -> Error,
    ) -> Result<Vec<Vec<u8>>> {
        let (mut packed, mut plain) = (Packed::default(), Vec::new());
        for source in &self.sources {
            let view = weights.require(&source.name)?;
            match self.scheme {
                None => self.push_plain(&view, &mut plain),
                Some(scheme) => {
                    let mut values = floats(&view);
                    for value in &mut values {
                        *value = cast(*value, self.dtype);
                    }
                    let part = quantize(scheme, self.dtype, &values);
                    packed.append(
                        &part.map_err(|problem| refuse(QuantizeError::of_tensor(&source.name, problem)))?,
                    );
                }
            }
        }
        Ok(if self.scheme.is_some() { packed.into_parts() } else { vec![plain] })
    }

    fn push_plain(&self, view: &TensorView, out: &mut Vec<u8>) {
        if view.dtype == self.dtype {
            return out.extend_from_slice(&view.data);
        }
        let values = floats(view);
        match self.dtype {
            Dtype::Bfloat16 => {
                out.extend(values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()));
            }
            Dtype::Float16 => {
                out.extend(values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
            }
            _ => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        }
    }
}

/// The scheme for a module. Routers lose most by few bits and are small, so mlx-lm keeps them at eight.
fn scheme_for(path: &str, rules: &QuantRules) -> Option<QuantScheme> {
    if path.ends_with(".mlp.gate") && rules.rule_for(path).is_none() {
        return QuantScheme::affine(8, 64).ok();
    }
    rules.scheme_for(path)
}

/// The tensors of packed matrices of shape `[…, columns]`, in the order of [`Packed::into_parts`].
pub(crate) fn packed_specs(
    path: &str,
    shape: &[usize],
    scheme: QuantScheme,
    dtype: Dtype,
) -> Vec<TensorSpec> {
    let (&columns, rows) = shape.split_last().unwrap_or((&0, &[]));
    let with = |last: usize| rows.iter().copied().chain([last]).collect::<Vec<_>>();
    let groups = with(columns / scheme.group_size() as usize);
    let words = with(columns / 16 * scheme.bits() as usize / 2);
    let spec = |part: &str, dtype, shape| TensorSpec { name: format!("{path}.{part}"), dtype, shape };
    let scales = spec("scales", Packed::scale_dtype(scheme, dtype), groups.clone());
    let mut specs = vec![spec("weight", Dtype::Uint32, words), scales];
    if scheme.has_biases() {
        specs.push(spec("biases", dtype, groups));
    }
    specs
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

//! Number formats of stored keys and values, and attention over them. Which kernel reads which format is decided here and
//! nowhere else.

use crate::error::{Error, Result};
use crate::planes::Planes;
use crate::pool::PagedRead;
use strata_contracts::{Dtype, KvFormat, LayerKind, LayerKv, QuantScheme};
use strata_kernels::attention;
use strata_kernels::host::heads::Layout;
use strata_kernels::paged_attention::{self, Pages};
use strata_kernels::quantize::quantize;
use strata_kernels::quantized_attention::quantized_attention;
use strata_kernels::turbo::{self, reference as rotation};
use strata_tensor::ops::{self, Quantized};
use strata_tensor::{Array, fast, fast::Mask};

/// How keys and values become planes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Format {
    /// Keys, values.
    Dense,
    /// Packed words, scales and biases of keys, then those of values: quantized along the head, one position by itself.
    Affine(QuantScheme),
    /// Codes and norms of rotated keys, then those of values, with bits of their own.
    Turbo { keys: u8, values: u8 },
}

impl Format {
    /// Checks that every layer which a scheme names keeps keys and values.
    ///
    /// # Errors
    /// [`Error::Format`].
    pub(crate) fn check(kv: &KvFormat, layers: &[LayerKind]) -> Result<()> {
        let KvFormat::Layers(entries) = kv else { return Ok(()) };
        for &LayerKv { layer, .. } in entries {
            let reason = match layers.get(layer) {
                None => format!("there is none; the model's number of layers is {}", layers.len()),
                Some(LayerKind::Recurrent { .. } | LayerKind::Shared { .. }) => "it keeps none".to_owned(),
                Some(_) => continue,
            };
            return Err(Error::Format { layer, reason });
        }
        Ok(())
    }

    /// The format that a scheme gives layer `layer`.
    ///
    /// # Errors
    /// [`Error::Format`] when rows of `head_dim` values do not divide into its groups.
    pub(crate) fn of_layer(kv: &KvFormat, layer: usize, head_dim: u32) -> Result<Self> {
        let scheme = match kv {
            KvFormat::Plain => return Ok(Self::Dense),
            KvFormat::Turbo { keys, values } => {
                for bits in [*keys, *values] {
                    turbo::check(head_dim as usize, bits)
                        .map_err(|reason| Error::Format { layer, reason })?;
                }
                return Ok(Self::Turbo { keys: *keys, values: *values });
            }
            KvFormat::Affine(scheme) => *scheme,
            KvFormat::Layers(layers) => match layers.iter().find(|entry| entry.layer == layer) {
                Some(entry) => entry.scheme,
                None => return Ok(Self::Dense),
            },
        };
        scheme
            .packed_columns(head_dim as usize)
            .map_err(|error| Error::Format { layer, reason: error.to_string() })?;
        Ok(Self::Affine(scheme))
    }

    /// Planes of dense keys and values; `host` in fast mode on a CPU.
    pub(crate) fn encode(&self, dense: &Planes, host: bool) -> Result<Planes> {
        let mut planes = Vec::with_capacity(6);
        match (self, dense.arrays()) {
            (Self::Affine(scheme), dense) => {
                let quantize = if host { quantize } else { ops::quantize };
                for plane in dense {
                    let Quantized { weight, scales, biases, .. } = quantize(plane, *scheme)?;
                    planes.extend([weight, scales]);
                    planes.extend(biases);
                }
            }
            (Self::Turbo { keys, values }, [k, v]) => {
                let encode = if host { turbo::encode } else { rotation::encode };
                planes.extend(encode(k, *keys)?);
                planes.extend(encode(v, *values)?);
            }
            (_, dense) => planes.extend_from_slice(dense),
        }
        Ok(Planes::new(planes))
    }

    /// Dense keys and values, as near as the format keeps them; in float32 where they are stored rotated.
    pub(crate) fn decode(&self, planes: &Planes) -> Result<(Array, Array)> {
        match (self, planes.arrays()) {
            (Self::Turbo { .. }, _) => {
                let [keys, values] = self.rotated(planes, Dtype::Float32)?;
                Ok((rotation::rotate_back(&keys)?, rotation::rotate_back(&values)?))
            }
            (Self::Affine(scheme), [kw, ks, kb, vw, vs, vb]) => Ok((
                ops::dequantize(&matrix(kw, ks, kb, *scheme), None)?,
                ops::dequantize(&matrix(vw, vs, vb, *scheme), None)?,
            )),
            (_, planes) => Ok((planes[0].clone(), planes[1].clone())),
        }
    }

    /// Keys and values of a rotated format, rotated as they are.
    fn rotated(&self, planes: &Planes, dtype: Dtype) -> Result<[Array; 2]> {
        match (self, planes.arrays()) {
            (Self::Turbo { keys, values }, [kc, kn, vc, vn]) => {
                Ok([rotation::decode(kc, kn, *keys, dtype)?, rotation::decode(vc, vn, *values, dtype)?])
            }
            (_, planes) => Ok([planes[0].clone(), planes[1].clone()]),
        }
    }

    /// Its name in files.
    pub(crate) fn tag(&self) -> String {
        match self {
            Self::Dense => "dense".to_owned(),
            Self::Affine(scheme) => {
                format!("affine, {} bits, groups of {}", scheme.bits(), scheme.group_size())
            }
            Self::Turbo { keys, values } => format!("turbo, {keys} and {values} bits"),
        }
    }

    /// Elements of the first plane for a key of `values` values.
    pub(crate) fn width(&self, values: usize) -> usize {
        match self {
            Self::Dense => values,
            Self::Affine(scheme) => scheme.packed_columns(values).unwrap_or(0),
            Self::Turbo { keys, .. } => turbo::words(values, *keys),
        }
    }

    /// Bytes of one head's key of `keys` values and value of `values` values.
    pub(crate) fn bytes(&self, keys: usize, values: usize, activations: Dtype) -> usize {
        let word = Dtype::Uint32.size();
        match self {
            Self::Dense => (keys + values) * activations.size(),
            Self::Affine(scheme) => {
                let groups = (keys + values) / scheme.group_size() as usize;
                (self.width(keys) + self.width(values)) * word + 2 * groups * activations.size()
            }
            Self::Turbo { keys: key_bits, values: value_bits } => {
                let words = turbo::words(keys, *key_bits) + turbo::words(values, *value_bits);
                words * word + 2 * Dtype::Float32.size()
            }
        }
    }

    /// What each plane is.
    pub(crate) fn names(&self) -> &'static [&'static str] {
        match self {
            Self::Dense => &["keys", "values"],
            Self::Turbo { .. } => &["keys", "keys.norms", "values", "values.norms"],
            Self::Affine(_) => {
                &["keys", "keys.scales", "keys.biases", "values", "values.scales", "values.biases"]
            }
        }
    }

    /// Attention by the host kernel that reads the format; `None` where there is none.
    pub(crate) fn on_host(
        &self,
        planes: &Planes,
        queries: &Array,
        options: &attention::Options<'_>,
        layout: Layout,
    ) -> Result<Option<Array>> {
        let dtype = queries.dtype();
        if !matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) {
            return Ok(None);
        }
        Ok(Some(match (self, planes.arrays()) {
            (Self::Dense, [keys, values]) if keys.dtype() == dtype && values.dtype() == dtype => {
                attention::attention(queries, keys, values, options, layout)?
            }
            (Self::Affine(scheme), [kw, ks, kb, vw, vs, vb]) if ks.dtype() == dtype => {
                let (keys, values) = (matrix(kw, ks, kb, *scheme), matrix(vw, vs, vb, *scheme));
                quantized_attention(queries, &keys, &values, options, layout)?
            }
            (Self::Turbo { keys, values }, [kc, kn, vc, vn]) => {
                let keys = turbo::Stored { codes: kc, norms: kn, bits: *keys };
                let values = turbo::Stored { codes: vc, norms: vn, bits: *values };
                turbo::turbo_attention(queries, keys, values, options, layout)?
            }
            _ => return Ok(None),
        }))
    }

    /// True when a kernel reads pages of this format.
    pub(crate) fn reads_pages(&self) -> bool {
        !matches!(self, Self::Turbo { .. })
    }

    /// Attention by the host kernel that reads pages; `None` where there is none.
    pub(crate) fn on_host_pages(
        &self,
        pages: &PagedRead,
        queries: &Array,
        options: paged_attention::Options,
        layout: Layout,
    ) -> Result<Option<Array>> {
        let dtype = queries.dtype();
        let stored = match (self, pages.pool.arrays()) {
            (Self::Dense, [keys, values]) if keys.dtype() == dtype && values.dtype() == dtype => {
                Pages::Dense(keys.clone(), values.clone())
            }
            (Self::Affine(scheme), [kw, ks, kb, vw, vs, vb]) if ks.dtype() == dtype => {
                Pages::Affine(matrix(kw, ks, kb, *scheme), matrix(vw, vs, vb, *scheme))
            }
            _ => return Ok(None),
        };
        Ok(Some(paged_attention::paged_attention(queries, &stored, &pages.tables()?, options, layout)?))
    }

    /// Attention without a score matrix by an operation of MLX, where there is one for the format.
    pub(crate) fn fused(
        &self,
        planes: &Planes,
        queries: &Array,
        scale: f32,
        mask: Mask<'_>,
    ) -> Result<Option<Array>> {
        match (self, planes.arrays()) {
            (Self::Dense, [keys, values]) => {
                let out = fast::scaled_dot_product_attention(queries, keys, values, scale, mask, None)?;
                Ok(Some(out))
            }
            (Self::Turbo { .. }, _) => {
                let [keys, values] = self.rotated(planes, queries.dtype())?;
                let queries = rotation::rotate(queries)?;
                let out = fast::scaled_dot_product_attention(&queries, &keys, &values, scale, mask, None)?;
                Ok(Some(rotation::rotate_back(&out)?))
            }
            _ => Ok(None),
        }
    }

    /// `softmax(cap(scale · Q Kᵀ) masked) V` by single operations, in mlx-lm's order (models/base.py,
    /// `quantized_scaled_dot_product_attention`; models/gemma2.py): scaled queries, scores in their type, hidden scores at
    /// that type's minimum. `mask` broadcasts to scores `[B, Hkv, (Hq/Hkv,) L, S]`.
    pub(crate) fn by_hand(
        &self,
        planes: &Planes,
        queries: &Array,
        scale: f32,
        cap: Option<f32>,
        mask: Option<&Array>,
    ) -> Result<Array> {
        if let Self::Turbo { .. } = self {
            let dense = Planes::new(self.rotated(planes, queries.dtype())?.to_vec());
            let out = Self::Dense.by_hand(&dense, &rotation::rotate(queries)?, scale, cap, mask)?;
            return Ok(rotation::rotate_back(&out)?);
        }
        let shape = queries.shape();
        let (b, heads, l, d) = (shape[0], shape[1], shape[2], shape[3]);
        let kv_heads = planes.arrays()[0].dim(1);
        let repeats = heads / kv_heads.max(1);
        let mut q = queries.multiply_number(scale)?;
        let mut stored = planes.clone();
        if repeats > 1 {
            q = q.reshape([b, kv_heads, repeats, l, d])?; // [B, Hkv, Hq/Hkv, L, D]
            stored = stored.map(|plane| plane.expand_dims(&[2]))?; // [B, Hkv, 1, S, *]
        }
        let mut scores = self.scores(&stored, &q)?;
        if let Some(cap) = cap {
            scores = scores.divide(&scores.number(cap)?)?.tanh()?.multiply_number(cap)?;
        }
        if let Some(mask) = mask {
            scores = ops::where_(mask, &scores, &lowest(&scores)?)?;
        }
        let out = self.mixed(&stored, &scores.softmax(-1, true)?)?;
        Ok(if repeats > 1 { out.reshape([b, heads, l, out.dim(-1)])? } else { out })
    }

    /// `Q Kᵀ`: `[…, L, D]` -> `[…, L, S]`.
    fn scores(&self, planes: &Planes, queries: &Array) -> Result<Array> {
        match (self, planes.arrays()) {
            (Self::Affine(scheme), [words, scales, biases, ..]) => {
                Ok(ops::quantized_matmul(queries, &matrix(words, scales, biases, *scheme), true)?)
            }
            (_, planes) => Ok(queries.matmul(&planes[0].swapaxes(-1, -2)?)?),
        }
    }

    /// `P V`: `[…, L, S]` -> `[…, L, Dv]`.
    fn mixed(&self, planes: &Planes, weights: &Array) -> Result<Array> {
        match (self, planes.arrays()) {
            (Self::Affine(scheme), [.., words, scales, biases]) => {
                Ok(ops::quantized_matmul(weights, &matrix(words, scales, biases, *scheme), false)?)
            }
            (_, planes) => Ok(weights.matmul(&planes[1])?),
        }
    }
}

fn matrix(words: &Array, scales: &Array, biases: &Array, scheme: QuantScheme) -> Quantized {
    Quantized { weight: words.clone(), scales: scales.clone(), biases: Some(biases.clone()), scheme }
}

/// The most negative finite number of an array's floating-point type.
pub(crate) fn lowest(like: &Array) -> Result<Array> {
    Ok(like.number(match like.dtype() {
        Dtype::Float16 => -65504.0,
        Dtype::Bfloat16 => f32::from_bits(0xff7f_0000),
        _ => f32::MIN,
    })?)
}

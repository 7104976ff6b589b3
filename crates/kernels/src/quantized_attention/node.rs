//! The host form as a node of MLX's graph.

use super::host::{self, Quantized};
use crate::attention::Options;
use crate::attention::node::Settings;
use crate::host::Level;
use crate::host::heads::Layout;
use crate::host::node::{Float, Strided, four, laid_out, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_contracts::QuantScheme;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::ops::Quantized as Stored;
use strata_tensor::{Array, Dtype, Error, Failure, Result};

/// Inputs: `q`; words, scales and biases of keys; the same of values; then mask, sinks and end as far as they are inputs.
#[derive(PartialEq)]
pub(super) struct QuantizedAttention {
    settings: Settings,
    k: QuantScheme,
    v: QuantScheme,
}

impl QuantizedAttention {
    pub(super) fn new(
        options: &Options<'_>,
        layout: Layout,
        dtype: Dtype,
        k: QuantScheme,
        v: QuantScheme,
    ) -> Result<(Self, Vec<Array>)> {
        let (settings, extra) = Settings::new(options, layout, dtype)?;
        Ok((Self { settings, k, v }, extra))
    }
}

/// Words, scales and biases of keys and of values.
///
/// # Errors
/// A mode other than affine.
#[track_caller]
pub(crate) fn of_affine<'a>(op: &'static str, k: &'a Stored, v: &'a Stored) -> Result<[&'a Array; 6]> {
    if let (Some(k_biases), Some(v_biases)) = (&k.biases, &v.biases) {
        return Ok([&k.weight, &k.scales, k_biases, &v.weight, &v.scales, v_biases]);
    }
    let (k, v) = (k.scheme.mode().name(), v.scheme.mode().name());
    let message = format!("keys and values must be affine, not {k} and {v}");
    Err(Error::Mlx(Box::new(Failure { op, message, at: std::panic::Location::caller() })))
}

/// `[B, H, S, D]` of quantized storage.
pub(crate) fn shape(operand: &str, parts: &[Meta], scheme: QuantScheme) -> Result<[i32; 4], String> {
    let [words, scales, biases] = parts else { return Err(format!("{operand} has three parts")) };
    let ([b, h, s, packed], groups) = (four(operand, words)?, four(operand, scales)?);
    let width = packed / scheme.bits() as i32 * 32;
    let fits = words.dtype == Dtype::Uint32
        && packed % scheme.bits() as i32 == 0
        && groups == [b, h, s, width / scheme.group_size() as i32]
        && biases.shape == scales.shape;
    if fits {
        return Ok([b, h, s, width]);
    }
    Err(format!(
        "{operand}: words {} {}, scales {} and biases {} do not fit",
        words.dtype, words.shape, scales.shape, biases.shape
    ))
}

impl HostKernel for QuantizedAttention {
    const NAME: &'static CStr = c"quantized_attention";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        if inputs.len() < 7 {
            return Err("takes q and three parts of keys and of values".to_owned());
        }
        let floats = [&inputs[0], &inputs[2], &inputs[3], &inputs[5], &inputs[6]].map(Clone::clone);
        let dtype = one_float_type(&floats)?;
        let [b, heads, length, width] = four("q", &inputs[0])?;
        let (k, v) = (shape("k", &inputs[1..4], self.k)?, shape("v", &inputs[4..7], self.v)?);
        if k[0] != b || k[1] == 0 || heads % k[1] != 0 || k[3] != width {
            return Err(format!(
                "k needs shape [{b}, H, S, {width}] with H a divisor of {heads} but has {k:?}"
            ));
        }
        if v[..3] != k[..3] {
            return Err(format!("v needs shape [{}, {}, {}, D] but has {v:?}", k[0], k[1], k[2]));
        }
        self.settings.check(&inputs[7..], dtype, [b, heads, length, self.settings.keys(k[2])?])?;
        Ok(smallvec![Meta { dtype, shape: laid_out(self.settings.layout, [b, heads, length, v[3]]) }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl QuantizedAttention {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let q = Strided::<E>::new(&inputs[0])?;
        let keys = self.settings.resolve_keys(&inputs[7..], inputs[1].shape()[2])?;
        let (k, v) = (Parts::<E>::new(&inputs[1..4])?, Parts::<E>::new(&inputs[4..7])?);
        let (q, k, v) = (q.heads("quantized_attention", "q")?, k.view(self.k, keys)?, v.view(self.v, keys)?);
        let out = outputs[0].slice_mut()?;
        self.settings.with_options(&inputs[7..], |options| {
            host::quantized_attention(Level::best(), q, k, v, options, self.settings.layout, out)
        })
    }
}

/// Words, scales and biases.
pub(crate) struct Parts<'a, E: Copy>(Strided<'a, u32>, [Strided<'a, E>; 2]);

impl<'a, E: Float> Parts<'a, E> {
    pub(crate) fn new(views: &[View<'a>]) -> Result<Self, String> {
        Ok(Self(Strided::new(&views[0])?, [Strided::new(&views[1])?, Strided::new(&views[2])?]))
    }

    /// Of the first `keys` positions.
    pub(crate) fn view(&self, scheme: QuantScheme, keys: usize) -> Result<Quantized<'_, E>, String> {
        let Self(words, [scales, biases]) = self;
        let ([b, h, s, packed], strides) = words.four()?;
        let width = packed / scheme.bits() as usize * 32;
        let strides = [strides, scales.four()?.1, biases.four()?.1];
        let data = (words.slice(), scales.slice(), biases.slice());
        Quantized::new(data, [b, h, s.min(keys), width], strides, scheme.bits(), scheme.group_size() as usize)
            .map_err(|e| e.to_string())
    }
}

//! The host forms as nodes of MLX's graph.

use super::{check, host, words};
use crate::attention::Options;
use crate::attention::node::Settings;
use crate::host::Level;
use crate::host::heads::Layout;
use crate::host::node::{Float, Strided, four, laid_out, one_float_type, with_float};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Array, Dtype, Result, Shape};

/// Input: vectors.
#[derive(PartialEq)]
pub(super) struct Encode {
    pub(super) bits: u8,
}

impl HostKernel for Encode {
    const NAME: &'static CStr = c"turbo_encode";
    const OUTPUTS: &'static [Output] = &[Output::Fresh; 2];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [x] = inputs else { return Err("takes vectors".to_owned()) };
        one_float_type(inputs)?;
        let Some((&width, leading)) = x.shape.as_slice().split_last() else {
            return Err("x must have at least 1 dimension".to_owned());
        };
        check(width as usize, self.bits)?;
        let with = |last: usize| -> Shape {
            leading.iter().copied().chain([last as i32]).collect::<SmallVec<[i32; 4]>>()[..].into()
        };
        let codes = Meta { dtype: Dtype::Uint32, shape: with(words(width as usize, self.bits)) };
        Ok(smallvec![codes, Meta { dtype: Dtype::Float32, shape: with(1) }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl Encode {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let [codes, norms] = outputs else { return Err("has two outputs".to_owned()) };
        let x = Strided::<E>::new(&inputs[0])?.folded();
        let (x, codes, norms) = (x.rows("turbo_encode", "x")?, codes.slice_mut()?, norms.slice_mut()?);
        host::encode(Level::best(), x, self.bits, codes, norms).map_err(|e| e.to_string())
    }
}

/// Inputs: `q`; codes and norms of keys; the same of values; then mask, sinks and end as far as they are inputs.
#[derive(PartialEq)]
pub(super) struct TurboAttention {
    settings: Settings,
    /// Of keys and of values.
    bits: [u8; 2],
}

impl TurboAttention {
    pub(super) fn new(
        options: &Options<'_>,
        layout: Layout,
        dtype: Dtype,
        bits: [u8; 2],
    ) -> Result<(Self, Vec<Array>)> {
        let (settings, extra) = Settings::new(options, layout, dtype)?;
        Ok((Self { settings, bits }, extra))
    }
}

/// `[B, H, S, D]` of what is stored.
fn shape(operand: &str, codes: &Meta, norms: &Meta, bits: u8) -> Result<[i32; 4], String> {
    let ([b, h, s, packed], of_norms) = (four(operand, codes)?, four(operand, norms)?);
    let width = packed / i32::from(bits).max(1) * 32;
    check(width as usize, bits)?;
    let fits = codes.dtype == Dtype::Uint32
        && norms.dtype == Dtype::Float32
        && words(width as usize, bits) == packed as usize
        && of_norms == [b, h, s, 1];
    if fits {
        return Ok([b, h, s, width]);
    }
    Err(format!(
        "{operand}: codes {} {} and norms {} {} do not fit",
        codes.dtype, codes.shape, norms.dtype, norms.shape
    ))
}

impl HostKernel for TurboAttention {
    const NAME: &'static CStr = c"turbo_attention";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [q, k, k_norms, v, v_norms, extra @ ..] = inputs else {
            return Err("takes q and two parts of keys and of values".to_owned());
        };
        let dtype = one_float_type(&inputs[..1])?;
        let [b, heads, length, width] = four("q", q)?;
        let (k, v) = (shape("k", k, k_norms, self.bits[0])?, shape("v", v, v_norms, self.bits[1])?);
        if k[0] != b || k[1] == 0 || heads % k[1] != 0 || k[3] != width {
            return Err(format!(
                "k needs shape [{b}, H, S, {width}] with H a divisor of {heads} but has {k:?}"
            ));
        }
        if v[..3] != k[..3] {
            return Err(format!("v needs shape [{}, {}, {}, D] but has {v:?}", k[0], k[1], k[2]));
        }
        self.settings.check(extra, dtype, [b, heads, length, self.settings.keys(k[2])?])?;
        Ok(smallvec![Meta { dtype, shape: laid_out(self.settings.layout, [b, heads, length, v[3]]) }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl TurboAttention {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let q = Strided::<E>::new(&inputs[0])?;
        let keys = self.settings.resolve_keys(&inputs[5..], inputs[1].shape()[2])?;
        let (k, v) = (Parts::new(&inputs[1..3])?, Parts::new(&inputs[3..5])?);
        let (k, v) = (k.view(self.bits[0], keys)?, v.view(self.bits[1], keys)?);
        let (q, out) = (q.heads("turbo_attention", "q")?, outputs[0].slice_mut()?);
        self.settings.with_options(&inputs[5..], |options| {
            host::turbo_attention(Level::best(), q, k, v, options, self.settings.layout, out)
        })
    }
}

/// Codes and norms.
struct Parts<'a>(Strided<'a, u32>, Strided<'a, f32>);

impl<'a> Parts<'a> {
    fn new(views: &[View<'a>]) -> Result<Self, String> {
        Ok(Self(Strided::new(&views[0])?, Strided::new(&views[1])?))
    }

    /// Of the first `keys` positions.
    fn view(&self, bits: u8, keys: usize) -> Result<host::Stored<'_>, String> {
        let Self(codes, norms) = self;
        let ([b, h, s, packed], strides) = codes.four()?;
        let shape = [b, h, s.min(keys), packed / bits as usize * 32];
        let strides = [strides, norms.four()?.1];
        host::Stored::new((codes.slice(), norms.slice()), shape, strides, bits).map_err(|e| e.to_string())
    }
}

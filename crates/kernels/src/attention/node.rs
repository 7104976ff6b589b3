//! The host form as a node of MLX's graph.

use super::host::{self, ArrayMask};
use super::{Options, Span, cast_mask};
use crate::Offset;
use crate::host::Level;
use crate::host::heads::Layout;
use crate::host::node::{Float, Strided, cast, four, laid_out, one_float_type, with_float};
use crate::offset::Known;
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Array, Dtype, Result};

/// What every storage of keys and values has in common: options by value, and which optional inputs follow.
#[derive(PartialEq)]
pub(crate) struct Settings {
    scale: f32,
    span: Span,
    /// Where keys and values end in their buffers.
    end: Option<Known>,
    softcap: Option<f32>,
    pub(crate) layout: Layout,
    mask: bool,
    sinks: bool,
}

impl Settings {
    /// The settings, and the optional inputs in order: mask, sinks, end.
    pub(crate) fn new(options: &Options<'_>, layout: Layout, dtype: Dtype) -> Result<(Self, Vec<Array>)> {
        let Options { scale, span, end, mask, softcap, sinks } = *options;
        let mask = mask.map(|mask| cast_mask(mask, dtype)).transpose()?;
        let sinks = sinks.map(|sinks| cast(sinks, dtype)).transpose()?;
        let (masked, sunk) = (mask.is_some(), sinks.is_some());
        let known = end.map(Offset::known);
        let settings = Self { scale, span, end: known, softcap, layout, mask: masked, sinks: sunk };
        let end = end.and_then(Offset::input).cloned();
        Ok((settings, mask.into_iter().chain(sinks).chain(end).collect()))
    }

    /// `S`, or what it is at most, for buffers of `room` positions.
    pub(crate) fn keys(&self, room: i32) -> Result<i32, String> {
        match self.end.and_then(Known::position) {
            Some(end) if end > room || end < 0 => Err(format!("reads {end} keys but k has {room}")),
            Some(end) => Ok(end),
            None => Ok(room),
        }
    }

    /// `S` when the kernel runs.
    pub(crate) fn resolve_keys(&self, extra: &[View<'_>], room: i32) -> Result<usize, String> {
        let Some(end) = self.end else { return Ok(room as usize) };
        let keys = end.resolve("end", extra.last())?;
        if keys > room as usize { Err(format!("reads {keys} keys but k has {room}")) } else { Ok(keys) }
    }

    /// Checks the optional inputs against the shape of the scores `[B, Hq, L, S]`.
    pub(crate) fn check(&self, extra: &[Meta], dtype: Dtype, scores: [i32; 4]) -> Result<(), String> {
        let end = self.end.map_or(0, Known::inputs);
        let expected = usize::from(self.mask) + usize::from(self.sinks) + end;
        if extra.len() != expected {
            return Err(format!("takes {expected} inputs for mask, sinks and end but has {}", extra.len()));
        }
        if let Some(known) = self.end {
            known.check("end", extra.last())?;
        }
        if self.mask {
            let mask = &extra[0];
            let lengths = mask.shape.as_slice();
            // Whether there is a column for each key shows when the kernel runs, if `S` does only then.
            let skipped = end.min(lengths.len());
            let axes = lengths.iter().rev().zip(scores.iter().rev()).skip(skipped);
            let fits = lengths.len() <= 4 && axes.into_iter().all(|(&n, &full)| n == 1 || n == full);
            if !fits || (mask.dtype != Dtype::Bool && mask.dtype != dtype) {
                return Err(format!(
                    "mask {} {} does not broadcast to bool or {dtype} {scores:?}",
                    mask.dtype, mask.shape
                ));
            }
        }
        if self.sinks {
            let sinks = &extra[usize::from(self.mask)];
            if sinks.dtype != dtype || sinks.shape.as_slice() != [scores[1]] {
                return Err(format!(
                    "sinks need {dtype} [{}] but are {} {}",
                    scores[1], sinks.dtype, sinks.shape
                ));
            }
        }
        Ok(())
    }

    /// Calls `body` with the options that the optional inputs complete.
    pub(crate) fn with_options<E: Float>(
        &self,
        extra: &[View<'_>],
        body: impl FnOnce(&host::Options<'_, E>) -> Result<(), crate::Error>,
    ) -> Result<(), String> {
        let (boolean, additive);
        let mut options = host::Options::new(self.scale, self.span);
        options.softcap = self.softcap;
        if self.mask {
            let mask = &extra[0];
            options.mask = Some(if mask.dtype() == Dtype::Bool {
                boolean = Strided::<u8>::of_bytes(mask);
                ArrayMask::Boolean(boolean.slice(), boolean.broadcast_strides()?)
            } else {
                additive = Strided::<E>::new(mask)?;
                ArrayMask::Additive(additive.slice(), additive.broadcast_strides()?)
            });
        }
        let sinks =
            self.sinks.then(|| extra.get(usize::from(self.mask)).ok_or("sinks are missing")).transpose()?;
        let sinks = sinks.map(Strided::<E>::new).transpose()?;
        options.sinks = sinks.as_ref().map(Strided::slice);
        body(&options).map_err(|e| e.to_string())
    }
}

/// Inputs: `q`, `k`, `v`, then mask, sinks and end as far as they are inputs.
#[derive(PartialEq)]
pub(super) struct Attention(pub(super) Settings);

impl HostKernel for Attention {
    const NAME: &'static CStr = c"attention";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [q, k, v, extra @ ..] = inputs else { return Err("takes q, k and v".to_owned()) };
        let dtype = one_float_type(&inputs[..3])?;
        let ([b, heads, length, width], k, v) = (four("q", q)?, four("k", k)?, four("v", v)?);
        if k[0] != b || k[1] == 0 || heads % k[1] != 0 || k[3] != width {
            return Err(format!(
                "k needs shape [{b}, H, S, {width}] with H a divisor of {heads} but has {k:?}"
            ));
        }
        if v[..3] != k[..3] {
            return Err(format!("v needs shape [{}, {}, {}, D] but has {v:?}", k[0], k[1], k[2]));
        }
        self.0.check(extra, dtype, [b, heads, length, self.0.keys(k[2])?])?;
        Ok(smallvec![Meta { dtype, shape: laid_out(self.0.layout, [b, heads, length, v[3]]) }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl Attention {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let (q, k, v) =
            (Strided::<E>::new(&inputs[0])?, Strided::<E>::new(&inputs[1])?, Strided::<E>::new(&inputs[2])?);
        let (q, k, v) = (q.heads("attention", "q")?, k.heads("attention", "k")?, v.heads("attention", "v")?);
        let keys = self.0.resolve_keys(&inputs[3..], inputs[1].shape()[2])?;
        let (k, v) = (k.first(keys), v.first(keys));
        let out = outputs[0].slice_mut()?;
        self.0.with_options(&inputs[3..], |options| {
            host::attention(Level::best(), q, k, v, options, self.0.layout, out)
        })
    }
}

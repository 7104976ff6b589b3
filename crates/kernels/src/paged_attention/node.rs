//! The host form as a node of MLX's graph.

use super::host::{self, Tables};
use super::{Options, Pages};
use crate::host::Level;
use crate::host::heads::Layout;
use crate::host::node::{Float, Strided, four, laid_out, one_float_type, with_float};
use crate::quantized_attention::node::{Parts, of_affine, shape};
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use strata_contracts::QuantScheme;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};
use strata_tensor::{Array, Dtype, Result};

/// Inputs: `q`, tables, lengths, offsets; then keys and values, or words, scales and biases of each.
#[derive(PartialEq)]
pub(super) struct PagedAttention {
    options: Options,
    layout: Layout,
    /// Of quantized keys and values.
    affine: Option<[QuantScheme; 2]>,
}

impl PagedAttention {
    /// The kernel and what it reads of the pages.
    #[track_caller]
    pub(super) fn new(pages: &Pages, options: Options, layout: Layout) -> Result<(Self, Vec<&Array>)> {
        let (affine, stored) = match pages {
            Pages::Dense(keys, values) => (None, vec![keys, values]),
            Pages::Affine(k, v) => (Some([k.scheme, v.scheme]), of_affine("paged_attention", k, v)?.to_vec()),
        };
        Ok((Self { options, layout, affine }, stored))
    }
}

impl HostKernel for PagedAttention {
    const NAME: &'static CStr = c"paged_attention";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let [q, tables, lengths, offsets, stored @ ..] = inputs else {
            return Err("takes q, tables, lengths, offsets and pages".to_owned());
        };
        let [b, heads, length, width] = four("q", q)?;
        for (operand, meta, shape) in [
            ("tables", tables, &[b, tables.shape.as_slice().last().copied().unwrap_or(0)][..]),
            ("lengths", lengths, &[b]),
            ("offsets", offsets, &[b]),
        ] {
            if meta.dtype != Dtype::Int32 || meta.shape.as_slice() != shape {
                return Err(format!(
                    "{operand} must be int32 {shape:?} but are {} {}",
                    meta.dtype, meta.shape
                ));
            }
        }
        let (k, v, floats) = match (self.affine, stored) {
            (None, [k, v]) => (four("k", k)?, four("v", v)?, vec![q.clone(), k.clone(), v.clone()]),
            (Some([of_k, of_v]), [_, ks, kb, _, vs, vb]) => {
                let floats = [q, ks, kb, vs, vb].map(Clone::clone).to_vec();
                (shape("k", &stored[..3], of_k)?, shape("v", &stored[3..], of_v)?, floats)
            }
            _ => return Err(format!("has {} arrays of pages", stored.len())),
        };
        let dtype = one_float_type(&floats)?;
        if k[1] == 0 || heads % k[1] != 0 || k[3] != width {
            return Err(format!(
                "k needs shape [P, H, page, {width}] with H a divisor of {heads} but has {k:?}"
            ));
        }
        if v[..3] != k[..3] {
            return Err(format!("v needs shape [{}, {}, {}, D] but has {v:?}", k[0], k[1], k[2]));
        }
        Ok(smallvec![Meta { dtype, shape: laid_out(self.layout, [b, heads, length, v[3]]) }])
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        with_float!(inputs[0].dtype(), E => self.typed::<E>(inputs, outputs))
    }
}

impl PagedAttention {
    fn typed<E: Float>(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let numbers = [1, 2, 3].map(|i| Strided::<i32>::new(&inputs[i]).map(Strided::contiguous));
        let [tables, lengths, offsets] = numbers;
        let (tables, lengths, offsets) = (tables?, lengths?, offsets?);
        let tables = Tables { tables: tables.slice(), lengths: lengths.slice(), offsets: offsets.slice() };
        let q = Strided::<E>::new(&inputs[0])?;
        let q = q.heads("paged_attention", "q")?;
        let out = outputs[0].slice_mut()?;
        let mut attend = |pages: host::Pages<'_, E>| {
            host::paged_attention(Level::best(), q, pages, tables, self.options, self.layout, out)
                .map_err(|e| e.to_string())
        };
        if let Some([of_k, of_v]) = self.affine {
            let (k, v) = (Parts::<E>::new(&inputs[4..7])?, Parts::<E>::new(&inputs[7..10])?);
            return attend(host::Pages::Affine(k.view(of_k, usize::MAX)?, v.view(of_v, usize::MAX)?));
        }
        let (k, v) = (Strided::<E>::new(&inputs[4])?, Strided::<E>::new(&inputs[5])?);
        attend(host::Pages::Dense(k.heads("paged_attention", "k")?, v.heads("paged_attention", "v")?))
    }
}

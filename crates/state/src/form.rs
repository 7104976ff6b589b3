//! In which form a layer's keys and values are stored and read: their declared shape, number format, kernels and masks.
//! Caches arrange planes in time and rows; only this file and [`crate::format`] know what the planes mean.

use crate::error::{Error, Result};
use crate::format::Format;
use crate::mask::{Masks, Seen, Span};
use crate::planes::Planes;
use crate::pool::PagedRead;
use crate::read::AttentionRead;
use crate::snapshot::Saved;
use crate::step::Step;
use strata_contracts::KernelSet;
use strata_kernels::{Offset, append};
use strata_tensor::{Array, Device};

/// The form of one layer.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) format: Format,
    /// The format to change to, and from which length on.
    pub(crate) later: Option<(Format, usize)>,
    pub(crate) kernels: KernelSet,
    /// Attention runs on Strata's host kernels: fast mode on a CPU.
    pub(crate) host_kernels: bool,
    pub(crate) masks: Masks,
    /// In a state that stands in for another while a step is recorded.
    pub(crate) step: Option<Step>,
}

impl Form {
    /// Keys and values in their own type.
    pub(crate) fn dense(kv_heads: u32, head_dim: u32, kernels: KernelSet) -> Self {
        let (format, masks) = (Format::Dense, Masks::default());
        // Without a device to ask there will be an error of its own at the first operation.
        let host_kernels = kernels == KernelSet::Fast && Device::current().is_ok_and(|d| d == Device::Cpu);
        Self { kv_heads, head_dim, format, later: None, kernels, host_kernels, masks, step: None }
    }

    /// Keys `[B, Hkv, L, D]` and values `[B, Hkv, L, Dv]` as they are stored; `rows` is `B` if it is known already.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(crate) fn planes(&self, keys: &Array, values: &Array, rows: Option<usize>) -> Result<Planes> {
        let (k, v) = (keys.shape(), values.shape());
        let declared = |shape: &[i32]| shape.len() == 4 && shape[1] == self.kv_heads as i32 && shape[2] > 0;
        let fits = declared(&k)
            && declared(&v)
            && k[3] == self.head_dim as i32
            && k[0] == v[0]
            && k[2] == v[2]
            && rows.is_none_or(|rows| k[0] as usize == rows);
        if !fits {
            let &Self { kv_heads, head_dim, .. } = self;
            return Err(Error::Shape { kv_heads, head_dim, rows, keys: k, values: v });
        }
        self.format.encode(&Planes::new(vec![keys.clone(), values.clone()]), self.host_kernels)
    }

    /// What queries of rows see; the reference kernels take a mask even where it hides nothing, as mlx-lm's do.
    pub(crate) fn seen(&self, span: Span) -> Seen {
        match self.kernels {
            KernelSet::Reference => Seen::Masked(span),
            KernelSet::Fast => span.simplest(),
        }
    }

    /// A read of pages: where they lie, if a kernel can, else gathered.
    pub(crate) fn read_pages(&self, pages: PagedRead, seen: Seen) -> Result<AttentionRead> {
        let in_place = self.host_kernels && self.format.reads_pages();
        Ok(if in_place {
            AttentionRead::of_pages(pages, seen, self)
        } else {
            let gathered = pages.gathered()?;
            let length = gathered.len();
            self.read(gathered, length, seen)
        })
    }

    /// `buffers` with `new` at positions `start ..`; in place when nobody else holds them.
    pub(crate) fn write(&self, buffers: &Planes, start: usize, new: &Planes) -> Result<Planes> {
        self.write_at(buffers, Offset::At(start as i32), new)
    }

    fn write_at(&self, buffers: &Planes, start: Offset<'_>, new: &Planes) -> Result<Planes> {
        let write = if self.host_kernels { append::append } else { append::reference::append };
        Ok(Planes::new(write(buffers.arrays(), new.arrays(), start)?))
    }

    /// The same form in a state that stands in for another.
    pub(crate) fn recording(&self, step: Step) -> Self {
        Self { step: Some(step), later: None, ..self.clone() }
    }

    /// While a step is recorded: writes the one new position and reads what is live then, both where the step's inputs say.
    pub(crate) fn step(&self, stored: &mut Option<Planes>, new: &Planes) -> Result<Option<AttentionRead>> {
        let (Some(step), Some(buffers)) = (&self.step, &*stored) else { return Ok(None) };
        let written = self.write_at(buffers, Offset::Array(&step.start), new)?;
        *stored = Some(written.clone());
        Ok(Some(AttentionRead::of_step(written, step.end.clone(), self)))
    }

    /// A read of the first `length` stored positions.
    pub(crate) fn read(&self, stored: Planes, length: usize, seen: Seen) -> AttentionRead {
        AttentionRead::new(stored, length, seen, self)
    }

    /// True when a sequence of `length` positions must change its format before it goes on.
    pub(crate) fn is_due(&self, length: usize) -> bool {
        self.later.as_ref().is_some_and(|(_, start)| length > 0 && length >= *start)
    }

    /// This form after its change of format, and what is stored in it.
    pub(crate) fn converted(&self, stored: Option<&Planes>) -> Result<(Self, Option<Planes>)> {
        let Some((format, _)) = &self.later else { return Ok((self.clone(), stored.cloned())) };
        let stored = stored.map(|stored| format.encode(stored, self.host_kernels)).transpose()?;
        Ok((Self { format: format.clone(), later: None, ..self.clone() }, stored))
    }

    /// This form with the format that `saved` has, which it must have or change to, and the saved planes.
    ///
    /// # Errors
    /// [`Error::Snapshot`] for another format or planes that are not of one row of this form.
    pub(crate) fn restored(&self, saved: &Saved) -> Result<(Self, Option<Planes>)> {
        let unfit = |reason: String| Error::Snapshot { reason };
        let mut form = self.clone();
        if let Some((format, _)) = self.later.as_ref().filter(|(format, _)| format.tag() == saved.format) {
            (form.format, form.later) = (format.clone(), None);
        }
        if form.format.tag() != saved.format {
            let there = form.format.tag();
            return Err(unfit(format!("it is stored as {} but the layer keeps {there}", saved.format)));
        }
        // Whether a cache may hold nothing of so many positions is for the cache to say.
        if saved.arrays.is_empty() {
            return Ok((form, None));
        }
        let names = form.format.names();
        let time = saved.arrays.first().map_or(0, |a| a.dim(2));
        let fits = |a: &Array| {
            a.ndim() == 4 && a.dim(0) == 1 && a.dim(1) == self.kv_heads as i32 && a.dim(2) == time
        };
        let width = form.format.width(self.head_dim as usize);
        let found = saved.arrays.first().map_or(0, |a| a.dim(3) as usize);
        if saved.arrays.len() != names.len() || !saved.arrays.iter().all(fits) || time == 0 || width != found
        {
            let shapes: Vec<String> = saved.arrays.iter().map(|a| a.shape().to_string()).collect();
            return Err(unfit(format!(
                "arrays of shapes {} are not {names:?} of its heads",
                shapes.join(", ")
            )));
        }
        Ok((form, Some(Planes::new(saved.arrays.clone()))))
    }

    /// Planes of this form to be saved.
    pub(crate) fn saved(&self, stored: Option<Planes>, length: usize, next: usize) -> Saved {
        let arrays = stored.map_or_else(Vec::new, |stored| stored.arrays().to_vec());
        Saved { format: self.format.tag(), length, next, arrays }
    }
}

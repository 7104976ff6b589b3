//! What queries see after an append: stored positions, mask and kernel, already chosen.

use crate::error::{Error, Result};
use crate::form::Form;
use crate::format::{Format, lowest};
use crate::mask::{Masks, Seen, Span};
use crate::planes::Planes;
use crate::pool::PagedRead;
use strata_kernels::host::heads::Layout;
use strata_kernels::{Offset, attention, paged_attention};
use strata_tensor::fast::{self, Mask};
use strata_tensor::{Array, ops};

/// A read of a layer's keys and values by the queries of the positions just appended. It stays valid, and means the same,
/// when the layer moves on: a layer that shares another's keys and values attends through a clone of its read.
#[derive(Debug, Clone)]
pub struct AttentionRead(Reads);

#[derive(Debug, Clone)]
enum Reads {
    /// All queries at once.
    Span(SpanRead),
    /// One read a query, each of what was stored when its position was the newest.
    Steps(Vec<AttentionRead>),
    /// One read a group of rows; and for each row in order, its place when the groups lie one below the other.
    Groups { reads: Vec<(Vec<usize>, AttentionRead)>, order: Vec<usize> },
}

#[derive(Debug, Clone)]
struct SpanRead {
    stored: Stored,
    seen: Seen,
    format: Format,
    host_kernels: bool,
    masks: Masks,
}

#[derive(Debug, Clone)]
enum Stored {
    /// Every row's positions in order, with room behind the first so many.
    Planes(Planes, usize),
    /// Pages, for a kernel that reads them; gathered for what it does not do.
    Pages(PagedRead),
    /// The same as planes in a step that is recorded: how many positions are live is an input, int32 0-d.
    Step(Planes, Array),
}

impl AttentionRead {
    pub(crate) fn new(buffers: Planes, length: usize, seen: Seen, form: &Form) -> Self {
        Self::of_stored(Stored::Planes(buffers, length), seen, form)
    }

    /// While a step is recorded: of the first `end` stored positions, all of which are seen.
    pub(crate) fn of_step(buffers: Planes, end: Array, form: &Form) -> Self {
        Self::of_stored(Stored::Step(buffers, end), Seen::All, form)
    }

    pub(crate) fn of_pages(pages: PagedRead, seen: Seen, form: &Form) -> Self {
        Self::of_stored(Stored::Pages(pages), seen, form)
    }

    fn of_stored(stored: Stored, seen: Seen, form: &Form) -> Self {
        let (format, masks) = (form.format.clone(), form.masks.clone());
        Self(Reads::Span(SpanRead { stored, seen, format, host_kernels: form.host_kernels, masks }))
    }

    /// Reads of single positions, in order.
    pub(crate) fn steps(reads: Vec<Self>) -> Self {
        Self(Reads::Steps(reads))
    }

    /// Reads of groups of rows, each with the indices of its rows.
    pub(crate) fn groups(reads: Vec<(Vec<usize>, Self)>) -> Self {
        let stacked: Vec<usize> = reads.iter().flat_map(|(rows, _)| rows).copied().collect();
        let mut order = vec![0; stacked.len()];
        stacked.iter().enumerate().for_each(|(place, &row)| order[row] = place);
        Self(Reads::Groups { reads, order })
    }

    /// `softmax(scale · Q Kᵀ + mask) V`: queries `[B, Hq, L, D]` -> `[B, Hq, L, Dv]`.
    ///
    /// # Errors
    /// What MLX reports of shapes that do not fit.
    pub fn attend(&self, queries: &Array, scale: f32) -> Result<Array> {
        self.read(queries, scale, None)
    }

    /// [`AttentionRead::attend`], soft-capped if there is a cap, with the heads of a position side by side, as an output projection reads them:
    /// -> `[B, L, Hq · Dv]`.
    ///
    /// # Errors
    /// What MLX reports of shapes that do not fit.
    pub fn attend_joined(&self, queries: &Array, scale: f32, cap: Option<f32>) -> Result<Array> {
        if let Reads::Span(read) = &self.0
            && let Some(joined) = read.host(queries, scale, cap, Layout::PositionsFirst)?
        {
            return Ok(joined);
        }
        let (b, l) = (queries.dim(0), queries.dim(2));
        Ok(self.read(queries, scale, cap)?.transpose(&[0, 2, 1, 3])?.reshape([b, l, -1])?)
    }

    /// `softmax(cap · tanh(scale · Q Kᵀ / cap) + mask) V` (Gemma 2, arXiv 2408.00118).
    ///
    /// # Errors
    /// What MLX reports of shapes that do not fit.
    pub fn attend_soft_capped(&self, queries: &Array, scale: f32, cap: f32) -> Result<Array> {
        self.read(queries, scale, Some(cap))
    }

    /// Multi-head latent attention (arXiv 2405.04434) of a latent layer, whose keys are the compressed vectors `[B, 1, S, R]`
    /// and whose values are the rope keys `[B, 1, S, Dr]`: `softmax(scale · (Q Cᵀ + Qr Krᵀ) + mask) C`. Queries
    /// `[B, H, L, R]`, already multiplied into the compressed space, and rope queries `[B, H, L, Dr]` -> `[B, H, L, R]`. In
    /// mlx-lm's order of operations (models/deepseek_v3.py).
    ///
    /// # Errors
    /// What MLX reports of shapes that do not fit.
    pub fn attend_latent(&self, queries: &Array, rope_queries: &Array, scale: f32) -> Result<Array> {
        self.attend_expanded(queries, rope_queries, scale, &|latent| Ok((latent.clone(), latent.clone())))
    }

    /// [`AttentionRead::attend_latent`] with keys `[B, H, S, Dn]` and values `[B, H, S, Dv]` that `expand` makes of the
    /// compressed vectors, and queries `[B, H, L, Dn]`: cheaper for long spans. -> `[B, H, L, Dv]`.
    ///
    /// # Errors
    /// What MLX reports of shapes that do not fit; what `expand` reports.
    pub fn attend_expanded(
        &self,
        queries: &Array,
        rope_queries: &Array,
        scale: f32,
        expand: &dyn Fn(&Array) -> Result<(Array, Array)>,
    ) -> Result<Array> {
        if let Reads::Span(read) = &self.0 {
            return read.latent(queries, rope_queries, scale, expand);
        }
        let both = ops::concatenate(&[queries, rope_queries], -1)?;
        let width = queries.dim(-1);
        self.each(&both, &|read, both| {
            let (queries, rope) = (both.slice_axis(3, 0, width)?, both.slice_axis(3, width, both.dim(3))?);
            read.latent(&queries, &rope, scale, expand)
        })
    }

    fn read(&self, queries: &Array, scale: f32, cap: Option<f32>) -> Result<Array> {
        self.each(queries, &|read, queries| read.read(queries, scale, cap))
    }

    fn each(&self, queries: &Array, attend: &dyn Fn(&SpanRead, &Array) -> Result<Array>) -> Result<Array> {
        match &self.0 {
            Reads::Span(read) => attend(read, queries),
            Reads::Steps(reads) => {
                let outs = reads
                    .iter()
                    .zip(0..)
                    .map(|(read, i)| read.each(&queries.slice_axis(2, i, i + 1)?, attend));
                joined(&outs.collect::<Result<Vec<_>>>()?, 2)
            }
            Reads::Groups { reads, order } => {
                let outs =
                    reads.iter().map(|(rows, read)| read.each(&queries.take(&indices(rows)?, 0)?, attend));
                let stacked = joined(&outs.collect::<Result<Vec<_>>>()?, 0)?;
                Ok(stacked.take(&indices(order)?, 0)?)
            }
        }
    }
}

impl SpanRead {
    /// The host kernel's result, where it runs and reads the format. It takes what it can of the mask as numbers.
    fn host(&self, queries: &Array, scale: f32, cap: Option<f32>, layout: Layout) -> Result<Option<Array>> {
        if !self.host_kernels {
            return Ok(None);
        }
        let (buffers, end) = match &self.stored {
            Stored::Planes(buffers, length) => (buffers, Offset::At(*length as i32)),
            Stored::Step(buffers, end) => (buffers, Offset::Array(end)),
            Stored::Pages(pages) => {
                let options = paged_attention::Options { scale, softcap: cap };
                return self.format.on_host_pages(pages, queries, options, layout);
            }
        };
        let (span, mask) = match &self.seen {
            Seen::All => (attention::Span::All, None),
            Seen::Causal => (attention::Span::Causal, None),
            Seen::Masked(span) => match span.window {
                Some(window) if span.roll == 0 && !span.is_padded() => {
                    (attention::Span::Window(window), None)
                }
                _ => (attention::Span::All, Some(self.masks.array(span)?)),
            },
        };
        let options = attention::Options {
            end: Some(end),
            mask: mask.as_ref(),
            softcap: cap,
            ..attention::Options::new(scale, span)
        };
        self.format.on_host(buffers, queries, &options, layout)
    }

    fn read(&self, queries: &Array, scale: f32, cap: Option<f32>) -> Result<Array> {
        if let Some(out) = self.host(queries, scale, cap, Layout::HeadsFirst)? {
            return Ok(out);
        }
        let stored = self.planes()?;
        if cap.is_none() {
            let array;
            let mask = match &self.seen {
                Seen::All => Mask::None,
                Seen::Causal => Mask::Causal,
                Seen::Masked(span) => {
                    array = self.masks.array(span)?;
                    Mask::Array(&array)
                }
            };
            if let Some(out) = self.format.fused(&stored, queries, scale, mask)? {
                return Ok(out);
            }
        }
        let grouped = queries.dim(1) > stored.arrays()[0].dim(1);
        let mask = match self.mask(queries)? {
            Some(array) if grouped && array.ndim() > 3 => Some(array.expand_dims(&[-3])?),
            array => array,
        };
        self.format.by_hand(&stored, queries, scale, cap, mask.as_ref())
    }

    fn latent(
        &self,
        queries: &Array,
        rope_queries: &Array,
        scale: f32,
        expand: &dyn Fn(&Array) -> Result<(Array, Array)>,
    ) -> Result<Array> {
        let (latent, rope_keys) = self.format.decode(&self.planes()?)?;
        let (latent, rope_keys) = (latent.astype(queries.dtype())?, rope_keys.astype(queries.dtype())?);
        let mut bias = rope_queries.multiply_number(scale)?.matmul(&rope_keys.swapaxes(-1, -2)?)?; // [B, H, L, S]
        if let Some(mask) = self.mask(queries)? {
            bias = ops::where_(&mask, &bias, &lowest(&bias)?)?;
        }
        let (keys, values) = expand(&latent)?;
        let mask = Mask::Array(&bias);
        Ok(fast::scaled_dot_product_attention(queries, &keys, &values, scale, mask, None)?)
    }

    /// The positions that are read, as MLX's operations take them.
    fn planes(&self) -> Result<Planes> {
        match &self.stored {
            Stored::Planes(buffers, length) => buffers.slice(0, *length),
            Stored::Pages(pages) => pages.gathered(),
            Stored::Step(..) => {
                Err(Error::Kind { layer: "a recorded step", asked: "a read by MLX's operations" })
            }
        }
    }

    /// The mask as an array that broadcasts to scores `[B, Hq, L, S]`.
    fn mask(&self, queries: &Array) -> Result<Option<Array>> {
        Ok(match &self.seen {
            Seen::All => None,
            Seen::Causal => {
                let keys = match &self.stored {
                    Stored::Planes(_, length) => *length,
                    Stored::Pages(pages) => pages.len(),
                    Stored::Step(planes, _) => planes.len(),
                };
                Some(self.masks.array(&Span::causal(queries.dim(2) as usize, keys))?)
            }
            Seen::Masked(span) => Some(self.masks.array(span)?),
        })
    }
}

fn indices(rows: &[usize]) -> Result<Array> {
    let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    Ok(Array::from_slice(&rows, [rows.len() as i32])?)
}

fn joined(arrays: &[Array], axis: i32) -> Result<Array> {
    Ok(ops::concatenate(&arrays.iter().collect::<Vec<_>>(), axis)?)
}

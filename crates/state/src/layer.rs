//! What one layer keeps: the closed set of caches behind one contract, append then attend.

use crate::error::{Error, Result};
use crate::form::Form;
use crate::mixed::MixedRows;
use crate::plain::PlainCache;
use crate::planes::Planes;
use crate::read::AttentionRead;
use crate::rotating::RotatingCache;
use strata_contracts::KernelSet;
use strata_tensor::Array;

/// What a forward pass is for; it decides the order of reductions, not what is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// One new position a row.
    Decode,
    /// A causal span of new positions.
    Window,
    /// Known positions whose reductions keep the order of single ones.
    Committed,
}

/// On which side of shorter rows padding lies while rows of different lengths are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Before their first token.
    Left,
    /// Behind their last token.
    Right,
}

/// What one layer keeps.
#[derive(Debug, Clone)]
pub enum LayerState {
    /// Keys and values of every position.
    Plain(PlainCache),
    /// Keys and values of the newest positions.
    Rotating(RotatingCache),
    /// Rows of a batch that are not all stored in one form.
    Mixed(MixedRows),
}

/// What every cache does, besides being cloned: arrays are shared by clones until one of them writes.
pub(crate) trait Cache: Sized {
    /// As [`LayerState::append`].
    fn append(&mut self, keys: &Array, values: &Array) -> Result<AttentionRead>;

    /// Gives up the newest `tokens` positions, at most [`Cache::trimmable`].
    fn trim(&mut self, tokens: usize) -> Result<()>;

    /// Positions that can be given up so that what is left is all that would be held without them.
    fn trimmable(&self) -> usize;

    /// What the newest query could see, in time order.
    fn live(&self) -> Result<Option<Planes>>;

    fn form(&self) -> &Form;

    /// Every row's next position.
    fn offsets(&self) -> Vec<i32>;

    /// The same in the format that the form changes to.
    fn converted(&self) -> Result<Self>;

    /// Everything held.
    fn arrays(&self) -> Vec<&Array>;

    /// The rows of several caches, one below the other; those that hold less are padded on the left.
    fn stack(caches: &[&Self]) -> Result<Self>;

    /// The rows at these indices, in their order.
    fn select(&self, indices: &[usize]) -> Result<Self>;

    /// One row by itself, without padding and in memory of its own.
    fn extract(&self, row: usize) -> Result<Self>;

    /// Becomes a batch, of as many rows as there are lengths if it was empty, whose next positions are padded.
    fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()>;

    /// Moves padding on the right of rows to their left.
    fn end_padded(&mut self) -> Result<()>;
}

/// The same expression for whichever cache it is.
macro_rules! each {
    ($layer:expr, $cache:ident => $body:expr) => {
        match $layer {
            LayerState::Plain($cache) => $body,
            LayerState::Rotating($cache) => $body,
            LayerState::Mixed($cache) => $body,
        }
    };
}

impl LayerState {
    /// Stores the keys `[B, Hkv, L, D]` and values `[B, Hkv, L, Dv]` of new positions, and gives what queries at these
    /// positions see.
    ///
    /// # Errors
    /// [`Error::Shape`] for another shape; the layer is unchanged then.
    pub fn append(&mut self, keys: &Array, values: &Array, phase: Phase) -> Result<AttentionRead> {
        self.convert_due()?;
        let by_steps = phase == Phase::Committed && self.form().kernels == KernelSet::Reference;
        if !by_steps || keys.ndim() != 4 || keys.dim(2) <= 1 {
            return each!(self, cache => cache.append(keys, values));
        }
        let before = self.clone();
        let steps = (0..keys.dim(2)).map(|i| {
            let (keys, values) = (keys.slice_axis(2, i, i + 1)?, values.slice_axis(2, i, i + 1)?);
            each!(self, cache => cache.append(&keys, &values))
        });
        let steps = steps.collect::<Result<_>>();
        if steps.is_err() {
            *self = before;
        }
        steps.map(AttentionRead::steps)
    }

    /// The live keys and values, `[B, Hkv, T, D]` each, oldest first and as near as their format keeps them; `None` before
    /// the first append. A ring gives those of its window.
    ///
    /// # Errors
    /// [`Error::MixedRows`]; what MLX reports.
    pub fn live(&self) -> Result<Option<(Array, Array)>> {
        self.live_planes()?.map(|planes| self.form().format.decode(&planes)).transpose()
    }

    /// The live keys and values as they are stored, by name: `keys` and `values`, of affine formats also `keys.scales` and
    /// so on; `[B, Hkv, T, *]` each.
    ///
    /// # Errors
    /// As [`LayerState::live`].
    pub fn live_parts(&self) -> Result<Vec<(&'static str, Array)>> {
        let Some(live) = self.live_planes()? else { return Ok(Vec::new()) };
        let names = self.form().format.names().iter().copied();
        Ok(names.zip(live.arrays().iter().cloned()).collect())
    }

    /// What kind of cache it is, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Plain(_) => "a plain cache",
            Self::Rotating(_) => "a rotating cache",
            Self::Mixed(rows) => rows.name(),
        }
    }

    fn live_planes(&self) -> Result<Option<Planes>> {
        match self {
            Self::Plain(cache) => cache.live(),
            Self::Rotating(cache) => cache.live(),
            Self::Mixed(_) => Err(Error::MixedRows),
        }
    }

    pub(crate) fn form(&self) -> &Form {
        each!(self, cache => cache.form())
    }

    pub(crate) fn arrays(&self) -> Vec<&Array> {
        each!(self, cache => cache.arrays())
    }

    pub(crate) fn trimmable(&self) -> usize {
        each!(self, cache => cache.trimmable())
    }

    pub(crate) fn trim(&mut self, tokens: usize) -> Result<()> {
        each!(self, cache => cache.trim(tokens))
    }

    pub(crate) fn offsets(&self) -> Vec<i32> {
        each!(self, cache => cache.offsets())
    }

    pub(crate) fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()> {
        each!(self, cache => cache.begin_padded(lengths, side))
    }

    pub(crate) fn end_padded(&mut self) -> Result<()> {
        each!(self, cache => cache.end_padded())
    }

    /// The rows of several layers, one below the other.
    pub(crate) fn stack(layers: &[&Self]) -> Result<Self> {
        let mut groups = Vec::new();
        let mut before = 0;
        for layer in layers {
            let rows = layer.offsets().len();
            groups.extend(
                layer
                    .groups()
                    .into_iter()
                    .map(|(rows, layer)| (rows.into_iter().map(|row| row + before).collect(), layer)),
            );
            before += rows;
        }
        MixedRows::of_groups(groups)
    }

    /// The rows of layers in one form, one below the other.
    pub(crate) fn stack_alike(layers: &[&Self]) -> Result<Self> {
        macro_rules! stacked {
            ($kind:ident, $cache:ident) => {{
                let caches = layers.iter().filter_map(|layer| match layer {
                    Self::$kind(cache) => Some(cache),
                    _ => None,
                });
                Ok(Self::$kind($cache::stack(&caches.collect::<Vec<_>>())?))
            }};
        }
        match layers.first() {
            None => Err(Error::NoRows),
            Some(Self::Plain(_)) => stacked!(Plain, PlainCache),
            Some(Self::Rotating(_)) => stacked!(Rotating, RotatingCache),
            Some(Self::Mixed(_)) => Self::stack(layers),
        }
    }

    pub(crate) fn select(&self, rows: &[usize]) -> Result<Self> {
        Ok(match self {
            Self::Plain(cache) => Self::Plain(cache.select(rows)?),
            Self::Rotating(cache) => Self::Rotating(cache.select(rows)?),
            Self::Mixed(mixed) => mixed.select(rows)?,
        })
    }

    pub(crate) fn extract(&self, row: usize) -> Result<Self> {
        Ok(match self {
            Self::Plain(cache) => Self::Plain(cache.extract(row)?),
            Self::Rotating(cache) => Self::Rotating(cache.extract(row)?),
            Self::Mixed(mixed) => mixed.extract(row)?,
        })
    }

    fn converted(&self) -> Result<Self> {
        Ok(match self {
            Self::Plain(cache) => Self::Plain(cache.converted()?),
            Self::Rotating(cache) => Self::Rotating(cache.converted()?),
            Self::Mixed(_) => self.clone(),
        })
    }

    /// The layer's groups of rows in one form each.
    fn groups(&self) -> Vec<(Vec<usize>, Self)> {
        match self {
            Self::Mixed(mixed) => mixed.groups().to_vec(),
            uniform => vec![((0..uniform.offsets().len()).collect(), uniform.clone())],
        }
    }

    /// Changes the format of rows that have become long enough for it.
    fn convert_due(&mut self) -> Result<()> {
        let is_due = |layer: &Self, row: usize| layer.form().is_due(layer.offsets()[row].max(0) as usize);
        let groups = match self {
            Self::Mixed(mixed) => mixed.groups(),
            uniform if uniform.form().later.is_none() => return Ok(()),
            _ => &self.groups(),
        };
        let mut changed = Vec::new();
        let mut any = false;
        for (rows, layer) in groups {
            let (due, rest): (Vec<usize>, Vec<usize>) = (0..rows.len()).partition(|&row| is_due(layer, row));
            any |= !due.is_empty();
            let places = |locals: &[usize]| locals.iter().map(|&local| rows[local]).collect::<Vec<_>>();
            if rest.is_empty() {
                changed.push((rows.clone(), layer.converted()?));
            } else if due.is_empty() {
                changed.push((rows.clone(), layer.clone()));
            } else {
                changed.push((places(&rest), layer.select(&rest)?));
                changed.push((places(&due), layer.select(&due)?.converted()?));
            }
        }
        if any {
            *self = match &changed[..] {
                [(_, only)] => only.clone(),
                _ => MixedRows::of_groups(changed)?,
            };
        }
        Ok(())
    }
}

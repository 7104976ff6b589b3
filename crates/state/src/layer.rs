//! What one layer keeps: the closed set of caches behind one contract, append then attend.

use crate::error::{Error, Result};
use crate::plain::PlainCache;
use crate::planes::Planes;
use crate::read::AttentionRead;
use crate::rotating::RotatingCache;
use crate::rows::Rows;
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

/// What one layer keeps.
#[derive(Debug, Clone)]
pub enum LayerState {
    /// Keys and values of every position.
    Plain(PlainCache),
    /// Keys and values of the newest positions.
    Rotating(RotatingCache),
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

    fn kernels(&self) -> KernelSet;

    /// Everything held.
    fn arrays(&self) -> &[Array];

    /// The rows of several caches, one below the other; those that hold less are padded on the left.
    fn stack(caches: &[&Self]) -> Result<Self>;

    /// The rows at these indices, in their order.
    fn select(&self, indices: &[usize]) -> Result<Self>;

    /// One row by itself, without padding and in memory of its own.
    fn extract(&self, row: usize) -> Result<Self>;

    /// Becomes a batch, of `rows` rows if it was empty, whose next positions are padded.
    fn begin_padded(&mut self, rows: usize, pad: &dyn Fn(&mut Rows)) -> Result<()>;

    /// Moves padding on the right of rows to their left.
    fn end_padded(&mut self) -> Result<()>;
}

/// The same expression for whichever cache it is.
macro_rules! each {
    ($layer:expr, $cache:ident => $body:expr) => {
        match $layer {
            LayerState::Plain($cache) => $body,
            LayerState::Rotating($cache) => $body,
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
        let by_steps = phase == Phase::Committed && self.kernels() == KernelSet::Reference;
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

    /// The live keys and values, `[B, Hkv, T, D]` each, oldest first; `None` before the first append. A ring gives those
    /// of its window.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn live(&self) -> Result<Option<(Array, Array)>> {
        let live = each!(self, cache => cache.live()?);
        Ok(live.map(|planes| (planes.arrays()[0].clone(), planes.arrays()[1].clone())))
    }

    /// What kind of cache it is, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Plain(_) => "a plain cache",
            Self::Rotating(_) => "a rotating cache",
        }
    }

    fn kernels(&self) -> KernelSet {
        each!(self, cache => cache.kernels())
    }

    pub(crate) fn arrays(&self) -> &[Array] {
        each!(self, cache => cache.arrays())
    }

    pub(crate) fn trimmable(&self) -> usize {
        each!(self, cache => cache.trimmable())
    }

    pub(crate) fn trim(&mut self, tokens: usize) -> Result<()> {
        each!(self, cache => cache.trim(tokens))
    }

    pub(crate) fn stack(layers: &[&Self]) -> Result<Self> {
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
        }
    }

    pub(crate) fn select(&self, rows: &[usize]) -> Result<Self> {
        Ok(match self {
            Self::Plain(cache) => Self::Plain(cache.select(rows)?),
            Self::Rotating(cache) => Self::Rotating(cache.select(rows)?),
        })
    }

    pub(crate) fn extract(&self, row: usize) -> Result<Self> {
        Ok(match self {
            Self::Plain(cache) => Self::Plain(cache.extract(row)?),
            Self::Rotating(cache) => Self::Rotating(cache.extract(row)?),
        })
    }

    pub(crate) fn begin_padded(&mut self, rows: usize, pad: &dyn Fn(&mut Rows)) -> Result<()> {
        each!(self, cache => cache.begin_padded(rows, pad))
    }

    pub(crate) fn end_padded(&mut self) -> Result<()> {
        each!(self, cache => cache.end_padded())
    }
}

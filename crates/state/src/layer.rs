//! What one layer keeps: the closed set of caches behind one contract, append then attend.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::form::Form;
use crate::mixed::MixedRows;
use crate::paged::PagedCache;
use crate::plain::PlainCache;
use crate::planes::Planes;
use crate::read::AttentionRead;
use crate::recurrent::{Memory, Recurrence, RecurrentCache};
use crate::rotating::RotatingCache;
use crate::shared::SharedLayer;
use crate::snapshot::Saved;
use crate::step::{Place, Step};
use std::rc::Rc;
use strata_contracts::KernelSet;
use strata_tensor::{Array, ops};

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
    /// Keys and values of every position, in pages.
    Paged(PagedCache),
    /// Keys and values of the newest positions.
    Rotating(RotatingCache),
    /// A recurrence's memory.
    Recurrent(RecurrentCache),
    /// Nothing of its own.
    Shared(SharedLayer),
    /// Rows of a batch that are not all stored in one form.
    Mixed(MixedRows),
}

/// The same expression for whichever cache it is.
macro_rules! each {
    ($layer:expr, $cache:ident => $body:expr) => {
        match $layer {
            LayerState::Plain($cache) => $body,
            LayerState::Paged($cache) => $body,
            LayerState::Rotating($cache) => $body,
            LayerState::Recurrent($cache) => $body,
            LayerState::Shared($cache) => $body,
            LayerState::Mixed($cache) => $body,
        }
    };
}

impl LayerState {
    /// Name of a layer that stores nothing.
    pub(crate) const SHARED: &'static str = "a shared layer";

    /// Stores the keys `[B, Hkv, L, D]` and values `[B, Hkv, L, Dv]` of new positions, and gives what queries at these
    /// positions see.
    ///
    /// # Errors
    /// [`Error::Shape`] for another shape; the layer is unchanged then.
    pub fn append(&mut self, keys: &Array, values: &Array, phase: Phase) -> Result<AttentionRead> {
        self.convert_due()?;
        let by_steps = phase == Phase::Committed && self.form().kernels == KernelSet::Reference;
        if !by_steps || keys.ndim() != 4 || keys.dim(2) <= 1 {
            return self.append_span(keys, values);
        }
        let before = self.clone();
        let steps = (0..keys.dim(2)).map(|i| {
            let (keys, values) = (keys.slice_axis(2, i, i + 1)?, values.slice_axis(2, i, i + 1)?);
            self.append_span(&keys, &values)
        });
        let steps = steps.collect::<Result<_>>();
        if steps.is_err() {
            *self = before;
        }
        steps.map(AttentionRead::steps)
    }

    /// Runs a recurrence over what was computed of new positions alone, `[B, L, *]` each, and remembers them: outputs
    /// `[B, L, *]`. With [`Phase::Committed`] the reference kernels run it position by position.
    ///
    /// # Errors
    /// [`Error::Kind`] for a layer that is not recurrent, [`Error::NoInputs`], what the recurrence reports. The layer is
    /// unchanged then.
    pub fn recur(
        &mut self,
        inputs: &[Array],
        recurrence: &Rc<dyn Recurrence>,
        phase: Phase,
    ) -> Result<Array> {
        let name = self.name();
        let by_steps = phase == Phase::Committed && self.form().kernels == KernelSet::Reference;
        let Self::Recurrent(cache) = self else {
            return Err(Error::Kind { layer: name, asked: "a recurrence" });
        };
        let length = inputs.first().map_or(0, |input| input.dim(1));
        if !by_steps || length <= 1 {
            return cache.recur(inputs, recurrence, phase);
        }
        let mut after = cache.clone();
        let steps = (0..length).map(|i| {
            let inputs = inputs.iter().map(|input| input.slice_axis(1, i, i + 1));
            after.recur(&inputs.collect::<strata_tensor::Result<Vec<_>>>()?, recurrence, phase)
        });
        let outs = steps.collect::<Result<Vec<_>>>()?;
        *cache = after;
        Ok(ops::concatenate(&outs.iter().collect::<Vec<_>>(), 1)?)
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
    /// so on; `[B, Hkv, T, *]` each. Of a recurrent layer `tail` and `state`.
    ///
    /// # Errors
    /// As [`LayerState::live`].
    pub fn live_parts(&self) -> Result<Vec<(&'static str, Array)>> {
        if let Self::Recurrent(cache) = self {
            let Memory { tail, state } = cache.memory();
            let parts = [("tail", tail), ("state", state)].into_iter();
            return Ok(parts.filter_map(|(name, part)| Some((name, part.clone()?))).collect());
        }
        let Some(live) = self.live_planes()? else { return Ok(Vec::new()) };
        let names = self.form().format.names().iter().copied();
        Ok(names.zip(live.arrays().iter().cloned()).collect())
    }

    /// What kind of cache it is, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Plain(_) => "a plain cache",
            Self::Paged(_) => "a paged cache",
            Self::Rotating(_) => "a rotating cache",
            Self::Recurrent(_) => "a recurrent memory",
            Self::Shared(_) => Self::SHARED,
            Self::Mixed(rows) => rows.name(),
        }
    }

    /// What rows must have in common to lie in one batch.
    pub(crate) fn description(&self) -> String {
        let form = self.form();
        let format = form.later.as_ref().map_or(&form.format, |(format, _)| format).tag();
        let &Form { kv_heads, head_dim, .. } = form;
        match self {
            Self::Recurrent(_) | Self::Shared(_) => self.name().to_owned(),
            Self::Mixed(rows) => rows.groups()[0].1.description(),
            Self::Rotating(ring) => {
                format!("{} of {}, {kv_heads} x {head_dim}, {format}", self.name(), ring.window())
            }
            Self::Plain(_) | Self::Paged(_) => format!("{}, {kv_heads} x {head_dim}, {format}", self.name()),
        }
    }

    fn live_planes(&self) -> Result<Option<Planes>> {
        match self {
            Self::Plain(cache) => cache.live(),
            Self::Paged(cache) => cache.live(),
            Self::Rotating(cache) => cache.live(),
            Self::Recurrent(cache) => cache.live(),
            Self::Shared(layer) => layer.live(),
            Self::Mixed(_) => Err(Error::MixedRows),
        }
    }

    pub(crate) fn form(&self) -> &Form {
        each!(self, cache => cache.form())
    }

    pub(crate) fn arrays(&self) -> Vec<&Array> {
        each!(self, cache => cache.arrays())
    }

    /// Where a recorded step writes the next position; `None` where it cannot.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Self::Plain(cache) => cache.place(),
            Self::Rotating(cache) => cache.place(),
            _ => None,
        }
    }

    /// The layer over placeholders, for a step to be recorded.
    pub(crate) fn stand_in(&self, stored: Planes, step: Step) -> Self {
        match self {
            Self::Plain(cache) => Self::Plain(cache.stand_in(stored, step)),
            Self::Rotating(cache) => Self::Rotating(cache.stand_in(stored, step)),
            other => other.clone(),
        }
    }

    /// A recorded step has written the next position at `place`.
    pub(crate) fn stepped(&mut self, stored: Planes, place: Place) {
        match self {
            Self::Plain(cache) => cache.stepped(stored, place),
            Self::Rotating(cache) => cache.stepped(stored, place),
            _ => {}
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        each!(self, cache => cache.bytes())
    }

    pub(crate) fn trimmable(&self) -> usize {
        each!(self, cache => cache.trimmable())
    }

    pub(crate) fn trim(&mut self, tokens: usize) -> Result<()> {
        each!(self, cache => cache.trim(tokens))
    }

    /// Tokens of every row, without padding.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        each!(self, cache => cache.lengths())
    }

    /// As [`LayerState::append`], in the form that the layer has.
    pub(crate) fn append_span(&mut self, keys: &Array, values: &Array) -> Result<AttentionRead> {
        each!(self, cache => cache.append(keys, values))
    }

    pub(crate) fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()> {
        each!(self, cache => cache.begin_padded(lengths, side))
    }

    pub(crate) fn end_padded(&mut self) -> Result<()> {
        each!(self, cache => cache.end_padded())
    }

    /// As [`Cache::begin`](crate::cache::Cache::begin), after a change of format that is due.
    pub(crate) fn begin_round(&mut self) -> Result<Self> {
        self.convert_due()?;
        Ok(self.begin())
    }

    pub(crate) fn begin(&mut self) -> Self {
        match self {
            Self::Plain(cache) => Self::Plain(cache.begin()),
            Self::Paged(cache) => Self::Paged(cache.begin()),
            Self::Rotating(cache) => Self::Rotating(cache.begin()),
            Self::Recurrent(cache) => Self::Recurrent(cache.begin()),
            Self::Shared(layer) => Self::Shared(layer.begin()),
            Self::Mixed(rows) => Self::Mixed(rows.begin()),
        }
    }

    pub(crate) fn rollback(&mut self, before: Self) {
        match (self, before) {
            (Self::Plain(cache), Self::Plain(before)) => cache.rollback(before),
            (Self::Paged(cache), Self::Paged(before)) => cache.rollback(before),
            (Self::Rotating(cache), Self::Rotating(before)) => cache.rollback(before),
            (Self::Recurrent(cache), Self::Recurrent(before)) => cache.rollback(before),
            (Self::Shared(_), Self::Shared(_)) => {}
            (Self::Mixed(rows), Self::Mixed(before)) => rows.rollback(before),
            (layer, before) => *layer = before,
        }
    }

    pub(crate) fn accept(&mut self, before: &Self) {
        match (self, before) {
            (Self::Plain(cache), Self::Plain(before)) => cache.accept(before),
            (Self::Paged(cache), Self::Paged(before)) => cache.accept(before),
            (Self::Rotating(cache), Self::Rotating(before)) => cache.accept(before),
            (Self::Recurrent(cache), Self::Recurrent(before)) => cache.accept(before),
            (Self::Mixed(rows), Self::Mixed(before)) => rows.accept(before),
            _ => {}
        }
    }

    pub(crate) fn commit(&mut self, before: &Self, keep: &[usize]) -> Result<()> {
        match (self, before) {
            (Self::Plain(cache), Self::Plain(before)) => cache.commit(before, keep),
            (Self::Paged(cache), Self::Paged(before)) => cache.commit(before, keep),
            (Self::Rotating(cache), Self::Rotating(before)) => cache.commit(before, keep),
            (Self::Recurrent(cache), Self::Recurrent(before)) => cache.commit(before, keep),
            (Self::Shared(_), Self::Shared(_)) => Ok(()),
            (Self::Mixed(rows), Self::Mixed(before)) => rows.commit(before, keep),
            _ => Err(Error::InRound),
        }
    }

    pub(crate) fn saved(&self) -> Result<Saved> {
        match self {
            Self::Plain(cache) => cache.saved(),
            Self::Paged(cache) => cache.saved(),
            Self::Rotating(cache) => cache.saved(),
            Self::Recurrent(cache) => cache.saved(),
            Self::Shared(layer) => layer.saved(),
            Self::Mixed(_) => Err(Error::MixedRows),
        }
    }

    pub(crate) fn restored(&self, saved: Saved) -> Result<Self> {
        Ok(match self {
            Self::Plain(cache) => Self::Plain(cache.restored(saved)?),
            Self::Paged(cache) => Self::Paged(cache.restored(saved)?),
            Self::Rotating(cache) => Self::Rotating(cache.restored(saved)?),
            Self::Recurrent(cache) => Self::Recurrent(cache.restored(saved)?),
            Self::Shared(layer) => Self::Shared(layer.restored(saved)?),
            Self::Mixed(_) => return Err(Error::MixedRows),
        })
    }

    /// The rows of several layers, one below the other.
    pub(crate) fn stack(layers: &[&Self]) -> Result<Self> {
        if let Some(Self::Shared(layer)) = layers.first() {
            return Ok(Self::Shared(layer.clone()));
        }
        let mut groups = Vec::new();
        let mut before = 0;
        for layer in layers {
            let rows = layer.lengths().len();
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
            Some(Self::Paged(_)) => stacked!(Paged, PagedCache),
            Some(Self::Rotating(_)) => stacked!(Rotating, RotatingCache),
            Some(Self::Recurrent(_)) => stacked!(Recurrent, RecurrentCache),
            Some(Self::Shared(_)) => stacked!(Shared, SharedLayer),
            Some(Self::Mixed(_)) => Self::stack(layers),
        }
    }

    pub(crate) fn select(&self, rows: &[usize]) -> Result<Self> {
        Ok(match self {
            Self::Plain(cache) => Self::Plain(cache.select(rows)?),
            Self::Paged(cache) => Self::Paged(cache.select(rows)?),
            Self::Rotating(cache) => Self::Rotating(cache.select(rows)?),
            Self::Recurrent(cache) => Self::Recurrent(cache.select(rows)?),
            Self::Shared(layer) => Self::Shared(layer.select(rows)?),
            Self::Mixed(mixed) => mixed.select(rows)?,
        })
    }

    pub(crate) fn extract(&self, row: usize) -> Result<Self> {
        Ok(match self {
            Self::Plain(cache) => Self::Plain(cache.extract(row)?),
            Self::Paged(cache) => Self::Paged(cache.extract(row)?),
            Self::Rotating(cache) => Self::Rotating(cache.extract(row)?),
            Self::Recurrent(cache) => Self::Recurrent(cache.extract(row)?),
            Self::Shared(layer) => Self::Shared(layer.extract(row)?),
            Self::Mixed(mixed) => mixed.extract(row)?,
        })
    }

    fn converted(&self) -> Result<Self> {
        Ok(match self {
            Self::Plain(cache) => Self::Plain(cache.converted()?),
            Self::Paged(cache) => Self::Paged(cache.converted()?),
            Self::Rotating(cache) => Self::Rotating(cache.converted()?),
            Self::Recurrent(_) | Self::Shared(_) | Self::Mixed(_) => self.clone(),
        })
    }

    /// The layer's groups of rows in one form each.
    fn groups(&self) -> Vec<(Vec<usize>, Self)> {
        match self {
            Self::Mixed(mixed) => mixed.groups().to_vec(),
            uniform => vec![((0..uniform.lengths().len()).collect(), uniform.clone())],
        }
    }

    /// Changes the format of rows that have become long enough for it.
    fn convert_due(&mut self) -> Result<()> {
        let is_due = |layer: &Self, row: usize| layer.form().is_due(layer.lengths()[row]);
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

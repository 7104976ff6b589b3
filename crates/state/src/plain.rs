//! Keys and values of every position, in buffers that grow in steps (mlx-lm's `KVCache` and, for rows of different lengths,
//! `BatchKVCache`, models/cache.py).

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::form::Form;
use crate::layer::Side;
use crate::mask::{Seen, Span};
use crate::planes::Planes;
use crate::read::AttentionRead;
use crate::rows::Rows;
use crate::snapshot::Saved;
use crate::step::{Place, Step};
use strata_contracts::KernelSet;
use strata_tensor::Array;

/// Positions by which buffers grow.
pub(crate) const STEP: usize = 256;

/// Keys and values of every position so far.
#[derive(Debug, Clone)]
pub struct PlainCache {
    form: Form,
    /// With room behind the live positions.
    stored: Option<Planes>,
    /// Live positions, padding included.
    length: usize,
    /// `None`: no row is padded, nor is one expected to be.
    rows: Option<Rows>,
}

impl PlainCache {
    /// An empty cache.
    pub fn new(kv_heads: u32, head_dim: u32, kernels: KernelSet) -> Self {
        Self::of_form(Form::dense(kv_heads, head_dim, kernels))
    }

    pub(crate) fn of_form(form: Form) -> Self {
        Self { form, stored: None, length: 0, rows: None }
    }
}

impl Cache for PlainCache {
    fn append(&mut self, keys: &Array, values: &Array) -> Result<AttentionRead> {
        let new = self.form.planes(keys, values, self.row_count())?;
        if let Some(read) = self.form.step(&mut self.stored, &new)? {
            return Ok(read);
        }
        let end = self.length + new.len();
        let seen = self.seen(new.len());
        let stored = self.form.write(&self.with_room(&new)?, self.length, &new)?;
        let read = self.form.read(stored.clone(), end, seen);
        (self.stored, self.length) = (Some(stored), end);
        self.rows.iter_mut().for_each(|rows| rows.advance(new.len()));
        Ok(read)
    }

    fn trim(&mut self, tokens: usize) -> Result<()> {
        self.length -= tokens;
        self.rows.iter_mut().for_each(|rows| rows.retreat(tokens));
        Ok(())
    }

    fn trimmable(&self) -> usize {
        self.rows.as_ref().map_or(self.length, Rows::shortest)
    }

    fn live(&self) -> Result<Option<Planes>> {
        self.stored.as_ref().map(|stored| stored.slice(0, self.length)).transpose()
    }

    fn form(&self) -> &Form {
        &self.form
    }

    fn lengths(&self) -> Vec<usize> {
        self.all_rows().lengths()
    }

    fn converted(&self) -> Result<Self> {
        let (form, stored) = self.form.converted(self.stored.as_ref())?;
        Ok(Self { form, stored, ..self.clone() })
    }

    /// Going back is giving up the newest positions, so no array is held on to and writing stays in place.
    fn begin(&mut self) -> Self {
        let before = Self { stored: None, ..self.clone() };
        self.form.later = None;
        before
    }

    fn rollback(&mut self, before: Self) {
        let stored = self.stored.take().filter(|_| before.length > 0);
        let stored = stored.map(|stored| stored.settled().map_or(stored, |(settled, _)| settled));
        *self = Self { stored, ..before };
    }

    fn accept(&mut self, before: &Self) {
        self.form.later.clone_from(&before.form.later);
    }

    fn commit(&mut self, before: &Self, keep: &[usize]) -> Result<()> {
        let most = keep.iter().copied().max().unwrap_or(0);
        let mut after = Self { stored: self.stored.clone(), ..before.clone() };
        after.length += most;
        after.rows.iter_mut().for_each(|rows| rows.advance(most));
        if keep.iter().any(|&n| n < most) {
            let mut rows = after.all_rows();
            rows.shift(&keep.iter().map(|&n| (most - n) as i32).collect::<Vec<_>>());
            // Padding that all rows have goes, lest rounds in which rows take turns pile it up.
            let surplus = rows.padding().iter().copied().min().unwrap_or(0);
            let shifts: Vec<i32> = keep.iter().map(|&n| (most - n) as i32 - surplus).collect();
            after.stored = after.stored.map(|stored| stored.roll_rows(&shifts)).transpose()?;
            rows.drop_oldest(surplus);
            after.length -= surplus as usize;
            after.rows = Some(rows);
        }
        *self = after;
        Ok(())
    }

    fn arrays(&self) -> Vec<&Array> {
        self.stored.iter().flat_map(Planes::arrays).collect()
    }

    fn saved(&self) -> Result<Saved> {
        Ok(self.form.saved(self.live()?, self.length, self.length))
    }

    fn restored(&self, saved: Saved) -> Result<Self> {
        let (form, stored) = self.form.restored(&saved)?;
        if stored.as_ref().map_or(0, Planes::len) != saved.length {
            return Err(Error::Snapshot { reason: format!("it does not hold {} positions", saved.length) });
        }
        Ok(Self { form, stored, length: saved.length, ..self.clone() })
    }

    fn stack(caches: &[&Self]) -> Result<Self> {
        let length = caches.iter().map(|c| c.length).max().unwrap_or(0);
        let mut rows = Rows::uniform(0, 0);
        for cache in caches {
            let mut own = cache.all_rows();
            own.drop_oldest(cache.length as i32 - length as i32);
            rows.extend(&own);
        }
        let stored = match caches.iter().find_map(|c| c.stored.as_ref()) {
            Some(like) => {
                let room = (length + 1).next_multiple_of(STEP) - length;
                let parts = caches.iter().map(|c| match c.live()? {
                    Some(live) => live.padded(length - c.length, room),
                    None => like.blank(c.all_rows().count(), length + room),
                });
                let parts: Vec<Planes> = parts.collect::<Result<_>>()?;
                Some(Planes::stack(&parts.iter().collect::<Vec<_>>())?)
            }
            None => None,
        };
        Ok(Self { stored, length, rows: Some(rows), ..caches[0].clone() })
    }

    fn select(&self, indices: &[usize]) -> Result<Self> {
        let mut rows = self.all_rows().select(indices);
        let Some(stored) = &self.stored else { return Ok(Self { rows: Some(rows), ..self.clone() }) };
        // While a padded span is open, padding is counted before it is stored.
        let planned = rows.padding().iter().copied().min().unwrap_or(0);
        let surplus = planned.min(self.length as i32);
        rows.drop_oldest(surplus);
        let stored = stored.slice(surplus as usize, stored.len())?.take_rows(indices)?;
        let length = self.length - surplus as usize;
        Ok(Self { stored: Some(stored), length, rows: Some(rows), ..self.clone() })
    }

    fn extract(&self, row: usize) -> Result<Self> {
        let start = self.all_rows().padding()[row] as usize;
        let stored = match &self.stored {
            Some(stored) if start < self.length => Some(stored.slice(start, self.length)?.take_rows(&[row])?),
            _ => None,
        };
        Ok(Self { stored, length: self.length.saturating_sub(start), rows: None, ..self.clone() })
    }

    fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()> {
        if self.length == 0 && self.rows.is_none() {
            self.rows = Some(Rows::uniform(lengths.len(), 0));
        }
        let mut rows = self.all_rows();
        rows.pad(lengths, side);
        self.rows = Some(rows);
        Ok(())
    }

    fn end_padded(&mut self) -> Result<()> {
        let Some(rows) = &mut self.rows else { return Ok(()) };
        if let (Some(shifts), Some(stored)) = (rows.overhang(), &self.stored) {
            self.stored = Some(stored.roll_rows(&shifts)?);
            rows.shift(&shifts);
        }
        rows.close();
        Ok(())
    }
}

impl PlainCache {
    /// Where the next position goes if it can be written in place and sees all that is live; `None` if appending it takes
    /// more than that.
    pub(crate) fn place(&self) -> Option<Place> {
        let place = Place { start: self.length, end: self.length + 1 };
        let room = self.stored.as_ref().map_or(0, Planes::len);
        let open = self.rows.as_ref().is_some_and(Rows::are_open);
        let steady = place.end <= room && !open && !self.form.is_due(self.length);
        (steady && matches!(self.seen(1), Seen::All)).then_some(place)
    }

    /// This cache over placeholders, for a step to be recorded.
    pub(crate) fn stand_in(&self, stored: Planes, step: Step) -> Self {
        Self { form: self.form.recording(step), stored: Some(stored), ..self.clone() }
    }

    /// A recorded step has written the next position at `place`.
    pub(crate) fn stepped(&mut self, stored: Planes, place: Place) {
        (self.stored, self.length) = (Some(stored), place.end);
        self.rows.iter_mut().for_each(|rows| rows.advance(1));
    }

    /// What `queries` new positions see once they are stored.
    fn seen(&self, queries: usize) -> Seen {
        let Some(rows) = &self.rows else { return if queries == 1 { Seen::All } else { Seen::Causal } };
        let span = Span::causal(queries, self.length + queries);
        self.form.seen(Span { padding: Some(rows.padding().to_vec()), ..span })
    }

    /// Buffers with room for `new` behind the live positions.
    fn with_room(&self, new: &Planes) -> Result<Planes> {
        let end = self.length + new.len();
        let capacity = end.next_multiple_of(STEP);
        match &self.stored {
            Some(stored) if end <= stored.len() => Ok(stored.clone()),
            Some(stored) => stored.slice(0, self.length)?.padded(0, capacity - self.length),
            None => new.room(capacity),
        }
    }

    /// Rows, once they are known.
    fn row_count(&self) -> Option<usize> {
        self.stored.as_ref().map(Planes::rows).or_else(|| self.rows.as_ref().map(Rows::count))
    }

    fn all_rows(&self) -> Rows {
        self.rows.clone().unwrap_or_else(|| Rows::uniform(self.row_count().unwrap_or(1), self.length))
    }
}

//! Keys and values of the newest positions only, in a ring (mlx-lm's `RotatingKVCache` and, for rows of different lengths,
//! `BatchRotatingKVCache`, models/cache.py). Single positions are written over the oldest one, in place; spans are put
//! behind the ring in time order, so that a span's first query still sees a whole window. Attention reads the ring as it
//! lies: the order of sums is mlx-lm's.
//!
//! A round keeps the ring from before it and what was appended since. What is kept of that is then written as single
//! positions, so the ring lies as it would without the rest.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::form::Form;
use crate::layer::Side;
use crate::mask::{Seen, Span};
use crate::plain::STEP;
use crate::planes::Planes;
use crate::read::AttentionRead;
use crate::rows::Rows;
use crate::snapshot::Saved;
use crate::step::{Place, Step};
use strata_contracts::KernelSet;
use strata_tensor::Array;

/// Keys and values of the newest `window` positions and, if asked for, of the first `keep`.
#[derive(Debug, Clone)]
pub struct RotatingCache {
    form: Form,
    window: usize,
    keep: usize,
    /// At most `window` positions while single ones are written, up to `window - 1` more than the span after a span.
    stored: Option<Planes>,
    /// Positions seen; of a batch, at least those that its longest row held when it joined.
    length: usize,
    /// Where the next single position goes, before wrapping around.
    next: usize,
    /// `None`: no row is padded, nor is one expected to be. Padding is counted in time order.
    rows: Option<Rows>,
    /// What has been appended in the round that is open.
    round: Option<Vec<Planes>>,
}

/// What an append leaves.
struct Appended {
    stored: Planes,
    next: usize,
    /// Oldest positions that are stored no more.
    dropped: usize,
    /// Places by which rows moved right.
    shifts: Option<Vec<i32>>,
}

impl RotatingCache {
    /// An empty ring of `window` positions, at least 1.
    pub fn new(kv_heads: u32, head_dim: u32, window: u32, kernels: KernelSet) -> Self {
        Self::of_form(Form::dense(kv_heads, head_dim, kernels), window)
    }

    pub(crate) fn of_form(form: Form, window: u32) -> Self {
        let window = window.max(1) as usize;
        Self { form, window, keep: 0, stored: None, length: 0, next: 0, rows: None, round: None }
    }

    /// Positions that a query sees, its own included.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Never overwrites the first `keep` positions, of which there are fewer than the ring has.
    #[must_use]
    pub fn keeping(mut self, keep: u32) -> Self {
        self.keep = (keep as usize).min(self.window - 1);
        self
    }
}

impl Cache for RotatingCache {
    fn append(&mut self, keys: &Array, values: &Array) -> Result<AttentionRead> {
        let new = self.form.planes(keys, values, self.row_count())?;
        if let Some(read) = self.form.step(&mut self.stored, &new)? {
            return Ok(read);
        }
        let in_place = new.len() == 1 && !self.rows.as_ref().is_some_and(Rows::are_open);
        let seen = self.seen(new.len(), in_place);
        let live = self.push(&new, in_place)?;
        self.round.iter_mut().for_each(|round| round.push(new.clone()));
        let length = live.len();
        Ok(self.form.read(live, length, seen))
    }

    fn trim(&mut self, tokens: usize) -> Result<()> {
        if tokens == 0 {
            return Ok(());
        }
        let Some(ordered) = self.in_time_order()? else { return Ok(()) };
        let left = ordered.len() - tokens;
        self.stored = if left == 0 { None } else { Some(ordered.slice(0, left)?) };
        self.length = if self.rows.is_some() { left } else { self.length - tokens };
        self.next = left;
        self.rows.iter_mut().for_each(|rows| rows.retreat(tokens));
        Ok(())
    }

    fn trimmable(&self) -> usize {
        let stored = self.stored.as_ref().map_or(0, |stored| stored.len().min(self.length)) as i32;
        let rows = self.all_rows();
        let possible = rows.padding().iter().zip(rows.offsets()).map(|(padding, &offset)| {
            let held = stored - (*padding).max(0);
            if held >= offset {
                offset.max(0) as usize
            } else {
                (held.max(0) as usize).saturating_sub(self.window)
            }
        });
        possible.min().unwrap_or(0)
    }

    fn live(&self) -> Result<Option<Planes>> {
        let Some(ordered) = self.in_time_order()? else { return Ok(None) };
        let surplus = ordered.len().saturating_sub(self.window);
        Ok(Some(self.without_oldest(&ordered, surplus)?))
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

    fn begin(&mut self) -> Self {
        let before = self.clone();
        self.form.later = None;
        self.round = Some(Vec::new());
        before
    }

    fn rollback(&mut self, before: Self) {
        *self = before;
    }

    fn accept(&mut self, before: &Self) {
        self.form.later.clone_from(&before.form.later);
        self.round = None;
    }

    fn commit(&mut self, before: &Self, keep: &[usize]) -> Result<()> {
        let most = keep.iter().copied().max().unwrap_or(0);
        let round = self.round.take().unwrap_or_default();
        let mut after = before.clone();
        if most > 0 {
            let kept = Planes::concatenate(&round.iter().collect::<Vec<_>>())?.slice(0, most)?;
            if keep.iter().all(|&n| n == most) {
                (0..most).try_for_each(|i| after.push(&kept.slice(i, i + 1)?, true).map(drop))?;
            } else {
                after.push_uneven(&kept, keep)?;
            }
        }
        *self = after;
        Ok(())
    }

    fn arrays(&self) -> Vec<&Array> {
        self.stored.iter().flat_map(Planes::arrays).collect()
    }

    fn saved(&self) -> Result<Saved> {
        let stored = self.stored.as_ref().map(|stored| stored.slice(0, stored.len().min(self.length)));
        Ok(self.form.saved(stored.transpose()?, self.length, self.next))
    }

    fn restored(&self, saved: Saved) -> Result<Self> {
        let (form, stored) = self.form.restored(&saved)?;
        let (held, length, next) = (stored.as_ref().map_or(0, Planes::len), saved.length, saved.next);
        // Not wrapped: the ring ends where it is written next. Wrapped: it is full.
        let fits = (next == held && held >= length.min(self.window - 1))
            || (held == self.window && length >= held && (self.keep..=held).contains(&next));
        if !fits || held > length {
            let reason =
                format!("a ring of {} cannot hold {held} of {length} positions up to {next}", self.window);
            return Err(Error::Snapshot { reason });
        }
        Ok(Self { form, stored, length, next, ..self.clone() })
    }

    fn stack(caches: &[&Self]) -> Result<Self> {
        let mut caches = caches.iter().map(|c| c.as_batch()).collect::<Result<Vec<_>>>()?;
        let alike = caches.iter().all(|c| c.next == caches[0].next && c.wrapped() == caches[0].wrapped());
        if !(alike && caches[0].wrapped()) {
            for cache in &mut caches {
                cache.stored = cache.in_time_order()?;
                cache.next = cache.stored.as_ref().map_or(0, Planes::len);
            }
        }
        let next = caches.iter().map(|c| c.next).max().unwrap_or(0);
        let length = caches.iter().map(|c| c.length).max().unwrap_or(0);
        let mut rows = Rows::uniform(0, 0);
        for cache in &caches {
            let mut own = cache.all_rows();
            own.drop_oldest(cache.next as i32 - next as i32);
            rows.extend(&own);
        }
        let stored = match caches.iter().find_map(|c| c.stored.as_ref()) {
            Some(like) => {
                let parts = caches.iter().map(|c| match &c.stored {
                    Some(stored) => stored.padded(next - c.next, 0),
                    None => like.blank(c.all_rows().count(), next),
                });
                let parts: Vec<Planes> = parts.collect::<Result<_>>()?;
                Some(Planes::stack(&parts.iter().collect::<Vec<_>>())?)
            }
            None => None,
        };
        Ok(Self { stored, length, next, rows: Some(rows), ..caches[0].clone() })
    }

    fn select(&self, indices: &[usize]) -> Result<Self> {
        let batch = self.as_batch()?;
        let stored = batch.stored.as_ref().map(|stored| stored.take_rows(indices)).transpose()?;
        Ok(Self { stored, rows: Some(batch.all_rows().select(indices)), ..batch })
    }

    fn extract(&self, row: usize) -> Result<Self> {
        let rows = self.all_rows();
        let start = rows.padding()[row].max(0) as usize;
        let stored = match self.in_time_order()? {
            Some(old) if start < old.len() => Some(old.slice(start, old.len())?.take_rows(&[row])?),
            _ => None,
        };
        let next = stored.as_ref().map_or(0, Planes::len);
        let length = rows.offsets()[row].max(0) as usize;
        Ok(Self { stored, length, next, rows: None, ..self.clone() })
    }

    fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()> {
        *self = self.as_batch()?;
        if self.length == 0 && self.row_count() == Some(1) {
            self.rows = Some(Rows::uniform(lengths.len(), 0));
        }
        self.rows.iter_mut().for_each(|rows| rows.pad(lengths, side));
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

impl RotatingCache {
    /// Where the next position goes if it can be written in place and sees all that is live; `None` if appending it takes
    /// more than that.
    pub(crate) fn place(&self) -> Option<Place> {
        let room = self.stored.as_ref().map_or(0, Planes::len);
        let start = if self.next == self.window { self.keep } else { self.next };
        let open = self.rows.as_ref().is_some_and(Rows::are_open);
        let steady = start < room && room <= self.window && !open && !self.form.is_due(self.length);
        let all = steady && self.round.is_none() && matches!(self.seen(1, true), Seen::All);
        all.then_some(Place { start, end: room.min(self.length + 1) })
    }

    /// This cache over placeholders, for a step to be recorded.
    pub(crate) fn stand_in(&self, stored: Planes, step: Step) -> Self {
        Self { form: self.form.recording(step), stored: Some(stored), ..self.clone() }
    }

    /// A recorded step has written the next position at `place`.
    pub(crate) fn stepped(&mut self, stored: Planes, place: Place) {
        let dropped = i32::from(self.length >= self.window);
        (self.stored, self.length, self.next) = (Some(stored), self.length + 1, place.start + 1);
        if let Some(rows) = &mut self.rows {
            rows.drop_oldest(dropped);
            rows.advance(1);
        }
    }

    /// Stores new positions; gives what attention may see.
    fn push(&mut self, new: &Planes, in_place: bool) -> Result<Planes> {
        let Appended { stored, next, dropped, shifts } =
            if in_place { self.with_one(new)? } else { self.with_span(new)? };
        let length = self.length + new.len();
        let live = stored.slice(0, length.min(stored.len()))?;
        (self.stored, self.length, self.next) = (Some(stored), length, next);
        if let Some(rows) = &mut self.rows {
            if let Some(shifts) = shifts {
                rows.shift(&shifts);
            }
            rows.drop_oldest(dropped as i32);
            rows.advance(new.len());
        }
        Ok(live)
    }

    /// What `queries` new positions see of what is stored once they are.
    fn seen(&self, queries: usize, in_place: bool) -> Seen {
        let before = self.length.min(self.window - 1);
        let mut span = Span { window: Some(self.window), ..Span::causal(queries, before + queries) };
        let Some(rows) = &self.rows else {
            return match queries {
                // Over a ring that has wrapped, too: it holds what is seen and no more.
                1 => Seen::All,
                _ => span.simplest(),
            };
        };
        let overwrites = in_place && self.length >= self.window;
        let held = if self.wrapped() { self.window } else { self.next };
        let surplus = (held + usize::from(!in_place)).saturating_sub(self.window);
        let dropped = (surplus + usize::from(overwrites)) as i32;
        span.padding = Some(rows.padding().iter().map(|padding| padding - dropped).collect());
        if overwrites {
            span.roll = if self.next >= self.window { 1 } else { self.next + 1 };
        }
        self.form.seen(span)
    }

    /// The ring with one more position in place.
    fn with_one(&self, new: &Planes) -> Result<Appended> {
        let (mut stored, mut next) = match &self.stored {
            Some(stored) if self.next < stored.len() || stored.len() >= self.window => {
                (stored.clone(), self.next)
            }
            stored => {
                let room = new.room(STEP.min(self.window - self.next))?;
                let parts: Vec<&Planes> = stored.iter().chain([&room]).collect();
                (Planes::concatenate(&parts)?, self.next)
            }
        };
        let surplus = stored.len().saturating_sub(self.window);
        if surplus > 0 {
            stored = self.without_oldest(&stored, surplus)?;
            next = self.window;
        }
        if next == self.window {
            next = self.keep;
        }
        let dropped = surplus + usize::from(self.length >= self.window);
        Ok(Appended { stored: self.form.write(&stored, next, new)?, next: next + 1, dropped, shifts: None })
    }

    /// The newest `window - 1` positions in time order with a span behind them.
    fn with_span(&self, new: &Planes) -> Result<Appended> {
        let Some(mut old) = self.in_time_order()? else {
            let next = new.len();
            return Ok(Appended { stored: new.clone(), next, dropped: 0, shifts: None });
        };
        let shifts = self.rows.as_ref().and_then(Rows::overhang);
        if let Some(shifts) = &shifts {
            old = old.roll_rows(shifts)?;
        }
        let dropped = (old.len() + 1).saturating_sub(self.window);
        let stored = Planes::concatenate(&[&self.without_oldest(&old, dropped)?, new])?;
        let next = stored.len();
        Ok(Appended { stored, next, dropped, shifts })
    }

    /// Stores the first `keep` of new positions of each row; the ring lies in time order then.
    fn push_uneven(&mut self, new: &Planes, keep: &[usize]) -> Result<()> {
        let old = self.in_time_order()?;
        let parts: Vec<&Planes> = old.iter().chain([new]).collect();
        let shifts: Vec<i32> = keep.iter().map(|&n| (new.len() - n) as i32).collect();
        let all = Planes::concatenate(&parts)?.roll_rows(&shifts)?;
        let dropped = all.len().saturating_sub(self.window);
        let stored = all.slice(dropped, all.len())?;
        self.length += new.len();
        self.next = stored.len();
        self.stored = Some(stored);
        let mut rows = self.all_rows();
        rows.advance(new.len());
        rows.shift(&shifts);
        rows.drop_oldest(dropped as i32);
        self.rows = Some(rows);
        Ok(())
    }

    /// What is stored, oldest first.
    fn in_time_order(&self) -> Result<Option<Planes>> {
        let Some(stored) = &self.stored else { return Ok(None) };
        let (keep, next, end) = (self.keep, self.next, stored.len());
        if !self.wrapped() {
            return Ok(Some(stored.slice(0, next)?));
        }
        let parts = [stored.slice(0, keep)?, stored.slice(next, end)?, stored.slice(keep, next)?];
        Ok(Some(Planes::concatenate(&[&parts[0], &parts[1], &parts[2]])?))
    }

    /// True when newer positions lie before older ones.
    fn wrapped(&self) -> bool {
        self.next < self.length && self.stored.as_ref().is_some_and(|stored| self.next != stored.len())
    }

    /// Planes in time order without the oldest `surplus` positions that need not be kept.
    fn without_oldest(&self, planes: &Planes, surplus: usize) -> Result<Planes> {
        if surplus == 0 {
            return Ok(planes.clone());
        }
        let newest = planes.slice(surplus + self.keep, planes.len())?;
        Planes::concatenate(&[&planes.slice(0, self.keep)?, &newest])
    }

    /// Rows, once they are known.
    fn row_count(&self) -> Option<usize> {
        self.stored.as_ref().map(Planes::rows).or_else(|| self.rows.as_ref().map(Rows::count))
    }

    fn all_rows(&self) -> Rows {
        self.rows.clone().unwrap_or_else(|| Rows::uniform(self.row_count().unwrap_or(1), self.length))
    }

    /// As a batch: in time order, without what is behind the window.
    fn as_batch(&self) -> Result<Self> {
        if self.keep > 0 {
            return Err(Error::KeptRows { keep: self.keep });
        }
        if self.rows.is_some() {
            return Ok(self.clone());
        }
        let (stored, rows) = (self.live()?, Some(self.all_rows()));
        let held = stored.as_ref().map_or(0, Planes::len);
        Ok(Self { stored, length: held, next: held, rows, ..self.clone() })
    }
}

//! What a recurrent layer remembers: the tail of its short convolution and a state of fixed size (gated delta rule, state
//! space models). It cannot be trimmed. A round therefore keeps what the layer remembered before it and what it computed
//! of each new position alone, and runs the recurrence again over the positions that are kept.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::form::Form;
use crate::layer::{Phase, Side};
use crate::planes::Planes;
use crate::read::AttentionRead;
use crate::rows::Rows;
use crate::snapshot::Saved;
use std::fmt;
use std::rc::Rc;
use strata_contracts::KernelSet;
use strata_tensor::{Array, ops};

/// What has been remembered of all positions so far; `None` before the first one stands for zeros.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Inputs of the convolution at the newest positions, `[B, K - 1, C]`.
    pub tail: Option<Array>,
    /// The recurrent state, `[B, …]`.
    pub state: Option<Array>,
}

/// New positions of a recurrent layer.
#[derive(Debug, Clone)]
pub struct RecurrentSpan<'a> {
    /// What the layer computed of each position alone, `[B, L, *]` each.
    pub inputs: &'a [Array],
    /// bool `[B, L]`, true at real positions. The others must leave the memory as it is. `None`: all are real.
    pub real: Option<Array>,
    /// int32 `[B]`: the position behind each row's last real one; `None`: `L` for all.
    pub ends: Option<Array>,
    /// What the pass is for.
    pub phase: Phase,
}

/// A layer's recurrence.
pub trait Recurrence {
    /// Outputs `[B, L, *]` at new positions, and what is remembered after them.
    ///
    /// # Errors
    /// What the operations report; the memory is as it was then.
    fn run(&self, before: &Memory, span: &RecurrentSpan<'_>) -> Result<(Array, Memory)>;
}

impl RecurrentSpan<'_> {
    /// The newest `tail` positions of the tail before, followed by new positions, `[B, tail + L, C]`: those that end at each
    /// row's last real position.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn tail(&self, inputs: &Array, tail: usize) -> Result<Array> {
        let (tail, length) = (tail as i32, inputs.dim(1));
        let Some(ends) = &self.ends else {
            return Ok(inputs.slice_axis(1, length - tail, length)?.contiguous()?);
        };
        let offsets = ops::arange(0.0, f64::from(tail), 1.0, ends.dtype())?;
        let places = ends.expand_dims(&[1])?.add(&offsets)?.expand_dims(&[2])?; // [B, tail, 1]
        Ok(inputs.take_along_axis(&places, 1)?)
    }
}

/// Inputs of one pass and what ran over them.
type Pass = (Vec<Array>, Rc<dyn Recurrence>);

/// A recurrent layer's memory.
#[derive(Clone)]
pub struct RecurrentCache {
    form: Form,
    memory: Memory,
    length: usize,
    rows: Option<Rows>,
    /// What has been appended in the round that is open.
    round: Option<Vec<Pass>>,
}

impl RecurrentCache {
    /// An empty memory.
    pub fn new(kernels: KernelSet) -> Self {
        let form = Form::dense(0, 0, kernels);
        Self { form, memory: Memory::default(), length: 0, rows: None, round: None }
    }

    /// Remembers new positions; as [`LayerState::recur`](crate::LayerState::recur).
    pub(crate) fn recur(
        &mut self,
        inputs: &[Array],
        recurrence: &Rc<dyn Recurrence>,
        phase: Phase,
    ) -> Result<Array> {
        let Some(length) = inputs.first().map(|input| input.dim(1) as usize) else {
            return Err(Error::NoInputs);
        };
        let mut span = RecurrentSpan { inputs, real: None, ends: None, phase };
        if let Some((first, end)) = self.rows.as_ref().and_then(|rows| rows.real(length)) {
            (span.real, span.ends) = marks(&first, &end, length)?;
        }
        let (out, memory) = recurrence.run(&self.memory, &span)?;
        self.memory = memory;
        self.length += length;
        self.rows.iter_mut().for_each(|rows| rows.advance(length));
        self.round.iter_mut().for_each(|round| round.push((inputs.to_vec(), recurrence.clone())));
        Ok(out)
    }

    /// What is remembered.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn all_rows(&self) -> Rows {
        let count = self.arrays().first().map_or(1, |a| a.dim(0) as usize);
        self.rows.clone().unwrap_or_else(|| Rows::uniform(count, self.length))
    }

    fn map(&self, f: impl Fn(&Array) -> Result<Array>) -> Result<Memory> {
        let each = |a: &Option<Array>| a.as_ref().map(&f).transpose();
        Ok(Memory { tail: each(&self.memory.tail)?, state: each(&self.memory.state)? })
    }

    fn taken(&self, rows: &[usize]) -> Result<Memory> {
        let indices: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let indices = Array::from_slice(&indices, [indices.len() as i32])?;
        self.map(|a| Ok(a.take(&indices, 0)?))
    }
}

/// Real positions `first..end` of each row as the arrays of a span.
fn marks(first: &[i32], end: &[i32], length: usize) -> Result<(Option<Array>, Option<Array>)> {
    let column = |of: &[i32]| Array::from_slice(of, [of.len() as i32, 1]);
    let places = ops::arange(0.0, length as f64, 1.0, strata_tensor::Dtype::Int32)?.expand_dims(&[0])?;
    let real = column(first)?.less_equal(&places)?.logical_and(&places.less(&column(end)?)?)?;
    Ok((Some(real), Some(Array::from_slice(end, [end.len() as i32])?)))
}

impl Cache for RecurrentCache {
    fn append(&mut self, _keys: &Array, _values: &Array) -> Result<AttentionRead> {
        Err(Error::Kind { layer: "a recurrent memory", asked: "keys and values" })
    }

    fn trim(&mut self, _tokens: usize) -> Result<()> {
        Ok(())
    }

    fn trimmable(&self) -> usize {
        0
    }

    fn live(&self) -> Result<Option<Planes>> {
        Ok(None)
    }

    fn form(&self) -> &Form {
        &self.form
    }

    fn lengths(&self) -> Vec<usize> {
        self.all_rows().lengths()
    }

    fn converted(&self) -> Result<Self> {
        Ok(self.clone())
    }

    fn begin(&mut self) -> Self {
        let before = self.clone();
        self.round = Some(Vec::new());
        before
    }

    fn rollback(&mut self, before: Self) {
        *self = before;
    }

    fn accept(&mut self, _before: &Self) {
        self.round = None;
    }

    fn commit(&mut self, before: &Self, keep: &[usize]) -> Result<()> {
        let most = keep.iter().copied().max().unwrap_or(0);
        let mut after = before.clone();
        let mut place = 0;
        for (inputs, recurrence) in self.round.take().unwrap_or_default() {
            let length = inputs.first().map_or(0, |input| input.dim(1) as usize);
            // One by one, where sums must have the order of single steps.
            let most_at_once = if self.form.kernels == KernelSet::Reference { 1 } else { length };
            let mut start = 0;
            while start < length && place < most {
                let count = most_at_once.min(length - start).min(most - place);
                let inputs = inputs.iter().map(|a| a.slice_axis(1, start as i32, (start + count) as i32));
                let inputs = inputs.collect::<strata_tensor::Result<Vec<_>>>()?;
                let mut span =
                    RecurrentSpan { inputs: &inputs, real: None, ends: None, phase: Phase::Committed };
                let ends: Vec<i32> = keep.iter().map(|n| n.saturating_sub(place).min(count) as i32).collect();
                if ends.iter().any(|&end| end < count as i32) {
                    (span.real, span.ends) = marks(&vec![0; ends.len()], &ends, count)?;
                }
                after.memory = recurrence.run(&after.memory, &span)?.1;
                (start, place) = (start + count, place + count);
            }
        }
        after.length += most;
        let mut rows = after.all_rows();
        rows.advance(most);
        if keep.iter().any(|&n| n < most) {
            rows.shift(&keep.iter().map(|&n| (most - n) as i32).collect::<Vec<_>>());
            after.rows = Some(rows);
        } else {
            after.rows.iter_mut().for_each(|rows| rows.advance(most));
        }
        *self = after;
        Ok(())
    }

    fn arrays(&self) -> Vec<&Array> {
        self.memory.tail.iter().chain(&self.memory.state).collect()
    }

    fn saved(&self) -> Result<Saved> {
        let format = match (&self.memory.tail, &self.memory.state) {
            (None, None) => "nothing",
            (Some(_), None) => "tail",
            (None, Some(_)) => "state",
            (Some(_), Some(_)) => "tail and state",
        };
        let arrays = self.arrays().into_iter().cloned().collect();
        Ok(Saved { format: format.to_owned(), length: self.length, next: self.length, arrays })
    }

    fn restored(&self, saved: Saved) -> Result<Self> {
        let mut arrays = saved.arrays.into_iter();
        let mut next = |there: bool| if there { arrays.next() } else { None };
        let tail = next(matches!(&*saved.format, "tail" | "tail and state"));
        let state = next(matches!(&*saved.format, "state" | "tail and state"));
        if tail.iter().chain(&state).any(|a| a.dim(0) != 1) || arrays.next().is_some() {
            return Err(Error::Snapshot { reason: "its memory is not that of one row".to_owned() });
        }
        Ok(Self { memory: Memory { tail, state }, length: saved.length, ..self.clone() })
    }

    fn stack(caches: &[&Self]) -> Result<Self> {
        let mut rows = Rows::uniform(0, 0);
        for cache in caches {
            rows.extend(&cache.all_rows());
        }
        let stacked = |pick: fn(&Memory) -> &Option<Array>| -> Result<Option<Array>> {
            let Some(like) = caches.iter().find_map(|c| pick(&c.memory).as_ref()) else { return Ok(None) };
            let parts = caches.iter().map(|c| {
                if let Some(array) = pick(&c.memory) {
                    return Ok(array.clone());
                }
                let mut shape = like.shape().to_vec();
                shape[0] = c.all_rows().count() as i32;
                ops::zeros(shape.as_slice(), like.dtype())
            });
            let parts = parts.collect::<strata_tensor::Result<Vec<_>>>()?;
            Ok(Some(ops::concatenate(&parts.iter().collect::<Vec<_>>(), 0)?))
        };
        let memory = Memory { tail: stacked(|m| &m.tail)?, state: stacked(|m| &m.state)? };
        let length = caches.iter().map(|c| c.length).max().unwrap_or(0);
        Ok(Self { memory, length, rows: Some(rows), ..caches[0].clone() })
    }

    fn select(&self, indices: &[usize]) -> Result<Self> {
        let rows = Some(self.all_rows().select(indices));
        Ok(Self { memory: self.taken(indices)?, rows, ..self.clone() })
    }

    fn extract(&self, row: usize) -> Result<Self> {
        let length = self.lengths()[row];
        let memory = if length == 0 { Memory::default() } else { self.taken(&[row])? };
        Ok(Self { memory, length, rows: None, ..self.clone() })
    }

    fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()> {
        let mut rows = self.all_rows();
        if self.length == 0 && self.rows.is_none() {
            rows = Rows::uniform(lengths.len(), 0);
        }
        rows.pad(lengths, side);
        self.rows = Some(rows);
        Ok(())
    }

    fn end_padded(&mut self) -> Result<()> {
        if let Some(rows) = &mut self.rows {
            if let Some(shifts) = rows.overhang() {
                rows.shift(&shifts);
            }
            rows.close();
        }
        Ok(())
    }
}

impl fmt::Debug for RecurrentCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, length, rows, .. } = self;
        f.debug_struct("RecurrentCache")
            .field("memory", memory)
            .field("length", length)
            .field("rows", rows)
            .finish()
    }
}

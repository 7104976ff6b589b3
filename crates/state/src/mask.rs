//! Which keys the queries of a forward pass see, and the boolean arrays that say so. A layer describes a [`Span`]; the
//! array of equal spans is made once and shared by all layers of a state.

use crate::error::Result;
use std::cell::RefCell;
use std::rc::Rc;
use strata_tensor::{Array, Dtype, ops};

/// What queries see of the keys they are given.
#[derive(Debug, Clone)]
pub(crate) enum Seen {
    /// All of them.
    All,
    /// Those up to their own position; the last query's is the last key.
    Causal,
    /// What the span says.
    Masked(Span),
}

/// Queries at the last `queries` of `keys` positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// Positions a query sees, its own included.
    pub(crate) window: Option<usize>,
    /// Positions before each row's first; never seen. Negative when the row's first are gone already.
    pub(crate) padding: Option<Vec<i32>>,
    /// Places by which keys are stored to the right of their place in time, around the end.
    pub(crate) roll: usize,
    /// Positions of the queries, row after row, where they are not the last ones of all rows.
    pub(crate) places: Option<Vec<i32>>,
}

impl Span {
    /// Causal, without window or padding.
    pub(crate) fn causal(queries: usize, keys: usize) -> Self {
        Self { queries, keys, window: None, padding: None, roll: 0, places: None }
    }

    /// The same without a mask where none is needed: what fast kernels are given. Reference kernels get masks where mlx-lm
    /// makes them.
    pub(crate) fn simplest(self) -> Seen {
        let within = self.window.is_none_or(|window| self.keys <= window);
        match self.queries {
            _ if self.is_padded() || !within => Seen::Masked(self),
            1 => Seen::All,
            _ => Seen::Causal,
        }
    }

    /// True when rows differ in what they see.
    pub(crate) fn is_padded(&self) -> bool {
        self.places.is_some() || self.padding.as_ref().is_some_and(|padding| padding.iter().any(|&n| n > 0))
    }

    /// As an array of mlx-lm's `create_causal_mask` (models/base.py).
    fn array(&self) -> Result<Array> {
        let (first, end) = (self.keys as f64 - self.queries as f64, self.keys as f64);
        let rows = match &self.places {
            None => ops::arange(first, end, 1.0, Dtype::Int32)?.expand_dims(&[1])?,
            Some(places) => {
                Array::from_slice(places, [(places.len() / self.queries) as i32, 1, self.queries as i32, 1])?
            }
        };
        let columns = ops::arange(0.0, end, 1.0, Dtype::Int32)?.expand_dims(&[0])?;
        let mut seen = rows.greater_equal(&columns)?;
        if let Some(window) = self.window {
            seen = seen.logical_and(&rows.less(&columns.add(&Array::from_i32(window as i32))?)?)?;
        }
        if let Some(padding) = &self.padding {
            let padding = Array::from_slice(padding, [padding.len() as i32, 1, 1, 1])?;
            seen = seen.logical_and(&padding.less_equal(&columns)?)?;
        }
        if self.roll > 0 {
            seen = seen.roll(self.roll as i32, -1)?;
        }
        Ok(seen)
    }
}

/// The arrays of the spans asked for last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Masks(Rc<RefCell<Vec<(Span, Array)>>>);

impl Masks {
    /// Kinds of layers that alternate in one graph, and then some.
    const KEPT: usize = 4;

    /// The array of a span: bool `[L, S]`, or `[B, 1, L, S]` with padding.
    pub(crate) fn array(&self, span: &Span) -> Result<Array> {
        let mut kept = self.0.borrow_mut();
        if let Some((_, array)) = kept.iter().find(|(made, _)| made == span) {
            return Ok(array.clone());
        }
        let array = span.array()?;
        if kept.len() == Self::KEPT {
            kept.remove(0);
        }
        kept.push((span.clone(), array.clone()));
        Ok(array)
    }
}

//! A round: positions appended on trial. It ends by keeping a prefix of them, row by row, or as if it had not been.

use crate::error::{Error, Result};
use crate::layer::LayerState;
use crate::rows::Rows;
use crate::state::State;
use std::ops::{Deref, DerefMut};

/// An open round on a state. A forward pass uses it as the state that it is; dropping it takes everything back.
///
/// What is kept continues, bit for bit, as if the rest had never been appended: positions kept lie where single steps would
/// have put them, unless rows keep different numbers or change their number format meanwhile. Going back covers what fails
/// while a pass is built and what fails while it is evaluated.
#[derive(Debug)]
pub struct Round<'a> {
    state: &'a mut State,
    before: Option<Before>,
}

#[derive(Debug)]
struct Before {
    layers: Vec<LayerState>,
    position: usize,
    rows: Option<Rows>,
}

impl State {
    /// Opens a round.
    ///
    /// # Errors
    /// [`Error::InRound`] when one is open already; what MLX reports.
    pub fn begin(&mut self) -> Result<Round<'_>> {
        if self.in_round {
            return Err(Error::InRound);
        }
        let mut layers = self.layers.clone();
        let before = layers.iter_mut().map(LayerState::begin_round).collect::<Result<_>>()?;
        self.layers = layers;
        self.in_round = true;
        let before = Before { layers: before, position: self.position, rows: self.rows.clone() };
        Ok(Round { state: self, before: Some(before) })
    }
}

impl Round<'_> {
    /// Positions appended to every row so far.
    pub fn appended(&self) -> usize {
        let Some(before) = &self.before else { return 0 };
        match (&self.state.rows, &before.rows) {
            (Some(rows), Some(before)) => (rows.offsets()[0] - before.offsets()[0]) as usize,
            _ => self.state.position - before.position,
        }
    }

    /// Ends the round keeping all of it, as it was appended.
    pub fn accept(mut self) {
        let Some(before) = self.before.take() else { return };
        let state = &mut *self.state;
        state.layers.iter_mut().zip(&before.layers).for_each(|(layer, before)| layer.accept(before));
        state.in_round = false;
    }

    /// Ends the round keeping the first `keep` positions appended, an entry a row, as if they had been appended one by one.
    ///
    /// # Errors
    /// [`Error::Lengths`] unless there is an entry for each row, [`Error::Keep`] for more than was appended,
    /// [`Error::OpenRows`] for rows that are still padded on the right; what MLX reports. The round is taken back then.
    pub fn commit(mut self, keep: &[usize]) -> Result<()> {
        let (rows, appended) = (self.state.rows(), self.appended());
        if keep.len() != rows {
            return Err(Error::Lengths { given: keep.len(), rows });
        }
        if let Some(row) = keep.iter().position(|&n| n > appended) {
            return Err(Error::Keep { row, asked: keep[row], appended });
        }
        if self.state.rows.as_ref().is_some_and(Rows::are_open) {
            return Err(Error::OpenRows);
        }
        let Some(before) = &self.before else { return Ok(()) };
        let mut layers = self.state.layers.clone();
        let mut ended = layers.iter_mut().zip(&before.layers);
        ended.try_for_each(|(layer, before)| layer.commit(before, keep))?;
        let most = keep.iter().copied().max().unwrap_or(0);
        let mut rows = before.rows.clone();
        if let Some(rows) = &mut rows {
            rows.advance(most);
            rows.shift(&keep.iter().map(|&n| (most - n) as i32).collect::<Vec<_>>());
        }
        let position = before.position + most;
        let state = &mut *self.state;
        (state.layers, state.rows, state.position, state.in_round) = (layers, rows, position, false);
        state.settle_position();
        self.before = None;
        Ok(())
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        let state = &mut *self.state;
        state.layers.iter_mut().zip(before.layers).for_each(|(layer, before)| layer.rollback(before));
        (state.rows, state.position, state.in_round) = (before.rows, before.position, false);
    }
}

impl Deref for Round<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state
    }
}

impl DerefMut for Round<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state
    }
}

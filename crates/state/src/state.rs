//! All layers of a sequence, or of a batch of sequences, and the position they share.
//!
//! Membership changes are made for every layer first and take effect together: a failure leaves the batch as it was.

use crate::error::{Error, Result};
use crate::form::Form;
use crate::format::Format;
use crate::layer::{LayerState, Side};
use crate::mask::Masks;
use crate::paged::PagedCache;
use crate::plain::PlainCache;
use crate::recurrent::RecurrentCache;
use crate::rotating::RotatingCache;
use crate::rows::Rows;
use crate::shared::SharedLayer;
use strata_contracts::{Composition, LayerKind};
use strata_tensor::{Array, eval};

/// Where a forward pass starts.
#[derive(Debug, Clone)]
pub enum Positions {
    /// Every row at the same position.
    Uniform(i32),
    /// int32 `[B]`: one position a row; negative where a row's padding is read. 0-d, for all rows, while a step of a state
    /// without rows is recorded.
    Rows(Array),
}

/// What all layers of a graph keep of a sequence, or of a batch of them.
#[derive(Debug, Clone)]
pub struct State {
    pub(crate) layers: Vec<LayerState>,
    /// Of a batch, the longest row's.
    pub(crate) position: usize,
    /// `None` for a single sequence.
    pub(crate) rows: Option<Rows>,
    /// True while a [`Round`](crate::Round) is open.
    pub(crate) in_round: bool,
    /// While this state stands in for another ([`StandIn`](crate::StandIn)): where the pass starts.
    pub(crate) recording: Option<Array>,
}

impl State {
    /// Empty state for a graph's layers, in the form that the composition asks for.
    ///
    /// # Errors
    /// [`Error::Format`] when a layer's heads cannot have the number format asked for, or there is no such layer.
    pub fn compose(layers: &[LayerKind], composition: &Composition) -> Result<Self> {
        let (masks, kernels, kv) = (Masks::default(), composition.kernels, &composition.kv);
        Format::check(&kv.format, layers)?;
        let layers = layers.iter().enumerate().map(|(layer, kind)| {
            let form = |kv_heads, head_dim| -> Result<Form> {
                let format = Format::of_layer(&kv.format, layer, head_dim)?;
                let later = (format != Format::Dense).then_some((format, kv.start as usize));
                let masks = masks.clone();
                Ok(Form { later, masks, ..Form::dense(kv_heads, head_dim, kernels) })
            };
            let whole = |form: Form| {
                let Some(page) = kv.page else { return Ok(LayerState::Plain(PlainCache::of_form(form))) };
                if form.later.is_some() && kv.start > 0 {
                    let reason =
                        "pages have one number format from the first token on, without a later start";
                    return Err(Error::Format { layer, reason: reason.to_owned() });
                }
                let format = form.later.as_ref().map_or(Format::Dense, |(format, _)| format.clone());
                Ok(LayerState::Paged(PagedCache::of_form(Form { format, later: None, ..form }, page)))
            };
            Ok(match *kind {
                LayerKind::Full { kv_heads, head_dim } => whole(form(kv_heads, head_dim)?)?,
                LayerKind::Latent { rank, rope_dim } => {
                    Format::of_layer(&kv.format, layer, rope_dim)?;
                    whole(form(1, rank)?)?
                }
                LayerKind::Recurrent { .. } => LayerState::Recurrent(RecurrentCache::new(kernels)),
                LayerKind::Shared { donor } => LayerState::Shared(SharedLayer::new(donor as usize, kernels)),
                LayerKind::Sliding { kv_heads, head_dim, window } => {
                    LayerState::Rotating(RotatingCache::of_form(form(kv_heads, head_dim)?, window))
                }
            })
        });
        Ok(Self::of_layers(layers.collect::<Result<_>>()?))
    }

    /// Empty state of caches made one by one.
    pub fn of_layers(layers: Vec<LayerState>) -> Self {
        Self { layers, position: 0, rows: None, in_round: false, recording: None }
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// True for a graph without layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// True when Strata's host kernels run: fast mode on a CPU.
    pub fn host_kernels(&self) -> bool {
        self.layers.first().is_some_and(|layer| layer.form().host_kernels)
    }

    /// Tokens seen so far; of a batch, by its longest row.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Where the next forward pass starts. Read it once, before the first layer appends.
    pub fn positions(&self) -> Positions {
        if let Some(positions) = &self.recording {
            return Positions::Rows(positions.clone());
        }
        match &self.rows {
            None => Positions::Uniform(self.position as i32),
            Some(rows) => Positions::Rows(rows.positions()),
        }
    }

    /// The state of layer `index`.
    ///
    /// # Panics
    /// When the graph has no such layer: graph and state were composed from one declaration.
    pub fn layer(&mut self, index: usize) -> &mut LayerState {
        &mut self.layers[index]
    }

    /// Ends a forward pass of `tokens` positions, after the last layer has appended.
    pub fn advance(&mut self, tokens: usize) {
        self.position += tokens;
        if let Some(rows) = &mut self.rows {
            rows.advance(tokens);
        }
    }

    /// Positions that can be given up: a ring that has overwritten what came before them cannot go back.
    pub fn trimmable(&self) -> usize {
        let shortest = self.row_positions().into_iter().min().unwrap_or(0);
        self.layers.iter().map(LayerState::trimmable).min().unwrap_or(shortest).min(shortest)
    }

    /// Gives up the newest `tokens` positions of every row.
    ///
    /// # Errors
    /// [`Error::Trim`] when a layer cannot go back so far; nothing is changed then.
    pub fn trim(&mut self, tokens: usize) -> Result<()> {
        if self.in_round {
            return Err(Error::InRound);
        }
        for (layer, state) in self.layers.iter().enumerate() {
            let possible = state.trimmable();
            if tokens > possible {
                return Err(Error::Trim { asked: tokens, layer, possible });
            }
        }
        let mut layers = self.layers.clone();
        layers.iter_mut().try_for_each(|layer| layer.trim(tokens))?;
        self.layers = layers;
        self.position -= tokens;
        if let Some(rows) = &mut self.rows {
            rows.retreat(tokens);
        }
        Ok(())
    }

    /// Bytes of all arrays held, room to grow included.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerState::bytes).sum()
    }

    /// Every array held, to be evaluated together.
    pub fn arrays(&self) -> Vec<&Array> {
        self.layers.iter().flat_map(LayerState::arrays).collect()
    }
}

/// Batches.
impl State {
    /// Rows; 1 for a single sequence.
    pub fn rows(&self) -> usize {
        self.rows.as_ref().map_or(1, Rows::count)
    }

    /// Tokens seen by each row so far.
    pub fn row_positions(&self) -> Vec<usize> {
        let of_batch = |rows: &Rows| rows.offsets().iter().map(|&n| n.max(0) as usize).collect();
        self.rows.as_ref().map_or_else(|| vec![self.position], of_batch)
    }

    /// A batch of all rows of these states, in order. Every state stays usable by itself.
    ///
    /// # Errors
    /// [`Error::NoRows`] for no states; [`Error::Unlike`] for states of different graphs; [`Error::OpenRows`];
    /// [`Error::KeptRows`]; what MLX reports.
    pub fn merge(states: &[&Self]) -> Result<Self> {
        let Some(first) = states.first() else { return Err(Error::NoRows) };
        for state in states {
            state.check_closed()?;
            for layer in 0..first.len().max(state.len()) {
                let describe = |s: &Self| {
                    s.layers.get(layer).map_or_else(|| "nothing".to_owned(), LayerState::description)
                };
                let (first, other) = (describe(first), describe(state));
                if first != other {
                    return Err(Error::Unlike { layer, first, other });
                }
            }
        }
        let layers = (0..first.len()).map(|i| {
            let layers: Vec<&LayerState> = states.iter().map(|s| &s.layers[i]).collect();
            LayerState::stack(&layers)
        });
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let mut rows = Rows::uniform(0, 0);
        for state in states {
            rows.extend(&state.all_rows());
        }
        Self { layers, position: 0, rows: Some(rows), in_round: false, recording: None }.prepared()
    }

    /// The rows of `other` join this batch, behind its own.
    ///
    /// # Errors
    /// As [`State::merge`]; this batch is as it was then.
    pub fn join(&mut self, other: &Self) -> Result<()> {
        *self = Self::merge(&[self, other])?;
        Ok(())
    }

    /// Only the rows at these indices stay, in this order.
    ///
    /// # Errors
    /// [`Error::NoRows`] for none; [`Error::NoSuchRow`]; [`Error::OpenRows`]; what MLX reports. The batch is as it was then.
    pub fn filter(&mut self, indices: &[usize]) -> Result<()> {
        self.check_closed()?;
        if indices.is_empty() {
            return Err(Error::NoRows);
        }
        indices.iter().try_for_each(|&row| self.check_row(row))?;
        let layers = self.layers.iter().map(|layer| layer.select(indices)).collect::<Result<_>>()?;
        let rows = Some(self.all_rows().select(indices));
        *self = Self { layers, position: 0, rows, in_round: false, recording: None }.prepared()?;
        Ok(())
    }

    /// One row as a sequence of its own, which holds no memory of the batch; of pages, only its own, in the pool that they are
    /// of.
    ///
    /// # Errors
    /// [`Error::NoSuchRow`]; [`Error::OpenRows`]; what MLX reports.
    pub fn extract(&self, row: usize) -> Result<Self> {
        self.check_closed()?;
        self.check_row(row)?;
        let layers = self.layers.iter().map(|layer| layer.extract(row)).collect::<Result<_>>()?;
        let position = self.row_positions()[row];
        Self { layers, position, rows: None, in_round: false, recording: None }.prepared()
    }

    /// A copy that ends at `position`; the two go separate ways from there.
    ///
    /// # Errors
    /// [`Error::Trim`] when a layer cannot go back so far.
    pub fn fork(&self, position: usize) -> Result<Self> {
        let mut fork = self.clone();
        fork.trim(self.position.saturating_sub(position))?;
        Ok(fork)
    }

    /// The next tokens are `lengths` of each row, padded to the longest on one side. All of them, padding included, are read
    /// by one or more forward passes; [`State::end_padded`] follows. What stands at padding is never seen by a token.
    /// A single sequence becomes a batch of one; an empty one becomes a batch of `lengths.len()` rows.
    ///
    /// # Errors
    /// [`Error::Lengths`] unless there is a length for each row; [`Error::OpenRows`]; [`Error::LeftPadding`] on the left of
    /// rows that hold something; [`Error::KeptRows`].
    pub fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()> {
        self.check_closed()?;
        let rows = if self.rows.is_none() && self.position == 0 {
            Rows::uniform(lengths.len(), 0)
        } else {
            self.all_rows()
        };
        if lengths.is_empty() {
            return Err(Error::NoRows);
        }
        if rows.count() != lengths.len() {
            return Err(Error::Lengths { given: lengths.len(), rows: rows.count() });
        }
        if side == Side::Left && self.position > 0 {
            return Err(Error::LeftPadding { position: self.position });
        }
        let mut layers = self.layers.clone();
        layers.iter_mut().try_for_each(|layer| layer.begin_padded(lengths, side))?;
        self.layers = layers;
        self.rows.insert(rows).pad(lengths, side);
        Ok(())
    }

    /// Moves padding on the right of rows to their left, once all of it has been read. Without open rows nothing happens.
    ///
    /// # Errors
    /// What MLX reports; the batch is as it was then.
    pub fn end_padded(&mut self) -> Result<()> {
        if self.in_round {
            return Err(Error::InRound);
        }
        let mut after = self.clone();
        after.layers.iter_mut().try_for_each(LayerState::end_padded)?;
        if let Some(rows) = &mut after.rows {
            if let Some(shifts) = rows.overhang() {
                rows.shift(&shifts);
            }
            rows.close();
            *self = after.prepared()?;
        }
        Ok(())
    }

    fn all_rows(&self) -> Rows {
        self.rows.clone().unwrap_or_else(|| Rows::uniform(1, self.position))
    }

    fn check_closed(&self) -> Result<()> {
        if self.in_round {
            return Err(Error::InRound);
        }
        if self.rows.as_ref().is_some_and(Rows::are_open) { Err(Error::OpenRows) } else { Ok(()) }
    }

    fn check_row(&self, row: usize) -> Result<()> {
        let rows = self.rows();
        if row < rows { Ok(()) } else { Err(Error::NoSuchRow { row, rows }) }
    }

    /// Evaluated, so that nothing can fail once it has replaced what it was made from.
    fn prepared(mut self) -> Result<Self> {
        eval(self.arrays())?;
        self.settle_position();
        Ok(self)
    }

    /// The position of a batch is its longest row's.
    pub(crate) fn settle_position(&mut self) {
        if self.rows.is_some() {
            self.position = self.row_positions().into_iter().max().unwrap_or(0);
        }
    }
}

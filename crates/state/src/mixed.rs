//! Rows of one layer that are not all stored in one form: groups of rows, one cache each. A batch comes to this when a
//! sequence is still too short for the number format that longer ones have changed to; it ends when all have.

use crate::error::{Error, Result};
use crate::form::Form;
use crate::layer::{LayerState, Side};
use crate::read::AttentionRead;
use strata_tensor::Array;

/// Groups of rows; every row of the batch is in exactly one of at least two groups.
#[derive(Debug, Clone)]
pub struct MixedRows(Vec<(Vec<usize>, LayerState)>);

impl MixedRows {
    /// Groups in one form put together; a layer of one form where that leaves one.
    pub(crate) fn of_groups(groups: Vec<(Vec<usize>, LayerState)>) -> Result<LayerState> {
        let mut alike: Vec<(Vec<usize>, Vec<LayerState>)> = Vec::new();
        for (rows, layer) in groups {
            match alike.iter_mut().find(|(_, layers)| same_form(&layers[0], &layer)) {
                Some((all, layers)) => {
                    all.extend(rows);
                    layers.push(layer);
                }
                None => alike.push((rows, vec![layer])),
            }
        }
        let stacked = alike
            .into_iter()
            .map(|(rows, layers)| Ok((rows, LayerState::stack_alike(&layers.iter().collect::<Vec<_>>())?)));
        let stacked = stacked.collect::<Result<Vec<_>>>()?;
        let [(rows, only)] = &stacked[..] else { return Ok(LayerState::Mixed(Self(stacked))) };
        if rows.is_sorted() {
            return Ok(only.clone());
        }
        let mut order = vec![0; rows.len()];
        rows.iter().enumerate().for_each(|(place, &row)| order[row] = place);
        only.select(&order)
    }

    pub(crate) fn groups(&self) -> &[(Vec<usize>, LayerState)] {
        &self.0
    }

    pub(crate) fn name(&self) -> &'static str {
        self.0[0].1.name()
    }

    pub(crate) fn append(&mut self, keys: &Array, values: &Array) -> Result<AttentionRead> {
        let rows = self.lengths().len();
        if keys.dim(0) as usize != rows {
            let &Form { kv_heads, head_dim, .. } = self.form();
            let (keys, values) = (keys.shape(), values.shape());
            return Err(Error::Shape { kv_heads, head_dim, rows: Some(rows), keys, values });
        }
        let mut after = self.clone();
        let reads = after.0.iter_mut().map(|(rows, layer)| {
            let rows_of = |a: &Array| {
                let indices: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
                a.take(&Array::from_slice(&indices, [indices.len() as i32])?, 0)
            };
            let read = layer.append_span(&rows_of(keys)?, &rows_of(values)?)?;
            Ok((rows.clone(), read))
        });
        let read = AttentionRead::groups(reads.collect::<Result<_>>()?);
        *self = after;
        Ok(read)
    }

    /// The form of the first group; kernels, heads and masks are common to all.
    pub(crate) fn form(&self) -> &Form {
        self.0[0].1.form()
    }

    pub(crate) fn lengths(&self) -> Vec<usize> {
        let mut lengths = vec![0; self.0.iter().map(|(rows, _)| rows.len()).sum()];
        for (rows, layer) in &self.0 {
            rows.iter().zip(layer.lengths()).for_each(|(&row, length)| lengths[row] = length);
        }
        lengths
    }

    pub(crate) fn arrays(&self) -> Vec<&Array> {
        self.0.iter().flat_map(|(_, layer)| layer.arrays()).collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|(_, layer)| layer.bytes()).sum()
    }

    pub(crate) fn trimmable(&self) -> usize {
        self.0.iter().map(|(_, layer)| layer.trimmable()).min().unwrap_or(0)
    }

    pub(crate) fn trim(&mut self, tokens: usize) -> Result<()> {
        self.0.iter_mut().try_for_each(|(_, layer)| layer.trim(tokens))
    }

    pub(crate) fn begin(&mut self) -> Self {
        Self(self.0.iter_mut().map(|(rows, layer)| (rows.clone(), layer.begin())).collect())
    }

    pub(crate) fn rollback(&mut self, before: Self) {
        self.0.iter_mut().zip(before.0).for_each(|((_, layer), (_, before))| layer.rollback(before));
    }

    pub(crate) fn accept(&mut self, before: &Self) {
        self.0.iter_mut().zip(&before.0).for_each(|((_, layer), (_, before))| layer.accept(before));
    }

    pub(crate) fn commit(&mut self, before: &Self, keep: &[usize]) -> Result<()> {
        self.0.iter_mut().zip(&before.0).try_for_each(|((rows, layer), (_, before))| {
            let keep: Vec<usize> = rows.iter().map(|&row| keep[row]).collect();
            layer.commit(before, &keep)
        })
    }

    pub(crate) fn select(&self, indices: &[usize]) -> Result<LayerState> {
        let mut groups = Vec::new();
        for (rows, layer) in &self.0 {
            let places = indices
                .iter()
                .enumerate()
                .filter_map(|(place, index)| Some((place, rows.iter().position(|row| row == index)?)));
            let (places, locals): (Vec<usize>, Vec<usize>) = places.unzip();
            if !places.is_empty() {
                groups.push((places, layer.select(&locals)?));
            }
        }
        Self::of_groups(groups)
    }

    pub(crate) fn extract(&self, row: usize) -> Result<LayerState> {
        for (rows, layer) in &self.0 {
            if let Some(local) = rows.iter().position(|&r| r == row) {
                return layer.extract(local);
            }
        }
        Err(Error::NoSuchRow { row, rows: self.lengths().len() })
    }

    pub(crate) fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()> {
        self.0.iter_mut().try_for_each(|(rows, layer)| {
            let lengths: Vec<usize> = rows.iter().map(|&row| lengths[row]).collect();
            layer.begin_padded(&lengths, side)
        })
    }

    pub(crate) fn end_padded(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(|(_, layer)| layer.end_padded())
    }
}

/// True when rows of the two can lie in one cache.
fn same_form(a: &LayerState, b: &LayerState) -> bool {
    a.name() == b.name() && a.form().format == b.form().format
}

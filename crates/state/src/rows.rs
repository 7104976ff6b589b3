//! Where the rows of a batch lie in storage whose time axis they share. Rows end together, at the newest position; shorter
//! ones begin later, behind padding (mlx-lm's batch caches, models/cache.py). All of it is host data: nothing waits for the
//! device to know it.

use crate::layer::Side;
use strata_tensor::Array;

/// One entry a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Stored positions before the row's first one. Negative when its first ones have been dropped.
    padding: Vec<i32>,
    /// The row's next position. Negative while padding on its left is read.
    offsets: Vec<i32>,
    /// While rows padded on the right are read together: the position at which each row ends.
    ends: Option<Vec<i32>>,
}

impl Rows {
    /// Rows without padding, all at `offset`.
    pub(crate) fn uniform(rows: usize, offset: usize) -> Self {
        Self { padding: vec![0; rows], offsets: vec![offset as i32; rows], ends: None }
    }

    pub(crate) fn count(&self) -> usize {
        self.padding.len()
    }

    pub(crate) fn padding(&self) -> &[i32] {
        &self.padding
    }

    pub(crate) fn offsets(&self) -> &[i32] {
        &self.offsets
    }

    /// Tokens of each row, without padding.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        let end = |row: usize| self.ends.as_ref().map_or(i32::MAX, |ends| ends[row]);
        self.offsets.iter().enumerate().map(|(row, &offset)| offset.min(end(row)).max(0) as usize).collect()
    }

    /// True while rows padded on the right are read together.
    pub(crate) fn are_open(&self) -> bool {
        self.ends.is_some()
    }

    /// The next positions, int32 `[B]`.
    pub(crate) fn positions(&self) -> Array {
        Array::from_slice(&self.offsets, [self.offsets.len() as i32]).expect("one entry a row")
    }

    /// Every row has `tokens` more positions.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.offsets.iter_mut().for_each(|offset| *offset += tokens as i32);
    }

    /// Every row gives up its newest `tokens` positions.
    pub(crate) fn retreat(&mut self, tokens: usize) {
        self.offsets.iter_mut().for_each(|offset| *offset -= tokens as i32);
    }

    /// Positions that every row has at least.
    pub(crate) fn shortest(&self) -> usize {
        self.offsets.iter().copied().min().map_or(0, |n| n.max(0) as usize)
    }

    /// The oldest `positions` of storage are dropped (or, if negative, put before it).
    pub(crate) fn drop_oldest(&mut self, positions: i32) {
        self.padding.iter_mut().for_each(|padding| *padding -= positions);
    }

    /// `lengths` more positions of each row follow, padded to the longest.
    pub(crate) fn pad(&mut self, lengths: &[usize], side: Side) {
        match side {
            Side::Left => self.pad_left(lengths),
            Side::Right => self.pad_right(lengths),
        }
    }

    fn pad_left(&mut self, lengths: &[usize]) {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let shifts: Vec<i32> = lengths.iter().map(|n| (longest - n) as i32).collect();
        self.shift(&shifts);
    }

    fn pad_right(&mut self, lengths: &[usize]) {
        self.ends = Some(self.offsets.iter().zip(lengths).map(|(&offset, &n)| offset + n as i32).collect());
    }

    /// Positions by which each row must move right so that padding behind its end comes before its start; `None` if no row
    /// must.
    pub(crate) fn overhang(&self) -> Option<Vec<i32>> {
        let ends = self.ends.as_ref()?;
        let over: Vec<i32> =
            self.offsets.iter().zip(ends).map(|(offset, end)| (offset - end).max(0)).collect();
        over.iter().any(|&n| n > 0).then_some(over)
    }

    /// Where the real ones of the next `length` positions begin and end, for each row; `None` if all are real.
    pub(crate) fn real(&self, length: usize) -> Option<(Vec<i32>, Vec<i32>)> {
        let length = length as i32;
        let first: Vec<i32> = self.offsets.iter().map(|&offset| (-offset).clamp(0, length)).collect();
        let end: Vec<i32> = match &self.ends {
            Some(ends) => {
                ends.iter().zip(&self.offsets).map(|(end, offset)| (end - offset).clamp(0, length)).collect()
            }
            None => vec![length; first.len()],
        };
        let all = first.iter().all(|&n| n == 0) && end.iter().all(|&n| n == length);
        (!all).then_some((first, end))
    }

    /// Moves each row right; what comes around the end is padding.
    pub(crate) fn shift(&mut self, shifts: &[i32]) {
        self.padding.iter_mut().zip(shifts).for_each(|(padding, shift)| {
            if *shift != 0 {
                *padding = (*padding).max(0) + shift;
            }
        });
        self.offsets.iter_mut().zip(shifts).for_each(|(offset, shift)| *offset -= shift);
    }

    /// Padding is all on the left now.
    pub(crate) fn close(&mut self) {
        self.ends = None;
    }

    /// The rows at these indices, in their order.
    pub(crate) fn select(&self, rows: &[usize]) -> Self {
        let pick = |all: &[i32]| rows.iter().map(|&r| all[r]).collect();
        Self {
            padding: pick(&self.padding),
            offsets: pick(&self.offsets),
            ends: self.ends.as_ref().map(|ends| pick(ends)),
        }
    }

    /// These rows and then those of `other`.
    pub(crate) fn extend(&mut self, other: &Self) {
        if self.ends.is_some() || other.ends.is_some() {
            let ends = |rows: &Self| rows.ends.clone().unwrap_or_else(|| vec![i32::MAX; rows.count()]);
            self.ends = Some([ends(self), ends(other)].concat());
        }
        self.padding.extend(&other.padding);
        self.offsets.extend(&other.offsets);
    }
}

//! The arrays one layer stores, moved along the time axis together. Every plane is `[B, H, T, *]` with common `B` and `T`;
//! what the planes mean (keys and values, packed words, scales) is the format's business.

use crate::error::Result;
use strata_tensor::{Array, ops};

/// The time axis.
const TIME: i32 = 2;

/// One layer's arrays.
#[derive(Debug, Clone)]
pub(crate) struct Planes(Vec<Array>);

impl Planes {
    /// Planes with common `B` and `T`.
    pub(crate) fn new(arrays: Vec<Array>) -> Self {
        Self(arrays)
    }

    pub(crate) fn arrays(&self) -> &[Array] {
        &self.0
    }

    /// Rows `B`.
    pub(crate) fn rows(&self) -> usize {
        self.0.first().map_or(0, |a| a.dim(0) as usize)
    }

    /// Positions `T`.
    pub(crate) fn len(&self) -> usize {
        self.0.first().map_or(0, |a| a.dim(TIME) as usize)
    }

    /// The same function on every plane.
    pub(crate) fn map(&self, f: impl Fn(&Array) -> strata_tensor::Result<Array>) -> Result<Self> {
        Ok(Self(self.0.iter().map(f).collect::<strata_tensor::Result<_>>()?))
    }

    /// Positions `start..stop`.
    pub(crate) fn slice(&self, start: usize, stop: usize) -> Result<Self> {
        if start == 0 && stop == self.len() {
            return Ok(self.clone());
        }
        self.map(|a| a.slice_axis(TIME, start as i32, stop as i32))
    }

    /// The newest content that can be computed, and what kept newer writes from it. A write whose values could not be
    /// computed stays, with whatever there was at its positions; one that never ran is let go.
    pub(crate) fn settled(&self) -> Result<(Self, Option<strata_tensor::Error>)> {
        let form = |a: &Array| (a.dtype(), a.ndim(), [0, 1, 3].map(|axis| a.dim(axis)));
        let mut failed = None;
        let planes = self.0.iter().map(|plane| {
            let mut plane = plane.clone();
            while plane.pending_source()?.is_some() {
                let Err(error) = plane.eval() else { break };
                failed.get_or_insert(error);
                match plane.pending_source()? {
                    Some(source) if form(&source) == form(&plane) => plane = source,
                    _ => break,
                }
            }
            Ok(plane)
        });
        let planes = Self(planes.collect::<strata_tensor::Result<_>>()?);
        Ok((planes, failed))
    }

    /// Zeros for `positions` positions of as many rows.
    pub(crate) fn room(&self, positions: usize) -> Result<Self> {
        self.blank(self.rows(), positions)
    }

    /// Zeros for `positions` positions of `rows` rows.
    pub(crate) fn blank(&self, rows: usize, positions: usize) -> Result<Self> {
        self.map(|a| {
            let mut shape = a.shape().to_vec();
            shape[0] = rows as i32;
            shape[TIME as usize] = positions as i32;
            ops::zeros(shape.as_slice(), a.dtype())
        })
    }

    /// Parts one after the other in time; empty parts are left out.
    pub(crate) fn concatenate(parts: &[&Self]) -> Result<Self> {
        let parts: Vec<&Self> = match parts.iter().copied().filter(|p| p.len() > 0).collect::<Vec<_>>() {
            kept if kept.is_empty() => parts.to_vec(),
            kept => kept,
        };
        if let [only] = parts[..] {
            return Ok(only.clone());
        }
        Self::joined(&parts, TIME)
    }

    /// The rows at these indices, in memory of their own.
    pub(crate) fn take_rows(&self, rows: &[usize]) -> Result<Self> {
        let indices: Vec<i32> = rows.iter().map(|&r| r as i32).collect();
        let indices = Array::from_slice(&indices, [indices.len() as i32])?;
        self.map(|a| a.take(&indices, 0))
    }

    /// The rows of several planes of equal length, one below the other.
    pub(crate) fn stack(parts: &[&Self]) -> Result<Self> {
        Self::joined(parts, 0)
    }

    /// Zeros before and behind.
    pub(crate) fn padded(&self, before: usize, behind: usize) -> Result<Self> {
        Self::concatenate(&[&self.room(before)?, self, &self.room(behind)?])
    }

    /// Each row moved right by its shift, around the end.
    pub(crate) fn roll_rows(&self, shifts: &[i32]) -> Result<Self> {
        let length = self.len() as i32;
        let sources = shifts.iter().flat_map(|s| (0..length).map(move |t| (t - s).rem_euclid(length)));
        let sources: Vec<i32> = sources.collect();
        let sources = Array::from_slice(&sources, [shifts.len() as i32, 1, length, 1])?;
        self.map(|a| a.take_along_axis(&sources, TIME))
    }

    fn joined(parts: &[&Self], axis: i32) -> Result<Self> {
        let planes = parts.first().map_or(0, |p| p.0.len());
        let joined = (0..planes).map(|i| {
            let plane: Vec<&Array> = parts.iter().map(|p| &p.0[i]).collect();
            ops::concatenate(&plane, axis)
        });
        Ok(Self(joined.collect::<strata_tensor::Result<_>>()?))
    }
}

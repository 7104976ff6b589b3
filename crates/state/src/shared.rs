//! A layer that stores nothing: it reads, through a clone of the donor's [`AttentionRead`], what another layer has stored.

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::form::Form;
use crate::layer::Side;
use crate::planes::Planes;
use crate::read::AttentionRead;
use crate::snapshot::Saved;
use strata_contracts::KernelSet;
use strata_tensor::Array;

/// Stands in the list of layers for one that reads another's keys and values.
#[derive(Debug, Clone)]
pub struct SharedLayer {
    donor: usize,
    form: Form,
}

impl SharedLayer {
    /// A layer that reads what layer `donor` has stored.
    pub fn new(donor: usize, kernels: KernelSet) -> Self {
        Self { donor, form: Form::dense(0, 0, kernels) }
    }

    /// The layer whose keys and values are read.
    pub fn donor(&self) -> usize {
        self.donor
    }
}

impl Cache for SharedLayer {
    fn append(&mut self, _keys: &Array, _values: &Array) -> Result<AttentionRead> {
        Err(Error::Kind { layer: "a shared layer", asked: "keys and values" })
    }

    fn trim(&mut self, _tokens: usize) -> Result<()> {
        Ok(())
    }

    fn trimmable(&self) -> usize {
        usize::MAX
    }

    fn live(&self) -> Result<Option<Planes>> {
        Ok(None)
    }

    fn form(&self) -> &Form {
        &self.form
    }

    fn lengths(&self) -> Vec<usize> {
        Vec::new()
    }

    fn converted(&self) -> Result<Self> {
        Ok(self.clone())
    }

    fn begin(&mut self) -> Self {
        self.clone()
    }

    fn rollback(&mut self, _before: Self) {}

    fn accept(&mut self, _before: &Self) {}

    fn commit(&mut self, _before: &Self, _keep: &[usize]) -> Result<()> {
        Ok(())
    }

    fn arrays(&self) -> Vec<&Array> {
        Vec::new()
    }

    fn saved(&self) -> Result<Saved> {
        Ok(Saved { format: "nothing".to_owned(), length: 0, next: 0, arrays: Vec::new() })
    }

    fn restored(&self, _saved: Saved) -> Result<Self> {
        Ok(self.clone())
    }

    fn stack(caches: &[&Self]) -> Result<Self> {
        Ok(caches[0].clone())
    }

    fn select(&self, _indices: &[usize]) -> Result<Self> {
        Ok(self.clone())
    }

    fn extract(&self, _row: usize) -> Result<Self> {
        Ok(self.clone())
    }

    fn begin_padded(&mut self, _lengths: &[usize], _side: Side) -> Result<()> {
        Ok(())
    }

    fn end_padded(&mut self) -> Result<()> {
        Ok(())
    }
}

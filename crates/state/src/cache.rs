//! The contract between a layer and its cache. Caches of any kind are cloned, put together and taken apart without
//! copying until one of the clones writes; every operation either succeeds or leaves the cache as it was.

use crate::error::Result;
use crate::form::Form;
use crate::layer::Side;
use crate::planes::Planes;
use crate::read::AttentionRead;
use crate::snapshot::Saved;
use strata_tensor::Array;

/// What every cache does, besides being cloned: arrays are shared by clones until one of them writes.
pub(crate) trait Cache: Sized {
    /// As [`LayerState::append`].
    fn append(&mut self, keys: &Array, values: &Array) -> Result<AttentionRead>;

    /// Gives up the newest `tokens` positions, at most [`Cache::trimmable`].
    fn trim(&mut self, tokens: usize) -> Result<()>;

    /// Positions that can be given up so that what is left is all that would be held without them.
    fn trimmable(&self) -> usize;

    /// What the newest query could see, in time order.
    fn live(&self) -> Result<Option<Planes>>;

    fn form(&self) -> &Form;

    /// Tokens of every row, without padding.
    fn lengths(&self) -> Vec<usize>;

    /// The same in the format that the form changes to.
    fn converted(&self) -> Result<Self>;

    /// Opens a round, in which the form does not change; gives what ending it needs of the cache as it is.
    fn begin(&mut self) -> Self;

    /// Ends the round as if nothing had been appended.
    fn rollback(&mut self, before: Self);

    /// Ends the round keeping what was appended.
    fn accept(&mut self, before: &Self);

    /// Ends the round as if the first `keep` positions of each row had been appended, one by one. After an error the cache
    /// can only be rolled back.
    fn commit(&mut self, before: &Self, keep: &[usize]) -> Result<()>;

    /// Everything held, or what stands for it: evaluating these evaluates it.
    fn arrays(&self) -> Vec<&Array>;

    /// Bytes held, room to grow included.
    fn bytes(&self) -> usize {
        self.arrays().iter().map(|array| array.nbytes()).sum()
    }

    /// The rows of several caches, one below the other; those that hold less are padded on the left.
    fn stack(caches: &[&Self]) -> Result<Self>;

    /// The rows at these indices, in their order.
    fn select(&self, indices: &[usize]) -> Result<Self>;

    /// One row by itself, without padding and in memory of its own.
    fn extract(&self, row: usize) -> Result<Self>;

    /// Becomes a batch, of as many rows as there are lengths if it was empty, whose next positions are padded.
    fn begin_padded(&mut self, lengths: &[usize], side: Side) -> Result<()>;

    /// Moves padding on the right of rows to their left.
    fn end_padded(&mut self) -> Result<()>;

    /// What a file must hold of one row.
    fn saved(&self) -> Result<Saved>;

    /// This empty cache with what was saved of one like it.
    ///
    /// # Errors
    /// [`Error::Snapshot`](crate::Error::Snapshot).
    fn restored(&self, saved: Saved) -> Result<Self>;
}

//! The crate's one error type.

use strata_tensor::Shape;

/// Result of a cache operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a cache. The cache is as it was before.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] strata_tensor::Error),
    /// Keys and values that are not what the layer stores.
    #[error(
        "layer stores keys [{}, {kv_heads}, L, {head_dim}] and values of as many rows, heads and positions, L at \
         least 1, but got keys {keys} and values {values}",
        rows.map_or_else(|| "B".to_owned(), |rows| rows.to_string())
    )]
    Shape {
        /// Key/value heads declared.
        kv_heads: u32,
        /// Values per head declared.
        head_dim: u32,
        /// Rows held, once there are any.
        rows: Option<usize>,
        /// Shape of the keys.
        keys: Shape,
        /// Shape of the values.
        values: Shape,
    },
    /// More positions to give up than a layer can go back.
    #[error("cannot give up the newest {asked} positions: layer {layer} can go back {possible} at most")]
    Trim {
        /// Positions asked for.
        asked: usize,
        /// The layer that goes back least.
        layer: usize,
        /// Positions it can give up.
        possible: usize,
    },
    /// A row that the batch does not have.
    #[error("there is no row {row} in a batch of {rows}")]
    NoSuchRow {
        /// Row asked for.
        row: usize,
        /// Rows held.
        rows: usize,
    },
    /// A batch of no rows.
    #[error("a batch needs at least one row")]
    NoRows,
    /// States of different graphs or compositions.
    #[error("states to be put together differ at layer {layer}: {first}; {other}")]
    Unlike {
        /// First layer that differs.
        layer: usize,
        /// What the first state keeps there.
        first: String,
        /// What the other keeps.
        other: String,
    },
    /// Rows that are still read padded on the right.
    #[error("rows cannot join, leave or be copied before their padding has been moved to the left")]
    OpenRows,
    /// A list with one entry a row that has another length.
    #[error("{given} lengths were given for {rows} rows")]
    Lengths {
        /// Entries given.
        given: usize,
        /// Rows held.
        rows: usize,
    },
    /// Padding on the left of rows that already hold something.
    #[error("rows at position {position} cannot be padded on the left: only empty ones can")]
    LeftPadding {
        /// The longest row's position.
        position: usize,
    },
    /// A ring that keeps its first positions has no batch form.
    #[error("a ring that keeps its first {keep} positions cannot be a row of a batch")]
    KeptRows {
        /// Positions kept.
        keep: usize,
    },
    /// A number format that a layer's heads cannot have.
    #[error("layer {layer} cannot keep keys and values in this format: {reason}")]
    Format {
        /// The layer.
        layer: usize,
        /// Why not.
        reason: String,
    },
    /// Rows in different number formats have no common view.
    #[error("rows are stored in different number formats; extract one of them first")]
    MixedRows,
    /// Something that a round must not change.
    #[error("a round is open: until it ends, rows cannot join, leave, be copied or be trimmed")]
    InRound,
    /// More positions to keep than a round has appended.
    #[error("cannot keep {asked} positions of row {row}: the round appended {appended}")]
    Keep {
        /// The row.
        row: usize,
        /// Positions to keep.
        asked: usize,
        /// Positions appended.
        appended: usize,
    },
    /// A layer used as one of another kind.
    #[error("{layer} was given {asked}")]
    Kind {
        /// What the layer keeps.
        layer: &'static str,
        /// What it was given.
        asked: &'static str,
    },
    /// A recurrence over nothing.
    #[error("a recurrence needs at least one input")]
    NoInputs,
    /// A snapshot and a state that do not fit each other.
    #[error("the snapshot does not fit: {reason}")]
    Snapshot {
        /// Why not.
        reason: String,
    },
}

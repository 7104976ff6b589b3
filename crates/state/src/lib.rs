#![doc = include_str!("../README.md")]
//! # Why this shape
//!
//! Storage and attention meet in one place, [`LayerState::append`]: whoever stores keys and values knows which of them
//! a query may see and how to read them fastest, so it hands out the read. A graph that took keys, values and a mask
//! instead would have to know every storage.
//!
//! The position of a forward pass is a value read once ([`State::positions`]) before the first layer appends: layers
//! that share keys rotate at the same position, whatever has been appended meanwhile.
#![forbid(unsafe_code)]

mod bytes;
mod cache;
mod container;
mod disk;
mod error;
mod form;
mod format;
mod layer;
mod mask;
mod mixed;
mod paged;
mod plain;
mod planes;
mod pool;
mod prefix;
mod read;
mod recurrent;
mod rotating;
mod round;
mod rows;
mod shared;
mod snapshot;
mod state;
mod step;

pub use bytes::{bytes_per_token, projected_bytes};
pub use disk::DiskCache;
pub use error::{Error, Result};
pub use layer::{LayerState, Phase, Side};
pub use mixed::MixedRows;
pub use paged::PagedCache;
pub use plain::PlainCache;
pub use prefix::{PrefixCache, PrefixStatistics};
pub use read::AttentionRead;
pub use recurrent::{Memory, Recurrence, RecurrentCache, RecurrentSpan};
pub use rotating::RotatingCache;
pub use round::Round;
pub use shared::SharedLayer;
pub use snapshot::Snapshot;
pub use state::{Positions, State};
pub use step::StandIn;

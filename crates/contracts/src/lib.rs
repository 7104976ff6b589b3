//! Types that cross a border between Strata's crates, and nothing that needs a native library.
//!
//! ```
//! use strata_contracts::{Composition, KernelSet, QuantScheme, SamplingOptions};
//!
//! let composition = Composition { kernels: KernelSet::Reference, ..Composition::default() };
//! assert_eq!(composition.kernels, KernelSet::Reference);
//!
//! let four_bit = QuantScheme::affine(4, 32).unwrap();
//! assert_eq!(four_bit.packed_columns(576).unwrap(), 72);
//!
//! assert!(SamplingOptions { top_p: 0.0, ..SamplingOptions::default() }.validated().is_err());
//! ```
//!
//! **Why this shape.** A type belongs here when two crates that do not depend on each other both speak it.
//! Everything is plain data: no arrays, no files, no async, no HTTP. Checked values are made by constructors
//! that say what was wrong; an option record is checked as a whole by `validated`.
#![forbid(unsafe_code)]

mod composition;
mod declaration;
mod dtype;
mod event;
mod quant;
mod sampling;

pub use composition::{Composition, KernelSet};
pub use declaration::{Capabilities, GraphDeclaration, LayerKind};
pub use dtype::Dtype;
pub use event::{FinishReason, Statistics};
pub use quant::{QuantError, QuantMode, QuantScheme};
pub use sampling::{SamplingError, SamplingOptions};

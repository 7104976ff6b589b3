#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod composition;
mod declaration;
mod dtype;
mod event;
mod kv;
mod quant;
mod sampling;

pub use composition::{Composition, KernelSet};
pub use declaration::{Capabilities, GraphDeclaration, LayerKind};
pub use dtype::Dtype;
pub use event::{FinishReason, Statistics};
pub use kv::{KvFormat, KvScheme, LayerKv};
pub use quant::{QuantError, QuantMode, QuantScheme};
pub use sampling::{SamplingError, SamplingOptions};

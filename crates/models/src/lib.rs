#![doc = include_str!("../README.md")]
//! # Why this shape
//!
//! State is passed, never held: one graph serves any number of sequences. The graph gives hidden states and logits
//! apart, because most positions of a prompt need no logits. A family declares itself once ([`Graph::declaration`]);
//! nothing asks for its name afterwards.
//!
//! # How to add a family
//!
//! A file in `families/` with the beats of `families/llama.rs`, a line in `registry.rs`, a table of tiny
//! configurations in `tests/oracle/families.py` and its section in `docs/parity.md`.
//!
//! # Letters of shapes
//!
//! `B` rows, `L` new positions, `S` positions seen, `D` values of a head, `H` query heads, `K` key/value heads, `E`
//! hidden size, `F` feed-forward size, `V` vocabulary.
#![forbid(unsafe_code)]

mod config;
mod decode;
mod error;
mod families;
mod graph;
mod layers;
mod registry;
mod weights;

pub use decode::DecodeStep;
pub use error::{Error, Result};
pub use graph::Graph;
pub use registry::{declare, load, supported_model_types};

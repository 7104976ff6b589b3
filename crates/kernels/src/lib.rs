//! Fused operations, each beside its reference: one folder a kernel.
//!
//! **Why this shape.** A folder's `mod.rs` is the contract (shapes, dtypes, the formula and its source),
//! `reference.rs` is the same mathematics in tensor ops, and the implementations stand beside it. A host form is
//! `host.rs` (checks, partition over the [`host::pool`]) over one file of SIMD bodies for each instruction set in
//! `host/`, or one generic body over [`host::lanes`]. Those SIMD files and `host/pool.rs` are the only places of this
//! crate that hold `unsafe`.
//!
//! Shape letters: `B` batch, `M` rows of activations, `K` input features, `N` output features, `G` group size of a
//! quantized matrix, `H` heads, `L` query length, `S` key length, `D` head dimension.
//!
//! This crate knows neither models nor caches.
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![allow(
    clippy::inline_always,
    reason = "a SIMD body must be compiled inside the function that enables its instructions"
)]

pub mod append;
pub mod attention;
pub mod causal_conv;
mod error;
pub mod experts;
pub mod gated_activation;
pub mod gated_delta;
pub mod host;
pub mod layer_norm;
pub mod paged_attention;
pub mod qk_norm_rope;
pub mod quantize;
pub mod quantized_attention;
pub mod rms_norm;
pub mod rope;
pub mod sample;
pub mod turbo;

pub mod embedding;
pub mod linear;
pub mod matmul;
mod offset;
pub mod quantized_matmul;

pub use error::Error;
pub use offset::Offset;

#![doc = include_str!("../README.md")]
//! # Why this shape
//!
//! An operation whose first operand is an array is a method (`x.matmul(&w)?`); one without (`concatenate`, `zeros`,
//! `where_`) is a function in [`ops`]; fused ones stand in [`fast`]. Each is one thin call of one MLX operation of the
//! same name. The stream is never an argument: [`Stream::scope`] chooses it for a stretch of code.
//!
//! `Array` holds a raw pointer and so is neither `Send` nor `Sync`. That is the point: MLX keeps streams per thread,
//! and two threads that evaluate one graph crash it, so the compiler keeps a graph on its thread.
//!
//! ```compile_fail
//! let x = strata_tensor::ops::zeros(&[2], strata_tensor::Dtype::Float32).unwrap();
//! std::thread::spawn(move || x.eval());
//! ```
//!
//! In reading order: [`Array`], [`Shape`], [`ops`], [`fast`], [`random`], [`compile`], [`host`] and [`kernel`] (code of
//! one's own in the graph), [`memory`], [`io`].
#![deny(unsafe_code)]

pub mod compile;
mod error;
pub mod fast;
pub mod faults;
pub mod host;
mod host_memory;
pub mod io;
pub mod kernel;
pub mod ops;
pub mod random;
mod raw;
mod shape;

pub use error::{Error, Failure, Result};
pub use ops::{async_eval, eval};
pub use raw::{Array, Device, Element, Stream};
pub use shape::Shape;
pub use strata_contracts::Dtype;

pub mod memory {
    //! MLX's memory: limits and counters, in bytes.
    pub use crate::raw::counters::{
        active_memory, cache_memory, clear_cache, memory_limit, peak_memory, reset_peak_memory,
        set_cache_limit, set_memory_limit,
    };
}

/// Which libmlx this was built against: `cpu`, `cuda-12`, `cuda-13`, `metal` or `custom`.
pub const BACKEND: &str = strata_sys::BACKEND;

#![doc = include_str!("../README.md")]
//! # Why this shape
//!
//! A stream is an iterator that owns nothing but the sequence's sampler: graph and state are borrowed, so the caller
//! decides what becomes of the state afterwards (the next turn of a conversation, a prefix cache, nothing).
//!
//! In reading order: `stream`, `prefill`, `sampling`, `score`.
#![forbid(unsafe_code)]

mod error;
mod prefill;
mod sampling;
mod score;
mod stream;

pub use error::{Error, Result};
pub use prefill::{check_prompt, prefill};
pub use sampling::Sampler;
pub use score::negative_log_likelihoods;
pub use stream::{Options, TokenStream};

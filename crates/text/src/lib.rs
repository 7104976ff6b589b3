//! Tokens and strings: encode, decode, stream, stop, and render conversations.
//!
#![doc = include_str!("../README.md")]
//!
//! **Why this shape.** Everything here is a pure function of files and strings, so that every rule can be tested
//! without a model. A `Tokenizer` is shared; what a single sequence remembers (`Detokenizer`, `StopMatcher`) is a
//! value of its own. Read in this order: `tokenizer`, `pieces`, `detokenize`, `special`, `stops`, `template`.
#![forbid(unsafe_code)]

mod config;
mod detokenize;
mod error;
mod pieces;
mod special;
mod stops;
mod template;
mod tokenizer;

pub use config::TokenizerConfig;
pub use detokenize::{Detokenizer, SpecialTokens};
pub use error::{Error, Result};
pub use special::StopTokens;
pub use stops::{StopMatcher, StopStep, StopStrings};
pub use template::{ChatTemplate, Message, RenderOptions, TemplateSource};
pub use tokenizer::Tokenizer;

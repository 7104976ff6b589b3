//! GGUF files: what is refused, what the values are, and what a converted folder holds.

mod blocks;
mod convert;
mod malformed;
mod nearest;
#[path = "../support/random.rs"]
mod random;
#[path = "../support/mod.rs"]
mod support;
mod vocabularies;

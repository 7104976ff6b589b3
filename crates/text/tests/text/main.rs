//! Tests of strata-text from outside, one file a subject; one binary, so that they link once.

mod common;
mod golden;
mod stops;
mod streams;
mod templates;
mod tokenizer;

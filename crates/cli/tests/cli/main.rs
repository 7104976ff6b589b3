//! The command from outside: what is typed and piped in, against what comes out on both streams and the exit status.
//! The model is the parity tests' tiny llama with a tokenizer of single letters.

mod answers;
mod bad_input;
mod bad_models;
mod chat;
mod convert;
mod kv;
mod models;
mod support;
mod usage;

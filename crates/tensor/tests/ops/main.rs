//! Every operation against plain Rust on the same numbers, with dimensions that differ from each other.

mod arithmetic;
mod create;
mod errors;
mod fast;
mod files;
mod index;
mod layout;
mod matmul;
mod quant;
mod random;
mod reduce;
mod shape;
mod streams;
mod support;

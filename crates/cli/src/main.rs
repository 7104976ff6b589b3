//! The `strata` command.
#![forbid(unsafe_code)]

fn main() {}

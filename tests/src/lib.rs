//! What tests that cross crates share: reading and comparing results of the oracle. The tests are in `tests/tests/`.
#![forbid(unsafe_code)]

pub mod parity;

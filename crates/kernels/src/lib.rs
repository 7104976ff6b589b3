//! Fused operations, each beside its reference.
#![deny(unsafe_code)]

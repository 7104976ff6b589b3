//! Host bodies of the quantized product: a tile of at most [`TILE`](crate::linear::host::TILE) output features at a time.
//!
//! `panels` multiplies what `pack` has made for it with what `activations` has rounded; `dequantize` widens rows of matrices as
//! files hold them for the float32 arithmetic.

pub(crate) mod activations;
pub(crate) mod dequantize;
pub(crate) mod pack;
pub(crate) mod panels;

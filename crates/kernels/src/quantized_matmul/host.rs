//! Host bodies of the quantized product: a tile of at most [`TILE`](crate::linear::host::TILE) output features at a time.
//!
//! `panels` multiplies what `pack` has made for it, any number of rows; the others read matrices as files hold them:
//! `vector` streams the packed weights once for a few rows of activations; `matrix` unpacks a tile and uses it for many
//! rows; `dequantize` widens rows for the float32 arithmetic. `activations` rounds activations to int8.

pub(crate) mod activations;
pub(crate) mod dequantize;
pub(crate) mod matrix;
pub(crate) mod pack;
pub(crate) mod panels;
pub(crate) mod vector;

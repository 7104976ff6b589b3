//! Rows of a quantized table: `y[i] = scales * q[ids[i]] + biases`, in the type of the output.
//!
//! Shapes: `ids [M]`, the table as in [`quantized_matmul`](crate::quantized_matmul), `y [M, K]`. One float32 rounding, then one
//! to the output type.

pub mod host;

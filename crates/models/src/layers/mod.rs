//! Blocks that at least two families share. A block that one family needs stays in its file.
//!
//! Every operation is mlx-lm's in mlx-lm's order (docs/parity.md says where the order matters).

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod decoder;
pub(crate) mod embedding;
mod frequencies;
pub(crate) mod head;
pub(crate) mod linear;
pub(crate) mod mlp;
pub(crate) mod norm;
pub(crate) mod rope;

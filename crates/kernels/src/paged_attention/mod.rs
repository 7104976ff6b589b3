//! Attention over keys and values in pages of a common pool, which each row of a batch finds through a table: no row is
//! gathered first.
//!
//! # Contract
//! - `q` is `[B, Hq, L, Dk]` in float32, float16 or bfloat16. Pages hold `page` positions each: keys
//!   `[P, Hkv, page, Dk]` and values `[P, Hkv, page, Dv]`, either both dense in the type of the queries, or both
//!   affine-quantized as [`crate::quantized_attention`] has them, with bits and groups of their own. `Hq` is a multiple of `Hkv`, and query
//!   head `h` reads key head `h / (Hq / Hkv)`. The result is `[B, Hq, L, Dv]`, or `[B, L, Hq * Dv]`, in the type of the
//!   queries.
//! - `tables` is int32 `[B, N]`: position `s` of row `b` is at place `s % page` of page `tables[b, s / page]`. `lengths`
//!   is int32 `[B]`: the positions that a row has. Entries of a table behind them are never read, nor is what a page
//!   holds behind them. Rows may share pages.
//! - `offsets` is int32 `[B]`: query `i` of row `b` stands at position `offsets[b] + i` and sees the row's positions up to
//!   its own. A query that sees none (padding before a row) gets zeros; one behind the row's end (padding after it) sees
//!   all.
//! - Scores are `cap(scale * q k^T)`, with `cap` as in [`crate::attention`].
//! - A page outside the pool, or a length that the table doesn't cover, is an error when the result is evaluated.
//!
//! Storage through a block table is that of arXiv 2309.06180.

pub mod host;
mod node;
pub mod reference;

use crate::host::heads::Layout;
use strata_tensor::host::apply;
use strata_tensor::ops::Quantized;
use strata_tensor::{Array, Result};

/// All pages of a pool.
#[derive(Debug, Clone)]
pub enum Pages {
    /// Keys and values as they are.
    Dense(Array, Array),
    /// Keys and values affine-quantized.
    Affine(Quantized, Quantized),
}

/// Which pages the rows of a batch have, and where their queries stand.
#[derive(Debug, Clone)]
pub struct Tables {
    /// int32 `[B, N]`: a row's pages in order.
    pub tables: Array,
    /// int32 `[B]`: positions that a row has.
    pub lengths: Array,
    /// int32 `[B]`: the position of a row's first query.
    pub offsets: Array,
}

/// What shapes the scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Factor of the dot products.
    pub scale: f32,
    /// Bound of the scores by a scaled tanh.
    pub softcap: Option<f32>,
}

/// Attention with the host kernel, into an array of the given layout: `[B, Hq, L, Dv]` or `[B, L, Hq * Dv]`.
///
/// # Errors
/// Operands that do not fit each other, a type that is not one of the contract's, or a mode other than affine.
#[track_caller]
pub fn paged_attention(
    q: &Array,
    pages: &Pages,
    tables: &Tables,
    options: Options,
    layout: Layout,
) -> Result<Array> {
    let (kernel, stored) = node::PagedAttention::new(pages, options, layout)?;
    let inputs: Vec<&Array> =
        [q, &tables.tables, &tables.lengths, &tables.offsets].into_iter().chain(stored).collect();
    Ok(apply(kernel, &inputs)?.remove(0))
}

//! What a layer's keys and values must look like, checked once where they come in.

use crate::error::{Error, Result};
use crate::planes::Planes;
use strata_tensor::Array;

/// Key/value heads and their width, as the graph declared them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
}

impl Heads {
    /// Keys `[B, Hkv, L, D]` and values `[B, Hkv, L, Dv]` as planes; `rows` is `B` if it is known already.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(crate) fn planes(self, keys: &Array, values: &Array, rows: Option<usize>) -> Result<Planes> {
        let (k, v) = (keys.shape(), values.shape());
        let declared = |shape: &[i32]| shape.len() == 4 && shape[1] == self.kv_heads as i32 && shape[2] > 0;
        let fits = declared(&k)
            && declared(&v)
            && k[3] == self.head_dim as i32
            && k[0] == v[0]
            && k[2] == v[2]
            && rows.is_none_or(|rows| k[0] as usize == rows);
        if !fits {
            let Self { kv_heads, head_dim } = self;
            return Err(Error::Shape { kv_heads, head_dim, rows, keys: k, values: v });
        }
        Ok(Planes::new(vec![keys.clone(), values.clone()]))
    }
}

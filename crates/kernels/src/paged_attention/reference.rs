//! Paged attention in tensor operations: pages are gathered, what rows lack is zeroed and masked.

use super::{Options, Pages, Tables};
use crate::attention::{self, Span};
use crate::host::heads::Layout;
use crate::quantized_attention;
use strata_tensor::ops::{self, Quantized};
use strata_tensor::{Array, Dtype, Result};

/// Attention into an array of the given layout. Entries of tables that the contract leaves unread must be pages all the same.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn paged_attention(
    q: &Array,
    pages: &Pages,
    tables: &Tables,
    options: Options,
    layout: Layout,
) -> Result<Array> {
    let column = |of: &Array| of.reshape([of.dim(0), 1, 1, 1]);
    let (lengths, offsets) = (column(&tables.lengths)?, column(&tables.offsets)?);
    let page = match pages {
        Pages::Dense(keys, _) => keys.dim(2),
        Pages::Affine(keys, _) => keys.weight.dim(2),
    };
    let keys = tables.tables.dim(1) * page;
    let positions = |end: i32| ops::arange(0.0, f64::from(end), 1.0, Dtype::Int32);
    let columns = positions(keys)?; // [S]
    let places = offsets.add(&positions(q.dim(2))?.expand_dims(&[1])?)?; // [B, 1, L, 1]
    let held = columns.less(&lengths)?; // [B, 1, 1, S]
    let seen = columns.less_equal(&places)?.logical_and(&held)?; // [B, 1, L, S]
    let held = held.reshape([lengths.dim(0), 1, keys, 1])?;
    let gather = |plane: &Array| {
        let (heads, width) = (plane.dim(1), plane.dim(3));
        let rows = plane.take(&tables.tables, 0)?.transpose(&[0, 2, 1, 3, 4])?; // [B, Hkv, N, page, *]
        let rows = rows.reshape([lengths.dim(0), heads, keys, width])?;
        ops::where_(&held, &rows, &rows.number(0.0)?)
    };
    let scores = attention::Options {
        mask: Some(&seen),
        softcap: options.softcap,
        ..attention::Options::new(options.scale, Span::All)
    };
    let out = match pages {
        Pages::Dense(keys, values) => {
            attention::reference::attention(q, &gather(keys)?, &gather(values)?, &scores, Layout::HeadsFirst)?
        }
        Pages::Affine(keys, values) => {
            let gather = |of: &Quantized| {
                Ok::<_, strata_tensor::Error>(Quantized {
                    weight: gather(&of.weight)?,
                    scales: gather(&of.scales)?,
                    biases: of.biases.as_ref().map(gather).transpose()?,
                    scheme: of.scheme,
                })
            };
            let (keys, values) = (gather(keys)?, gather(values)?);
            quantized_attention::reference::quantized_attention(
                q,
                &keys,
                &values,
                &scores,
                Layout::HeadsFirst,
            )?
        }
    };
    // 1 where a query sees a key, which then is the first one at least.
    let any =
        places.greater_equal(&Array::from_i32(0))?.logical_and(&lengths.greater(&Array::from_i32(0))?)?;
    let out = ops::where_(&any, &out, &out.number(0.0)?)?;
    match layout {
        Layout::HeadsFirst => Ok(out),
        Layout::PositionsFirst => out.transpose(&[0, 2, 1, 3])?.flatten(2, 3),
    }
}

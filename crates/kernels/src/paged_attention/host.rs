//! Paged attention on the CPU: the tasks of [`crate::attention::host`] over rows found through a table.

use super::Options;
use crate::Error;
use crate::attention::Span;
use crate::attention::host::store::{Dense, Store};
use crate::attention::host::{self as attention, Place};
use crate::host::Level;
use crate::host::heads::{Heads, Layout};
use crate::host::lanes::Lane;
use crate::quantized_attention::host::{Packed, Quantized};

const KERNEL: &str = "paged_attention";

/// All pages of a pool: keys and values, `[P, H, page, D]` each.
#[derive(Debug, Clone, Copy)]
pub enum Pages<'a, E> {
    /// As they are.
    Dense(Heads<'a, E>, Heads<'a, E>),
    /// Affine-quantized.
    Affine(Quantized<'a, E>, Quantized<'a, E>),
}

/// Which pages the rows of a batch have, and where their queries stand.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// `[B, N]`: a row's pages in order.
    pub tables: &'a [i32],
    /// `[B]`: positions that a row has.
    pub lengths: &'a [i32],
    /// `[B]`: the position of a row's first query.
    pub offsets: &'a [i32],
}

/// Attention into `out`, contiguous in `layout`.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit each other, tables and lengths included.
pub fn paged_attention<E: Lane>(
    level: Level,
    q: Heads<'_, E>,
    pages: Pages<'_, E>,
    tables: Tables<'_>,
    options: Options,
    layout: Layout,
    out: &mut [E],
) -> Result<(), Error> {
    let run = Run { level, q, tables, options, layout, out };
    match pages {
        Pages::Dense(k, v) => run.over(Dense(k), Dense(v)),
        // The common widths have bodies of their own; 0 finds the width out at each vector.
        Pages::Affine(k, v) => match (k.bits(), v.bits()) {
            (4, 4) => run.over(Packed::<E, 4>(k), Packed::<E, 4>(v)),
            (8, 8) => run.over(Packed::<E, 8>(k), Packed::<E, 8>(v)),
            _ => run.over(Packed::<E, 0>(k), Packed::<E, 0>(v)),
        },
    }
}

struct Run<'a, 'o, E> {
    level: Level,
    q: Heads<'a, E>,
    tables: Tables<'a>,
    options: Options,
    layout: Layout,
    out: &'o mut [E],
}

impl<E: Lane> Run<'_, '_, E> {
    fn over<K: Store, V: Store>(self, k: K, v: V) -> Result<(), Error> {
        let Self { level, q, tables, options, layout, out } = self;
        if v.shape()[..3] != k.shape()[..3] {
            let [pages, heads, page, _] = k.shape();
            return Err(refusal(
                "v",
                format!("shape [{pages}, {heads}, {page}, _]"),
                format!("{:?}", v.shape()),
            ));
        }
        let places = places(&q, k.shape(), tables)?;
        let keys = places.iter().map(|place| place.keys).max().unwrap_or(0);
        let (rows, page) = (places.len(), k.shape()[2]);
        let table =
            Shared { rows, keys, columns: tables.tables.len() / rows.max(1), page, tables: tables.tables };
        let mut scores = attention::Options::new(options.scale, Span::Causal);
        (scores.softcap, scores.places) = (options.softcap, Some(&places[..]));
        attention::run(
            KERNEL,
            level,
            q,
            Paged { pages: k, table },
            Paged { pages: v, table },
            &scores,
            layout,
            out,
        )
    }
}

/// Where the rows stand, with every page that they have found within the pool `[P, H, page, D]`.
fn places<E>(q: &Heads<'_, E>, pool: [usize; 4], tables: Tables<'_>) -> Result<Vec<Place>, Error> {
    let [pages, _, page, _] = pool;
    let rows = q.shape()[0];
    let Tables { tables, lengths, offsets } = tables;
    for (operand, held) in [("lengths", lengths.len()), ("offsets", offsets.len())] {
        if held != rows {
            return Err(refusal(operand, format!("{rows} elements"), format!("{held}")));
        }
    }
    if rows == 0 {
        return Ok(Vec::new());
    }
    if !tables.len().is_multiple_of(rows) {
        return Err(refusal("tables", format!("{rows} rows of equal length"), format!("{}", tables.len())));
    }
    let columns = tables.len() / rows;
    let mut places = Vec::with_capacity(rows);
    for (row, (&length, &offset)) in lengths.iter().zip(offsets).enumerate() {
        let Some(keys) = usize::try_from(length).ok().filter(|&keys| keys <= columns * page) else {
            let most = columns * page;
            return Err(refusal(
                "lengths",
                format!("0 to {most} positions in row {row}"),
                format!("{length}"),
            ));
        };
        let used = &tables[row * columns..][..keys.div_ceil(page.max(1))];
        if let Some(found) =
            used.iter().find(|&&id| usize::try_from(id).is_ok_and(|id| id >= pages) || id < 0)
        {
            return Err(refusal("tables", format!("pages below {pages} in row {row}"), format!("{found}")));
        }
        places.push(Place { offset, keys });
    }
    Ok(places)
}

fn refusal(operand: &'static str, expected: String, got: String) -> Error {
    Error::Shape { kernel: KERNEL, operand, expected, got }
}

/// The tables, with every page that a row has known to be in the pool.
#[derive(Clone, Copy)]
struct Shared<'a> {
    rows: usize,
    /// Of the longest row.
    keys: usize,
    columns: usize,
    page: usize,
    tables: &'a [i32],
}

/// Rows of a batch in the pages of a store whose batch axis is the pool.
#[derive(Clone, Copy)]
struct Paged<'a, P> {
    pages: P,
    table: Shared<'a>,
}

impl<P: Store> Store for Paged<'_, P> {
    type Rows = P::Rows;

    fn shape(&self) -> [usize; 4] {
        let [_, heads, _, width] = self.pages.shape();
        [self.table.rows, heads, self.table.keys, width]
    }

    #[inline]
    fn rows(&self, batch: usize, head: usize, position: usize) -> (P::Rows, usize) {
        let Shared { columns, page, tables, .. } = self.table;
        let id = tables[batch * columns + position / page];
        self.pages.rows(id as usize, head, position % page)
    }
}

#[cfg(test)]
mod tests;

//! Host form: one row after the other; many rows are spread over all cores.

use crate::Error;
use crate::host::element::{Floats, each_float};
use crate::host::{Element, Level, pool, scratch};
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::host::dequantize;

/// Rows that are looked up on the calling thread.
const ALONE: usize = 16;

/// What rows are looked up in.
#[derive(Debug, Clone, Copy)]
pub enum Table<'a> {
    /// `[V, K]`, row-major, with `K`.
    Plain(Floats<'a>, usize),
    /// Affine-quantized.
    Quantized(Quantized<'a>),
}

impl Table<'_> {
    fn rows(&self) -> usize {
        match self {
            Self::Plain(values, columns) => values.len() / (*columns).max(1),
            Self::Quantized(table) => table.rows() * table.count(),
        }
    }

    fn columns(&self) -> usize {
        match self {
            Self::Plain(_, columns) => *columns,
            Self::Quantized(table) => table.columns(),
        }
    }

    fn widen(&self, level: Level, row: usize, to: &mut [f32]) {
        match *self {
            Self::Plain(values, columns) => {
                each_float!(values, values => Element::widen(level, &values[row * columns..][..columns], to));
            }
            Self::Quantized(table) => dequantize::rows(level, table, row, to),
        }
    }
}

/// Looks up `ids` in `table` and multiplies by `factor`; `out` is `[ids, K]`.
///
/// # Errors
/// [`Error::Shape`] for a row outside the table or an output of another size; nothing is written then.
pub fn lookup<T: Element>(table: Table<'_>, ids: &[u32], factor: f32, out: &mut [T]) -> Result<(), Error> {
    lookup_at(Level::best(), table, ids, factor, out)
}

/// As [`lookup`], with the instructions of `level`, which must be one of [`Level::available`].
///
/// # Errors
/// As [`lookup`].
#[allow(clippy::float_cmp, reason = "one is the factor that changes nothing")]
pub fn lookup_at<T: Element>(
    level: Level,
    table: Table<'_>,
    ids: &[u32],
    factor: f32,
    out: &mut [T],
) -> Result<(), Error> {
    let (rows, columns) = (table.rows(), table.columns());
    let refuse =
        |operand, expected: String, got: String| Error::Shape { kernel: "embedding", operand, expected, got };
    if let Some(id) = ids.iter().find(|&&id| id as usize >= rows) {
        return Err(refuse("ids", format!("rows below {rows}"), id.to_string()));
    }
    if out.len() != ids.len() * columns {
        let expected = format!("{} x {columns} values", ids.len());
        return Err(refuse("output", expected, out.len().to_string()));
    }
    if out.is_empty() {
        return Ok(());
    }
    let look = |id: u32, out: &mut [T]| {
        scratch::with_f32(columns, |floats| {
            table.widen(level, id as usize, floats);
            if factor != 1.0 {
                for x in floats.iter_mut() {
                    *x *= factor;
                }
            }
            T::narrow(level, floats, out);
        });
    };
    if ids.len() <= ALONE {
        ids.iter().zip(out.chunks_exact_mut(columns)).for_each(|(&id, out)| look(id, out));
    } else {
        pool::parallel_chunks(out, columns, |at, out| look(ids[at], out));
    }
    Ok(())
}

//! Host form: one row after the other; many rows are spread over all cores.

use crate::Error;
use crate::host::element::{Floats, each_float};
use crate::host::{Element, Level, pool, scratch};
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::host::{dequantize, pack};
use crate::quantized_matmul::panels::Panels;
use smallvec::{SmallVec, smallvec};

/// Rows that are looked up on the calling thread.
const ALONE: usize = 16;

/// What rows are looked up in.
#[derive(Debug, Clone, Copy)]
pub enum Table<'a> {
    /// `[V, K]`, row-major, with `K`.
    Plain(Floats<'a>, usize),
    /// Affine-quantized.
    Quantized(Quantized<'a>),
    /// Affine-quantized, in panels.
    Panels(Panels<'a>),
}

impl Table<'_> {
    fn rows(&self) -> usize {
        match self {
            Self::Plain(values, columns) => values.len() / (*columns).max(1),
            Self::Quantized(table) => table.rows() * table.count(),
            Self::Panels(table) => table.rows() * table.count(),
        }
    }

    fn columns(&self) -> usize {
        match self {
            Self::Plain(_, columns) => *columns,
            Self::Quantized(table) => table.columns(),
            Self::Panels(table) => table.columns(),
        }
    }

    fn widen(&self, level: Level, row: usize, to: &mut [f32]) {
        match *self {
            Self::Plain(values, columns) => {
                each_float!(values, values => Element::widen(level, &values[row * columns..][..columns], to));
            }
            Self::Quantized(table) => dequantize::rows(level, table, row, to),
            Self::Panels(table) => {
                let scheme = table.scheme();
                let mut words: SmallVec<[u32; 512]> =
                    smallvec![0; table.columns() * scheme.bits() as usize / 32];
                scratch::with_f32(2 * table.groups(), |factors| {
                    let (scales, biases) = factors.split_at_mut(table.groups());
                    pack::row(table, row, &mut words, [scales, biases]);
                    let (scales, biases) = (Floats::F32(scales), Floats::F32(biases));
                    let row = Quantized::new(&words, scales, biases, scheme, 1, table.columns());
                    dequantize::rows(level, row.expect("a row of panels is a matrix of one row"), 0, to);
                });
            }
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

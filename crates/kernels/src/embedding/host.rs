//! Host form: one row after the other; many rows are spread over all cores.

use crate::Error;
use crate::host::{Element, Level, pool, scratch};
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::host::dequantize;

/// Rows that are looked up on the calling thread.
const ALONE: usize = 16;

/// Looks up `ids` in `table`; `out` is `[ids, K]`.
///
/// # Errors
/// [`Error::Shape`] for a row outside the table or an output of another size; nothing is written then.
pub fn lookup<T: Element>(table: Quantized<'_>, ids: &[u32], out: &mut [T]) -> Result<(), Error> {
    lookup_at(Level::best(), table, ids, out)
}

/// As [`lookup`], with the instructions of `level`, which must be one of [`Level::available`].
///
/// # Errors
/// As [`lookup`].
pub fn lookup_at<T: Element>(
    level: Level,
    table: Quantized<'_>,
    ids: &[u32],
    out: &mut [T],
) -> Result<(), Error> {
    let (rows, columns) = (table.rows() * table.count(), table.columns());
    let refuse =
        |operand, expected: String, got: String| Error::Shape { kernel: "embedding", operand, expected, got };
    if let Some(id) = ids.iter().find(|&&id| id as usize >= rows) {
        return Err(refuse("ids", format!("rows below {rows}"), id.to_string()));
    }
    if out.len() != ids.len() * columns {
        let expected = format!("{} x {columns} values", ids.len());
        return Err(refuse("output", expected, out.len().to_string()));
    }
    let look = |id: u32, out: &mut [T]| {
        scratch::with_f32(columns, |floats| {
            dequantize::rows(level, table, id as usize, floats);
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

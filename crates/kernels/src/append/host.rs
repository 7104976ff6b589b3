//! Appending on the CPU: rows are copied as bytes, whatever they hold.

use crate::Error;
use crate::host::pool;

/// Bytes from which a copy is worth waking another thread for.
const ALONE: usize = 1 << 17;

/// New rows of `row` bytes: `shape` is `[B, H, L]`, strides count bytes.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// From the first row to the last.
    pub bytes: &'a [u8],
    /// Batch, heads and positions.
    pub shape: [usize; 3],
    /// Bytes between neighbours along each of them.
    pub strides: [usize; 3],
    /// Bytes of a row.
    pub row: usize,
}

/// Writes rows at positions `start ..` of a contiguous buffer `[B, H, room]` of rows.
///
/// # Errors
/// [`Error::Shape`] when the buffer has another size or too little room, or a row would end past the bytes.
pub fn append(new: Rows<'_>, buffer: &mut [u8], room: usize, start: usize) -> Result<(), Error> {
    let Rows { bytes, shape: [batch, heads, length], strides: [x, y, z], row } = new;
    let refuse = |operand, expected: String, got: usize| {
        Err(Error::Shape { kernel: "append", operand, expected, got: format!("{got} bytes") })
    };
    if start + length > room || buffer.len() != batch * heads * room * row {
        let expected =
            format!("{batch} x {heads} x {room} rows of {row} bytes, {length} of them from {start} on");
        return refuse("buffer", expected, buffer.len());
    }
    if buffer.is_empty() || length == 0 {
        return Ok(());
    }
    let end = (batch - 1) * x + (heads - 1) * y + (length - 1) * z + row;
    if end > bytes.len() {
        return refuse("new", format!("{end} bytes"), bytes.len());
    }
    let copy = |index: usize, plane: &mut [u8]| {
        let from = index / heads * x + index % heads * y;
        let to = plane[start * row..].chunks_exact_mut(row).take(length);
        for (position, to) in to.enumerate() {
            to.copy_from_slice(&bytes[from + position * z..][..row]);
        }
    };
    if batch * heads * length * row < ALONE {
        buffer.chunks_exact_mut(room * row).enumerate().for_each(|(index, plane)| copy(index, plane));
    } else {
        pool::parallel_chunks(buffer, room * row, copy);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let bytes = [1; 24];
        let rows = Rows { bytes: &bytes, shape: [1, 2, 3], strides: [24, 4, 8], row: 4 };
        let mut buffer = vec![0; 2 * 5 * 4];
        assert!(append(rows, &mut buffer, 5, 2).is_ok());
        assert_eq!(buffer, [vec![0; 8], vec![1; 12], vec![0; 8], vec![1; 12]].concat());
        assert!(append(rows, &mut buffer, 5, 3).is_err());
        assert!(append(rows, &mut buffer[1..], 5, 2).is_err());
        assert!(append(Rows { bytes: &bytes[1..], ..rows }, &mut buffer, 5, 2).is_err());
    }
}

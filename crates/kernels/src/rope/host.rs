//! Rotary embedding on the CPU: a table of sines and cosines for the positions of a call, then rows of any number of arrays.
//!
//! The same rows may be normalised first (see `qk_norm_rope`); queries and keys go through one call.

mod rotate;

pub use crate::host::heads::Heads;

use super::{Frequencies, Rope};
use crate::Error;
use crate::host::lanes::{Lane, dispatch};
use crate::host::pool::{Disjoint, parallel_for};
use crate::host::rows::{PIECE, expect};
use crate::host::{Level, scratch};
use rotate::{Angles, Rotate, Table};
use smallvec::SmallVec;

/// Position of the first row.
#[derive(Debug, Clone, Copy)]
pub enum Offset<'a> {
    /// The same for the whole batch.
    Same(i32),
    /// One for each row of the batch.
    Each(&'a [i32]),
}

/// One array `[B, H, L, D]`, and where its result goes (contiguous, the same shape).
#[derive(Debug)]
pub struct Operand<'a, 'o, E> {
    /// What is rotated.
    pub x: Heads<'a, E>,
    /// Weight `[D]` and epsilon of a root-mean-square norm before the rotation.
    pub norm: Option<(&'a [E], f32)>,
    /// False for values, which are only copied to their heads.
    pub turns: bool,
    /// The result.
    pub out: &'o mut [E],
}

/// Rotates `x` into `out`.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit.
pub fn rope<E: Lane>(
    level: Level,
    x: Heads<'_, E>,
    rope: &Rope,
    offset: Offset<'_>,
    out: &mut [E],
) -> Result<(), Error> {
    rotate("rope", level, rope, offset, [Operand { x, norm: None, turns: true, out }])
}

/// Rotates queries and keys (or any other arrays with the same batch and positions) in one pass.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit.
pub fn rotate<E: Lane, const N: usize>(
    kernel: &'static str,
    level: Level,
    rope: &Rope,
    offset: Offset<'_>,
    mut operands: [Operand<'_, '_, E>; N],
) -> Result<(), Error> {
    let [batch, _, length, _] = operands[0].x.shape();
    let dims = 2 * rope.frequencies.pairs();
    for operand in &operands {
        let [b, heads, l, width] = operand.x.shape();
        if b != batch || l != length || width < dims {
            return Err(Error::Shape {
                kernel,
                operand: "x",
                expected: format!("shape [{batch}, _, {length}, {dims} or more]"),
                got: format!("[{b}, {heads}, {l}, {width}]"),
            });
        }
        expect(
            kernel,
            "norm weight",
            "elements",
            width,
            operand.norm.map_or(width, |(weight, _)| weight.len()),
        )?;
        expect(kernel, "out", "elements", batch * heads * length * width, operand.out.len())?;
    }
    if let Offset::Each(offsets) = offset {
        expect(kernel, "offset", "elements", batch, offsets.len())?;
    }
    let half = rope.frequencies.pairs();
    let sets = if matches!(offset, Offset::Each(_)) { batch } else { 1 };
    let positions = sets * length;
    scratch::with_f32(2 * positions * half, |floats| {
        let (cos, sin) = floats.split_at_mut(positions * half);
        fill(level, rope, offset, length, cos, sin);
        let table = Table {
            cos,
            sin,
            half,
            positions: if sets == 1 { 0 } else { length },
            traditional: rope.traditional,
        };
        run(level, &table, &mut operands);
    });
    Ok(())
}

/// Cosines and sines of each position's angles.
fn fill(level: Level, rope: &Rope, offset: Offset<'_>, length: usize, cos: &mut [f32], sin: &mut [f32]) {
    let half = rope.frequencies.pairs();
    if half * length == 0 {
        return;
    }
    let first = |set: usize| match offset {
        Offset::Same(offset) => offset,
        Offset::Each(offsets) => offsets[set],
    };
    // Only those of a base that grows differ between rows of the batch.
    let sets = match rope.frequencies {
        Frequencies::Fixed(_) => 1,
        Frequencies::Dynamic { .. } => cos.len() / (half * length),
    };
    let frequencies: SmallVec<[_; 1]> =
        (0..sets).map(|set| rope.frequencies.at(first(set).saturating_add(length as i32))).collect();
    crate::host::rows::for_row_pairs(cos.len() / half, half, half, cos, sin, |rows, cos, sin| {
        let results = cos.chunks_exact_mut(half).zip(sin.chunks_exact_mut(half));
        for (row, (cos, sin)) in rows.zip(results) {
            let set = row / length;
            let position = ((row % length) as f32 + first(set) as f32) * rope.scale;
            let frequencies = &frequencies[set.min(sets - 1)];
            dispatch(level, Angles { frequencies, position, factor: rope.factor, cos, sin });
        }
    });
}

/// All rows of all operands, in pieces.
#[allow(unsafe_code)]
fn run<E: Lane, const N: usize>(level: Level, table: &Table<'_>, operands: &mut [Operand<'_, '_, E>; N]) {
    let parts = operands.each_mut().map(|operand| {
        let [batch, heads, length, width] = operand.x.shape();
        let piece = PIECE.div_ceil(width.max(1));
        let rows = batch * heads * length;
        (operand.x, operand.norm, operand.turns, Disjoint::new(&mut *operand.out), rows, piece)
    });
    let pieces = |(_, _, _, _, rows, piece): &(_, _, _, _, usize, usize)| rows.div_ceil(*piece);
    parallel_for(parts.iter().map(pieces).sum(), |mut index| {
        for part in &parts {
            if index >= pieces(part) {
                index -= pieces(part);
                continue;
            }
            let (x, norm, turns, out, rows, piece) = part;
            let [_, heads, length, width] = x.shape();
            let rows = index * piece..(*rows).min((index + 1) * piece);
            // SAFETY: each piece has rows of its own.
            let out = unsafe { out.range(rows.start * width..rows.end * width) };
            for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                let (batch, head, position) = (row / (heads * length), row / length % heads, row % length);
                let from = x.row(batch, head, position);
                if !turns {
                    out.copy_from_slice(from);
                    continue;
                }
                dispatch(level, Rotate { x: from, norm: *norm, table, row: table.row(batch, position), out });
            }
            return;
        }
    });
}

#[cfg(test)]
mod tests;

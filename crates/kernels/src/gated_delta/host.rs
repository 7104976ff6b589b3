//! The gated delta rule on the CPU: each row of a head's state walks the whole sequence in registers.
//!
//! Rows of the state do not depend on each other, so they are the unit of work; a task converts a head's keys and queries
//! once and takes some of its rows. The walk does about as many multiplications a step as the chunked form and none of its
//! intermediate products leave the registers, so there is no chunked host form.

mod walk;

use crate::Error;
use crate::host::lanes::{Lane, dispatch};
use crate::host::pool::{Disjoint, parallel_for, part, threads};
use crate::host::rows::expect;
use crate::host::{Level, scratch};
use walk::{Columns, Walk};

/// Lengths of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Steps.
    pub length: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Columns of the state.
    pub key_width: usize,
    /// Rows of the state.
    pub value_width: usize,
}

/// Operands in row-major order, shapes as in the contract.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a, E> {
    /// Queries.
    pub q: &'a [E],
    /// Keys.
    pub k: &'a [E],
    /// Values.
    pub v: &'a [E],
    /// Decay: one a head, or one a column (its length tells).
    pub g: &'a [f32],
    /// Strength of the update.
    pub beta: &'a [f32],
    /// State before the first step.
    pub state: &'a [f32],
    /// Nonzero for the steps that count.
    pub mask: Option<&'a [u8]>,
}

/// Outputs into `y`, the last state into `last`.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit the sizes.
pub fn gated_delta<E: Lane>(
    level: Level,
    sizes: Sizes,
    operands: Operands<'_, E>,
    y: &mut [E],
    last: &mut [f32],
) -> Result<(), Error> {
    check(sizes, &operands, y.len(), last.len())?;
    let Sizes { batch, value_heads, value_width, .. } = sizes;
    let heads = batch * value_heads;
    if heads == 0 || y.is_empty() {
        last.copy_from_slice(operands.state);
        return Ok(());
    }
    // A few tasks a thread; rows in units that the walk takes together.
    let parts = (4 * threads()).div_ceil(heads).clamp(1, value_width.div_ceil(walk::TOGETHER));
    let (y, last) = (Disjoint::new(y), Disjoint::new(last));
    parallel_for(heads * parts, |index| {
        let (head, rows) = (index / parts, part(value_width, parts, walk::TOGETHER, index % parts));
        scratch::with_f32(Columns::floats(sizes), |floats| {
            dispatch(level, Walk { sizes, operands, head, rows, floats, y: &y, last: &last });
        });
    });
    Ok(())
}

fn check<E>(sizes: Sizes, operands: &Operands<'_, E>, y: usize, last: usize) -> Result<(), Error> {
    const KERNEL: &str = "gated_delta";
    let Sizes { batch, length, key_heads, value_heads, key_width, value_width } = sizes;
    if key_heads == 0 || !value_heads.is_multiple_of(key_heads) {
        let expected = format!("a number of heads that divides {value_heads}");
        return Err(Error::Shape { kernel: KERNEL, operand: "k", expected, got: format!("{key_heads}") });
    }
    let steps = batch * length;
    let (keys, values) = (steps * key_heads * key_width, steps * value_heads * value_width);
    let state = batch * value_heads * value_width * key_width;
    let Operands { q, k, v, g, beta, state: before, mask } = operands;
    let columns = if g.len() == steps * value_heads { 1 } else { key_width };
    for (operand, expected, got) in [
        ("q", keys, q.len()),
        ("k", keys, k.len()),
        ("v", values, v.len()),
        ("g", steps * value_heads * columns, g.len()),
        ("beta", steps * value_heads, beta.len()),
        ("state", state, before.len()),
        ("mask", steps, mask.map_or(steps, <[u8]>::len)),
        ("y", values, y),
        ("last state", state, last),
    ] {
        expect(KERNEL, operand, "elements", expected, got)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

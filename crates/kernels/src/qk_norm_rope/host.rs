//! Norm and rotation of queries and keys on the CPU: one pass over both, by the rows of [`crate::rope::host`].

use crate::Error;
use crate::host::Level;
use crate::host::lanes::Lane;
use crate::rope::Rope;
use crate::rope::host::{Offset, Operand, rotate};

/// Normalises (where the operand has a norm) and rotates queries and keys.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit.
pub fn qk_norm_rope<E: Lane>(
    level: Level,
    rope: &Rope,
    offset: Offset<'_>,
    q: Operand<'_, '_, E>,
    k: Operand<'_, '_, E>,
) -> Result<(), Error> {
    rotate("qk_norm_rope", level, rope, offset, [q, k])
}

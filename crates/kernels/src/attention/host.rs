//! Attention on the CPU: checks, the cut into tasks, and the merge of tasks that share a query.
//!
//! A task is one key head, a block of the queries that read it, and a range of keys. Few rows (decode) are cut over the
//! keys so that all cores work, and the partial results are merged in a fixed order; many rows (prefill) are cut over
//! the queries. The cut depends on shapes and thread count alone.

mod few;
mod many;
mod partition;
mod softmax;
pub(crate) mod store;
mod task;
mod tile;

use super::Span;
use crate::Error;
use crate::host::Level;
use crate::host::heads::extent;
pub use crate::host::heads::{Heads, Layout};
use crate::host::lanes::Lane;
use store::{Dense, Store};
use task::Work;

/// A mask given as an array that broadcasts to `[B, Hq, L, S]`: strides in elements, 0 along broadcast axes.
#[derive(Debug, Clone, Copy)]
pub enum ArrayMask<'a, E> {
    /// Nonzero where a key is visible.
    Boolean(&'a [u8], [usize; 4]),
    /// Added to the scores.
    Additive(&'a [E], [usize; 4]),
}

/// What shapes the scores.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a, E> {
    /// Factor of the dot products.
    pub scale: f32,
    /// Keys visible by position.
    pub span: Span,
    /// Further mask.
    pub mask: Option<ArrayMask<'a, E>>,
    /// Bound of the scores by a scaled tanh.
    pub softcap: Option<f32>,
    /// One score for each query head.
    pub sinks: Option<&'a [E]>,
    /// Where each row of the batch stands, if rows differ; the span does not matter then, and a query that sees no key
    /// gets zeros.
    pub(crate) places: Option<&'a [Place]>,
}

/// A row of a batch whose rows have keys and queries of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Position of the first query. Below zero: queries before the row's first key.
    pub(crate) offset: i32,
    /// Keys that the row has.
    pub(crate) keys: usize,
}

impl Place {
    /// Keys that a query sees: those up to its own position.
    #[inline(always)]
    fn visible(self, query: usize) -> std::ops::Range<usize> {
        let end = i64::from(self.offset) + query as i64 + 1;
        0..end.clamp(0, self.keys as i64) as usize
    }
}

impl<E> Options<'_, E> {
    /// Scores scaled by `scale` and masked by `span`; nothing else.
    pub fn new(scale: f32, span: Span) -> Self {
        Self { scale, span, mask: None, softcap: None, sinks: None, places: None }
    }
}

/// Attention into `out`, contiguous in `layout`.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit each other.
pub fn attention<E: Lane>(
    level: Level,
    q: Heads<'_, E>,
    k: Heads<'_, E>,
    v: Heads<'_, E>,
    options: &Options<'_, E>,
    layout: Layout,
    out: &mut [E],
) -> Result<(), Error> {
    run("attention", level, q, Dense(k), Dense(v), options, layout, out)
}

/// Attention over any storage of keys and values.
#[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
pub(crate) fn run<E: Lane, K: Store, V: Store>(
    kernel: &'static str,
    level: Level,
    q: Heads<'_, E>,
    k: K,
    v: V,
    options: &Options<'_, E>,
    layout: Layout,
    out: &mut [E],
) -> Result<(), Error> {
    check(kernel, &q, k.shape(), v.shape(), options, out.len())?;
    let work = Work::new(q, k, v, *options, layout);
    if !out.is_empty() {
        partition::run(level, &work, out);
    }
    Ok(())
}

fn check<E>(
    kernel: &'static str,
    q: &Heads<'_, E>,
    k: [usize; 4],
    v: [usize; 4],
    options: &Options<'_, E>,
    out: usize,
) -> Result<(), Error> {
    let [batch, heads, length, width] = q.shape();
    let shape = |operand, expected: String, got: String| Err(Error::Shape { kernel, operand, expected, got });
    if k[1] == 0 || !heads.is_multiple_of(k[1]) {
        return shape("k", format!("a number of heads that divides {heads}"), format!("{}", k[1]));
    }
    if k[0] != batch || k[3] != width {
        return shape("k", format!("shape [{batch}, _, _, {width}]"), format!("{k:?}"));
    }
    if v[..3] != k[..3] {
        return shape("v", format!("shape [{}, {}, {}, _]", k[0], k[1], k[2]), format!("{v:?}"));
    }
    let elements = [batch, heads, length, v[3]].iter().product::<usize>();
    if out != elements {
        return shape("out", format!("{elements} elements"), format!("{out}"));
    }
    if let Some(sinks) = options.sinks
        && sinks.len() != heads
    {
        return shape("sinks", format!("{heads} elements"), format!("{}", sinks.len()));
    }
    let (held, strides) = match options.mask {
        Some(ArrayMask::Boolean(data, strides)) => (data.len(), strides),
        Some(ArrayMask::Additive(data, strides)) => (data.len(), strides),
        None => return Ok(()),
    };
    let full = [batch, heads, length, k[2]];
    if extent(&full, &strides).is_none_or(|needed| needed > held) {
        return shape(
            "mask",
            format!("data for shape {full:?} at strides {strides:?}"),
            format!("{held} elements"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! Encoding and attention on the CPU: the tasks of [`crate::attention::host`] over another storage, between two rotations.

mod store;

use super::{bounds, check, levels, sign, words};
use crate::Error;
use crate::attention::host::{Options, run};
use crate::host::heads::extent;
pub use crate::host::heads::{Heads, Layout};
use crate::host::lanes::{Body, Lane, Simd, dispatch, sum_over};
use crate::host::rows::{Rows, expect, for_row_pairs, for_rows};
use crate::host::simd::{narrow, widen};
use crate::host::{Level, scratch};
use store::Rotated;

/// Keys or values `[B, H, S, D]`, as codes and norms.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    codes: &'a [u32],
    norms: &'a [f32],
    shape: [usize; 4],
    /// Of the codes and of the norms: batch, head, position.
    strides: [[usize; 3]; 2],
    bits: u8,
}

impl<'a> Stored<'a> {
    /// Takes codes `[B, H, S, D * bits / 32]` and norms `[B, H, S, 1]`, and for each the strides of its first three axes; the last
    /// is contiguous. `shape` is `[B, H, S, D]`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for widths and bits that the format has not; [`Error::Shape`] when a row would end past its data.
    pub fn new(
        (codes, norms): (&'a [u32], &'a [f32]),
        shape: [usize; 4],
        strides: [[usize; 3]; 2],
        bits: u8,
    ) -> Result<Self, Error> {
        const KERNEL: &str = "turbo_attention";
        let [batch, heads, length, width] = shape;
        check(width, bits).map_err(|what| Error::Unsupported { kernel: KERNEL, what })?;
        let operands = [("codes", codes.len(), words(width, bits)), ("norms", norms.len(), 1)];
        for ((operand, held, width), [b, h, s]) in operands.into_iter().zip(strides) {
            let shape = [batch, heads, length, width];
            if extent(&shape, &[b, h, s, 1]).is_none_or(|needed| needed > held) {
                let expected = format!("data for shape {shape:?} at strides {:?}", [b, h, s]);
                return Err(Error::Shape {
                    kernel: KERNEL,
                    operand,
                    expected,
                    got: format!("{held} elements"),
                });
            }
        }
        Ok(Self { codes, norms, shape, strides, bits })
    }
}

/// Codes and norms, contiguous, of rows `x`.
///
/// # Errors
/// [`Error::Unsupported`] for widths and bits that the format has not; [`Error::Shape`] when the results do not fit.
pub fn encode<E: Lane>(
    level: Level,
    x: Rows<'_, E>,
    bits: u8,
    codes: &mut [u32],
    norms: &mut [f32],
) -> Result<(), Error> {
    const KERNEL: &str = "turbo_encode";
    let (count, width) = (x.count(), x.width());
    check(width, bits).map_err(|what| Error::Unsupported { kernel: KERNEL, what })?;
    let each = words(width, bits);
    expect(KERNEL, "codes", "elements", count * each, codes.len())?;
    expect(KERNEL, "norms", "elements", count, norms.len())?;
    let (signs, bounds) = (signs(width), bounds(bits));
    for_row_pairs(count, each, 1, codes, norms, |rows, codes, norms| {
        scratch::with_f32(width, |values| {
            for (row, (codes, norm)) in rows.zip(codes.chunks_exact_mut(each).zip(norms)) {
                *norm = dispatch(level, Unit { x: x.row(row), values });
                dispatch(level, Rotate { values, signs: &signs, back: false, scale: 1.0 });
                codes.fill(0);
                let plane = each / bits as usize;
                for (at, &value) in values.iter().enumerate() {
                    let code = bounds.iter().map(|&bound| u32::from(value > bound)).sum::<u32>();
                    for bit in 0..bits as usize {
                        codes[bit * plane + at / 32] |= (code >> bit & 1) << (at % 32);
                    }
                }
            }
        });
    });
    Ok(())
}

/// Attention into `out`, contiguous in `layout`.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit each other.
pub fn turbo_attention<E: Lane>(
    level: Level,
    q: Heads<'_, E>,
    k: Stored<'_>,
    v: Stored<'_>,
    options: &Options<'_, E>,
    layout: Layout,
    out: &mut [E],
) -> Result<(), Error> {
    const KERNEL: &str = "turbo_attention";
    let [batch, heads, length, width] = q.shape();
    let mut rotated = vec![E::default(); batch * heads * length * width];
    for (row, to) in rotated.chunks_exact_mut(width.max(1)).enumerate() {
        to.copy_from_slice(q.row(row / (heads * length), row / length % heads, row % length));
    }
    // Keys of another width are refused below.
    if width == k.shape[3] {
        turn(level, &mut rotated, width, false);
    }
    let q = Heads::contiguous(KERNEL, "q", &rotated, q.shape(), Layout::HeadsFirst)?;
    run(KERNEL, level, q, Rotated::new(k), Rotated::new(v), options, layout, out)?;
    turn(level, out, v.shape[3], true);
    Ok(())
}

/// Rotates contiguous rows in place, or back.
fn turn<E: Lane>(level: Level, rows: &mut [E], width: usize, back: bool) {
    let signs = signs(width);
    for_rows(rows.len() / width, width, rows, |_, rows| {
        scratch::with_f32(width, |values| {
            for row in rows.chunks_exact_mut(width) {
                widen(level, row, values);
                dispatch(level, Rotate { values, signs: &signs, back, scale: 1.0 / (width as f32).sqrt() });
                narrow(level, values, row);
            }
        });
    });
}

fn signs(width: usize) -> Vec<f32> {
    (0..width).map(sign).collect()
}

/// Writes `x / |x|`, zeros of a zero vector, and returns the norm.
struct Unit<'a, E> {
    x: &'a [E],
    values: &'a mut [f32],
}

impl<E: Lane> Body for Unit<'_, E> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let Self { x, values } = self;
        let square = sum_over(s, x.len(), |at, sum| {
            let value = E::get(s, x, at);
            s.fma(value, value, sum)
        });
        let norm = square.sqrt();
        let divisor = s.splat(norm.max(f32::MIN_POSITIVE));
        for at in (0..x.len()).step_by(S::LANES) {
            f32::put(s, values, at, s.div(E::get(s, x, at), divisor));
        }
        norm
    }
}

/// The rotation, or its inverse, times a scale, of a power of two of values. Without the scale it is `sqrt(D)` times as long.
struct Rotate<'a> {
    values: &'a mut [f32],
    signs: &'a [f32],
    back: bool,
    scale: f32,
}

impl Body for Rotate<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { values, signs, back, scale } = self;
        let width = values.len();
        let scale = s.splat(scale);
        if !back {
            for at in (0..width).step_by(S::LANES) {
                f32::put(s, values, at, s.mul(f32::get(s, values, at), f32::get(s, signs, at)));
            }
        }
        let mut half = 1;
        while half < width {
            if half < S::LANES {
                for pair in values.chunks_exact_mut(2 * half) {
                    let (first, second) = pair.split_at_mut(half);
                    for (a, b) in first.iter_mut().zip(second) {
                        (*a, *b) = (*a + *b, *a - *b);
                    }
                }
            } else {
                for pair in values.chunks_exact_mut(2 * half) {
                    let (first, second) = pair.split_at_mut(half);
                    for at in (0..half).step_by(S::LANES) {
                        let (a, b) = (f32::get(s, first, at), f32::get(s, second, at));
                        f32::put(s, first, at, s.add(a, b));
                        f32::put(s, second, at, s.sub(a, b));
                    }
                }
            }
            half *= 2;
        }
        for at in (0..width).step_by(S::LANES) {
            let value = s.mul(f32::get(s, values, at), scale);
            f32::put(s, values, at, if back { s.mul(value, f32::get(s, signs, at)) } else { value });
        }
    }
}

#[cfg(test)]
mod tests;

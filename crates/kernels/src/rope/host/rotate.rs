//! Bodies: the angles of a position, and one row's norm and rotation.

use crate::host::lanes::{Body, Lane, MAX_LANES, Simd, math};
use crate::rms_norm::host::inverse_root_mean_square;

/// Cosine and sine of each angle of each position, times the factor.
pub(super) struct Table<'a> {
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
    /// Angles of a position.
    pub(super) half: usize,
    /// Positions from one batch row's set to the next; 0 when they share one.
    pub(super) positions: usize,
    pub(super) traditional: bool,
}

impl Table<'_> {
    pub(super) fn row(&self, batch: usize, position: usize) -> usize {
        batch * self.positions + position
    }
}

/// Writes cosines and sines of `position * frequencies`, times a factor.
pub(super) struct Angles<'a> {
    pub(super) frequencies: &'a [f32],
    pub(super) position: f32,
    pub(super) factor: f32,
    pub(super) cos: &'a mut [f32],
    pub(super) sin: &'a mut [f32],
}

impl Body for Angles<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let position = s.splat(self.position);
        let (limit, factor) = (s.splat(math::SIN_COS_LIMIT), s.splat(self.factor));
        for at in (0..self.frequencies.len()).step_by(S::LANES) {
            let angle = s.mul(position, f32::get(s, self.frequencies, at));
            let (sin, cos) = math::sin_cos(s, angle);
            f32::put(s, self.cos, at, s.mul(cos, factor));
            f32::put(s, self.sin, at, s.mul(sin, factor));
            if s.any(s.lt(limit, s.abs(angle))) {
                let end = self.frequencies.len().min(at + S::LANES);
                for i in at..end {
                    let (sin, cos) = f64::from(self.position * self.frequencies[i]).sin_cos();
                    (self.cos[i], self.sin[i]) = (cos as f32 * self.factor, sin as f32 * self.factor);
                }
            }
        }
    }
}

/// One row.
pub(super) struct Rotate<'a, E> {
    pub(super) x: &'a [E],
    pub(super) norm: Option<(&'a [E], f32)>,
    pub(super) table: &'a Table<'a>,
    pub(super) row: usize,
    pub(super) out: &'a mut [E],
}

impl<E: Lane> Body for Rotate<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let x = self.x;
        match self.norm {
            None => self.rotate(s, |at| E::get(s, x, at)),
            Some((weight, eps)) => {
                let factor = s.splat(inverse_root_mean_square(s, x, eps));
                self.rotate(s, |at| s.mul(s.mul(E::get(s, x, at), factor), E::get(s, weight, at)));
            }
        }
    }
}

impl<E: Lane> Rotate<'_, E> {
    /// Rotates the values that `load` gives from an index on.
    #[inline(always)]
    fn rotate<S: Simd>(self, s: S, load: impl Fn(usize) -> S::V) {
        let half = self.table.half;
        let row = self.row * half..(self.row + 1) * half;
        let (cos, sin) = (&self.table.cos[row.clone()], &self.table.sin[row]);
        let (rotated, rest) = self.out.split_at_mut(2 * half);
        for at in (0..rest.len()).step_by(S::LANES) {
            E::put(s, rest, at, load(2 * half + at));
        }
        if self.table.traditional {
            return pairs(s, load, cos, sin, rotated);
        }
        let (first, second) = rotated.split_at_mut(half);
        for at in (0..half).step_by(S::LANES) {
            // Lanes past the half belong to other pairs; `put` drops them.
            let (x, y) = (load(at), load(half + at));
            let (cos, sin) = (f32::get(s, cos, at), f32::get(s, sin, at));
            E::put(s, first, at, s.fnma(y, sin, s.mul(x, cos)));
            E::put(s, second, at, s.fma(x, sin, s.mul(y, cos)));
        }
    }
}

/// Rotates pairs of neighbours.
#[inline(always)]
fn pairs<S: Simd, E: Lane>(s: S, load: impl Fn(usize) -> S::V, cos: &[f32], sin: &[f32], out: &mut [E]) {
    let mut values = [0.0; MAX_LANES];
    for (i, out) in out.chunks_mut(S::LANES).enumerate() {
        f32::put(s, &mut values, 0, load(i * S::LANES));
        let angles = cos[i * S::LANES / 2..].iter().zip(&sin[i * S::LANES / 2..]);
        for ((out, x), (cos, sin)) in out.chunks_exact_mut(2).zip(values.chunks_exact(2)).zip(angles) {
            out[0] = E::from_f32(x[0] * cos - x[1] * sin);
            out[1] = E::from_f32(x[0] * sin + x[1] * cos);
        }
    }
}

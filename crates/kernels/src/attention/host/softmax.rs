//! The running softmax of a block of scores, one row at a time or many in lanes.

use super::task::{Running, rescale};
use crate::host::lanes::{Body, Lane, Simd, math};

/// Soft cap.
pub(super) struct Cap<'f> {
    pub(super) cap: f32,
    pub(super) scores: &'f mut [f32],
}

impl Body for Cap<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for at in (0..self.scores.len()).step_by(S::LANES) {
            let capped = math::tanh(s, s.mul(f32::get(s, self.scores, at), s.splat(1.0 / self.cap)));
            f32::put(s, self.scores, at, s.mul(capped, s.splat(self.cap)));
        }
    }
}

/// Turns a row of scores to weights and folds them into the row's running softmax; `values` is rescaled.
pub(super) struct Row<'f> {
    pub(super) scores: &'f mut [f32],
    pub(super) top: &'f mut f32,
    pub(super) total: &'f mut f32,
    pub(super) values: &'f mut [f32],
}

impl Body for Row<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { scores, top, total, values } = self;
        let mut highest = s.splat(*top);
        for at in (0..scores.len()).step_by(S::LANES) {
            highest = s.max(f32::get(s, scores, at), highest);
        }
        let highest = s.largest(highest);
        // While nothing is visible any reference will do: hidden scores weigh 0, NaN stays.
        let reference = s.splat(if highest == f32::NEG_INFINITY { 0.0 } else { highest });
        let mut sum = s.splat(0.0);
        for at in (0..scores.len()).step_by(S::LANES) {
            let weight = math::exp(s, s.sub(f32::get(s, scores, at), reference));
            sum = s.add(sum, weight);
            f32::put(s, scores, at, weight);
        }
        let factor = rescale(*top, highest);
        *total = *total * factor + s.sum(sum);
        *top = highest;
        scale(s, factor, values);
    }
}

/// Turns scores to weights, each row in its own lane; `factors` are what earlier sums are to be multiplied with.
pub(super) struct Lanes<'f, 'r> {
    pub(super) scores: &'f mut [f32],
    pub(super) padded: usize,
    pub(super) ends: Option<(&'f [f32], &'f [f32])>,
    pub(super) running: &'f mut Running<'r>,
    pub(super) factors: &'f mut [f32],
}

impl Body for Lanes<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { scores, padded, ends, running, factors } = self;
        let lowest = s.splat(f32::NEG_INFINITY);
        for row in (0..padded).step_by(S::LANES) {
            let before = f32::get(s, running.top, row);
            let mut highest = before;
            for (key, at) in (row..scores.len()).step_by(padded).enumerate() {
                let mut score = f32::get(s, scores, at);
                if let Some((first, end)) = ends {
                    let key = s.splat(key as f32);
                    score = s.select(s.lt(key, f32::get(s, first, row)), lowest, score);
                    score = s.select(s.lt(key, f32::get(s, end, row)), score, lowest);
                    f32::put(s, scores, at, score);
                }
                highest = s.max(score, highest);
            }
            // While nothing is visible any reference will do: hidden scores weigh 0, NaN stays.
            let reference = s.select(s.lt(lowest, highest), highest, s.splat(0.0));
            let mut sum = s.splat(0.0);
            for at in (row..scores.len()).step_by(padded) {
                let weight = math::exp(s, s.sub(f32::get(s, scores, at), reference));
                sum = s.add(sum, weight);
                f32::put(s, scores, at, weight);
            }
            // e^(before - highest), but 1 where the top stays, even at an infinity.
            let rises = s.lt(before, highest);
            let factor = s.select(rises, math::exp(s, s.sub(before, highest)), s.splat(1.0));
            f32::put(s, running.total, row, s.fma(f32::get(s, running.total, row), factor, sum));
            f32::put(s, running.top, row, highest);
            f32::put(s, factors, row, factor);
        }
    }
}

/// Multiplies each row's weighted values with its factor.
pub(super) struct Rescale<'f> {
    pub(super) factors: &'f [f32],
    pub(super) stride: usize,
    pub(super) values: &'f mut [f32],
}

impl Body for Rescale<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (&factor, values) in self.factors.iter().zip(self.values.chunks_exact_mut(self.stride)) {
            scale(s, factor, values);
        }
    }
}

/// Multiplies with a factor; exactly 1 is common and needs nothing.
#[inline(always)]
fn scale<S: Simd>(s: S, factor: f32, values: &mut [f32]) {
    #[allow(clippy::float_cmp, reason = "see above")]
    if factor != 1.0 {
        for at in (0..values.len()).step_by(S::LANES) {
            f32::put(s, values, at, s.mul(f32::get(s, values, at), s.splat(factor)));
        }
    }
}

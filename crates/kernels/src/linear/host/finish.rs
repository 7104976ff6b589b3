//! What happens to a row of products before it is rounded and stored.

use super::super::Activation;
use super::Finish;
use crate::host::lanes::{Body, Bytes, Lane, math};
use std::ops::Range;

/// One row of one strip.
pub(super) struct FinishRow<'a, T> {
    pub(super) finish: Finish<'a, T>,
    pub(super) first: &'a [f32],
    /// The other product of a gated pair.
    pub(super) second: Option<&'a [f32]>,
    /// Place of the row in the output, and in a residual.
    pub(super) range: Range<usize>,
    pub(super) out: &'a mut [T],
}

impl<T: Lane> Body for FinishRow<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) {
        for at in (0..self.out.len()).step_by(S::LANES) {
            let x = f32::get(s, self.first, at);
            let y = match (self.finish, self.second) {
                (Finish::SoftCap(cap), _) => {
                    let scaled = s.mul(x, s.splat(1.0 / cap));
                    s.mul(math::tanh(s, scaled), s.splat(cap))
                }
                (Finish::Add(residual), _) => s.add(T::get(s, &residual[self.range.clone()], at), x),
                (Finish::Gate(activation), Some(second)) => {
                    let gate = match activation {
                        Activation::Silu => math::silu(s, x),
                        Activation::GeluTanh => math::gelu_tanh(s, x),
                        Activation::GeluErf => math::gelu_erf(s, x),
                    };
                    s.mul(gate, f32::get(s, second, at))
                }
                _ => x,
            };
            T::put(s, self.out, at, y);
        }
    }
}

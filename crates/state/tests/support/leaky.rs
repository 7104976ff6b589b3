//! A recurrence whose steps are easy to follow.

use strata_state::{Memory, Recurrence, RecurrentSpan};
use strata_tensor::{Array, Dtype, ops};

/// Positions that its convolution looks back.
pub(crate) const TAIL: usize = 2;

/// `s = 0.9 s + tanh(sum of the newest three inputs)`, position by position; outputs the states.
pub(crate) struct Leaky;

impl Recurrence for Leaky {
    fn run(&self, before: &Memory, span: &RecurrentSpan<'_>) -> strata_state::Result<(Array, Memory)> {
        let x = &span.inputs[0]; // [B, L, C]
        let (b, l, c) = (x.dim(0), x.dim(1), x.dim(2));
        let x = match &span.real {
            Some(real) => ops::where_(&real.expand_dims(&[2])?, x, &x.number(0.0)?)?,
            None => x.clone(),
        };
        let zeros = |n: i32| ops::zeros([b, n, c], Dtype::Float32);
        let tail = before.tail.clone().map_or_else(|| zeros(TAIL as i32), Ok)?;
        let all = ops::concatenate(&[&tail, &x], 1)?;
        let mut state = before.state.clone().map_or_else(|| zeros(1), Ok)?;
        let mut outs = Vec::new();
        for t in 0..l {
            let sum = all.slice_axis(1, t, t + 3)?.sum(1, true)?;
            let next = state.multiply_number(0.9)?.add(&sum.tanh()?)?;
            state = match &span.real {
                Some(real) => ops::where_(&real.slice_axis(1, t, t + 1)?.expand_dims(&[2])?, &next, &state)?,
                None => next,
            };
            outs.push(state.clone());
        }
        let out = ops::concatenate(&outs.iter().collect::<Vec<_>>(), 1)?;
        Ok((out, Memory { tail: Some(span.tail(&all, TAIL)?), state: Some(state) }))
    }
}

//! Filters over log-probabilities `[B, V]`: what is dropped becomes -inf. They see the full, untempered distribution,
//! and at least the likeliest token always stays.

use crate::error::Result;
use strata_tensor::{Array, Dtype, ops};

/// Keeps the smallest set of likeliest tokens whose probabilities sum to at least `p`; equal ones stay together.
pub(super) fn top_p(logprobs: &Array, p: f32) -> Result<Array> {
    let sorted = logprobs.sort(-1)?; // ascending
    let probabilities = sorted.astype(Dtype::Float32)?.exp()?;
    let above = probabilities.cumsum(-1, true, false)?; // mass strictly above each
    let v = logprobs.dim(-1);
    let first = |a: &Array| a.slice_axis(-1, 0, 1);
    let total = first(&above)?.add(&first(&probabilities)?)?;
    let dropped = above.greater_equal(&total.multiply_number(p)?)?.astype(Dtype::Int32)?.sum(-1, true)?;
    // The likeliest stays also where rounding (or p itself) would drop everything.
    let dropped = dropped.minimum(&Array::from_i32(v - 1))?;
    let threshold = sorted.take_along_axis(&dropped, -1)?;
    drop_where(logprobs, &logprobs.less(&threshold)?)
}

/// Keeps tokens at least `p` times as likely as the likeliest.
pub(super) fn min_p(logprobs: &Array, p: f32) -> Result<Array> {
    let threshold = logprobs.max(-1, true)?.add_number(p.ln())?;
    drop_where(logprobs, &logprobs.less(&threshold)?)
}

/// Keeps the `k` likeliest tokens; among equals at the border, some `k`.
pub(super) fn top_k(logprobs: &Array, k: i32) -> Result<Array> {
    let order = logprobs.negative()?.argpartition(k - 1, -1)?;
    let beyond = order.slice_axis(-1, k, logprobs.dim(-1))?;
    Ok(logprobs.put_along_axis(&beyond, &logprobs.number(f32::NEG_INFINITY)?, -1)?)
}

fn drop_where(logprobs: &Array, dropped: &Array) -> Result<Array> {
    Ok(ops::where_(dropped, &logprobs.number(f32::NEG_INFINITY)?, logprobs)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(filtered: &Array) -> Vec<usize> {
        let values = filtered.to_vec::<f32>().unwrap();
        (0..values.len()).filter(|&i| values[i].is_finite()).collect()
    }

    /// Probabilities .15 .5 .05 .3, in no order.
    fn distribution() -> Array {
        Array::from_slice(&[0.15f32.ln(), 0.5f32.ln(), 0.05f32.ln(), 0.3f32.ln()], [1, 4]).unwrap()
    }

    #[test]
    fn b24_filters_keep_what_the_untempered_distribution_says() {
        assert_eq!(kept(&top_p(&distribution(), 0.8).unwrap()), [1, 3]);
        assert_eq!(kept(&top_p(&distribution(), 0.81).unwrap()), [0, 1, 3]);
        assert_eq!(kept(&min_p(&distribution(), 0.1).unwrap()), [0, 1, 2, 3]);
        assert_eq!(kept(&min_p(&distribution(), 0.31).unwrap()), [1, 3]);
        assert_eq!(kept(&top_k(&distribution(), 3).unwrap()), [0, 1, 3]);
    }

    #[test]
    fn b24_one_token_always_survives() {
        for p in [1e-9, 0.5, 0.999_999] {
            assert!(kept(&top_p(&distribution(), p).unwrap()).contains(&1));
        }
        assert_eq!(kept(&min_p(&distribution(), 1.0).unwrap()), [1]);
        assert_eq!(kept(&top_k(&top_p(&distribution(), 0.8).unwrap(), 1).unwrap()), [1]);
    }

    #[test]
    fn b25_each_row_is_filtered_in_its_own_order() {
        let reversed = [0.3f32, 0.05, 0.5, 0.15].map(f32::ln);
        let rows = ops::concatenate(&[&distribution(), &Array::from_slice(&reversed, [1, 4]).unwrap()], 0);
        let filtered = top_p(&rows.unwrap(), 0.8).unwrap();
        assert_eq!(kept(&filtered), [1, 3, 4, 6]);
    }
}

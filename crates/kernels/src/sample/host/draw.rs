//! Drawing one index of a row: filters as thresholds on the weights, then the place where the running sum passes the draw.

use super::super::Draw;
use super::{Largest, check};
use crate::Error;
use crate::host::lanes::{Body, Lane, Simd, dispatch, math};
use crate::host::rows::{Rows, expect};
use crate::host::{Level, scratch};

/// Draws an index of each row; `uniform` has a number in `0 .. 1` for each.
///
/// # Errors
/// [`Error::Shape`] when the rows are empty or the operands do not fit.
pub fn draw<E: Lane>(
    level: Level,
    logits: Rows<'_, E>,
    uniform: &[f32],
    options: Draw,
    out: &mut [u32],
) -> Result<(), Error> {
    check("draw", &logits, 1)?;
    expect("draw", "uniform", "elements", logits.count(), uniform.len())?;
    expect("draw", "out", "elements", logits.count(), out.len())?;
    for (row, (out, uniform)) in out.iter_mut().zip(uniform).enumerate() {
        *out = draw_of(level, logits.row(row), *uniform, options);
    }
    Ok(())
}

fn draw_of<E: Lane>(level: Level, row: &[E], uniform: f32, options: Draw) -> u32 {
    let (largest, at) = dispatch(level, Largest(row));
    if !largest.is_finite() {
        return at;
    }
    let weigh = |weights: &mut [f32], factor| dispatch(level, Weights { row, largest, factor, out: weights });
    scratch::with_f32(row.len(), |drawn| {
        weigh(drawn, 1.0 / options.temperature);
        if options.filters() {
            // The weights of the untempered distribution decide who stays; the tempered ones, who is drawn.
            scratch::with_f32(row.len(), |weights| {
                weigh(weights, 1.0);
                let floor = threshold(weights, options);
                drawn
                    .iter_mut()
                    .zip(weights)
                    .filter(|(_, w)| **w < floor)
                    .for_each(|(drawn, _)| *drawn = 0.0);
            });
        }
        let total: f64 = drawn.iter().map(|&w| f64::from(w)).sum();
        let goal = f64::from(uniform) * total;
        let mut sum = 0.0;
        for (index, &weight) in drawn.iter().enumerate() {
            sum += f64::from(weight);
            if sum > goal {
                return index as u32;
            }
        }
        at
    })
}

/// The smallest weight `exp(x - max)` that passes the filters: top-p, then min-p, then top-k of what they leave.
fn threshold(weights: &[f32], options: Draw) -> f32 {
    let mut floor = options.min_p;
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    if options.top_p < 1.0 {
        // Weights below this cannot sum to what top-p leaves out, so the last one that it keeps is not among them.
        let least = ((1.0 - f64::from(options.top_p)) * total / weights.len() as f64) as f32;
        let mut likely: Vec<f32> = weights.iter().copied().filter(|&w| w >= least).collect();
        likely.sort_unstable_by(|a, b| b.total_cmp(a));
        // A set that reaches its goal but for the rounding of weights and `top_p` reaches it.
        let goal = f64::from(options.top_p) * total * (1.0 - 4.0 * f64::from(f32::EPSILON));
        let mut sum = 0.0;
        for weight in likely {
            sum += f64::from(weight);
            if sum >= goal {
                floor = floor.max(weight);
                break;
            }
        }
    }
    let k = options.top_k as usize;
    if k > 0 && k < weights.len() {
        let mut left: Vec<f32> = weights.iter().copied().filter(|&w| w >= floor).collect();
        if k < left.len() {
            let (_, smallest, _) = left.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            floor = floor.max(*smallest);
        }
    }
    floor
}

/// `exp((x - largest) * factor)`; 0 for NaN.
struct Weights<'a, E> {
    row: &'a [E],
    largest: f32,
    factor: f32,
    out: &'a mut [f32],
}

impl<E: Lane> Body for Weights<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (largest, factor, zero) = (s.splat(self.largest), s.splat(self.factor), s.splat(0.0));
        for at in (0..self.row.len()).step_by(S::LANES) {
            let x = s.mul(s.sub(E::get(s, self.row, at), largest), factor);
            f32::put(s, self.out, at, s.max(math::exp(s, x), zero));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::Random;

    fn drawn(x: &[f32], uniform: f32, options: Draw) -> u32 {
        let rows = Rows::contiguous("test", "x", x, x.len()).unwrap();
        let all: Vec<u32> = Level::available()
            .into_iter()
            .map(|level| {
                let mut out = [u32::MAX];
                draw(level, rows, &[uniform], options, &mut out).unwrap();
                out[0]
            })
            .collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
        all[0]
    }

    /// Probabilities .15 .5 .05 .3, in no order.
    fn row() -> Vec<f32> {
        [0.15_f32, 0.5, 0.05, 0.3].map(f32::ln).to_vec()
    }

    /// Indices that draws in steps of a hundredth give, with how many steps each.
    fn shares(x: &[f32], options: Draw) -> Vec<usize> {
        let mut shares = vec![0; x.len()];
        (0..100).for_each(|i| shares[drawn(x, (i as f32 + 0.5) / 100.0, options) as usize] += 1);
        shares
    }

    #[test]
    fn draws_follow_the_distribution_and_its_temperature() {
        let plain = Draw { temperature: 1.0, top_p: 1.0, min_p: 0.0, top_k: 0 };
        assert_eq!(shares(&row(), plain), [15, 50, 5, 30]);
        // At temperature 1/2, probabilities are squared: .0225 .25 .0025 .09 of .365.
        assert_eq!(shares(&row(), Draw { temperature: 0.5, ..plain }), [6, 69, 0, 25]);
    }

    #[test]
    fn b24_filters_keep_what_the_untempered_distribution_says() {
        let kept = |options: Draw| {
            let shares = shares(&row(), Draw { temperature: 5.0, ..options });
            (0..4).filter(|&i| shares[i] > 0).collect::<Vec<_>>()
        };
        let plain = Draw { temperature: 1.0, top_p: 1.0, min_p: 0.0, top_k: 0 };
        assert_eq!(kept(Draw { top_p: 0.8, ..plain }), [1, 3]);
        assert_eq!(kept(Draw { top_p: 0.81, ..plain }), [0, 1, 3]);
        assert_eq!(kept(Draw { min_p: 0.0999, ..plain }), [0, 1, 2, 3]);
        assert_eq!(kept(Draw { min_p: 0.31, ..plain }), [1, 3]);
        assert_eq!(kept(Draw { top_k: 3, ..plain }), [0, 1, 3]);
        assert_eq!(kept(Draw { top_p: 1e-9, ..plain }), [1]);
        assert_eq!(kept(Draw { min_p: 1.0, ..plain }), [1]);
        assert_eq!(kept(Draw { top_k: 1, top_p: 0.9, ..plain }), [1]);
    }

    #[test]
    fn nan_and_infinities_are_never_drawn_while_a_number_is_there() {
        let (nan, none) = (f32::NAN, f32::NEG_INFINITY);
        let plain = Draw { temperature: 0.7, top_p: 0.95, min_p: 0.01, top_k: 3 };
        for uniform in [0.0, 0.3, 0.999_999_9] {
            assert_eq!(drawn(&[nan, none, 2.0, nan, none], uniform, plain), 2);
            assert_eq!(drawn(&[none; 19], uniform, plain), 0);
            assert_eq!(drawn(&[1.0, f32::INFINITY, 3.0], uniform, plain), 1);
        }
    }

    #[test]
    fn every_draw_of_a_large_row_is_where_the_running_sum_says() {
        let x: Vec<f32> = Random::new(3).vec(49_153, 4.0);
        let options = Draw { temperature: 0.8, top_p: 1.0, min_p: 0.0, top_k: 0 };
        let weights: Vec<f64> = x.iter().map(|&x| (f64::from(x) / 0.8).exp()).collect();
        let total: f64 = weights.iter().sum();
        for uniform in [0.0, 0.1, 0.5, 0.77, 0.999_99] {
            let index = drawn(&x, uniform, options) as usize;
            let before: f64 = weights[..index].iter().sum::<f64>() / total;
            let after = before + weights[index] / total;
            let slack = 1e-5;
            assert!(before - slack <= f64::from(uniform) && f64::from(uniform) <= after + slack, "{uniform}");
        }
    }
}

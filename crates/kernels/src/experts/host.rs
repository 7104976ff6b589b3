//! Routing and sums of experts on the CPU.

use crate::Error;
use crate::host::lanes::{Body, Lane, Simd, dispatch, math};
use crate::host::rows::{Rows, expect, for_row_pairs, for_rows};
use crate::host::{Level, scratch};

/// The `k` largest of each row, their indices and shares, both contiguous.
///
/// # Errors
/// [`Error::Shape`] when a row has fewer than `k` values or the results do not fit.
pub fn route<E: Lane>(
    level: Level,
    logits: Rows<'_, E>,
    k: usize,
    normalised: bool,
    chosen: &mut [u32],
    shares: &mut [E],
) -> Result<(), Error> {
    const KERNEL: &str = "route";
    let (count, width) = (logits.count(), logits.width());
    if k == 0 || k > width {
        let (expected, got) = (format!("{} values in a row", k.max(1)), width.to_string());
        return Err(Error::Shape { kernel: KERNEL, operand: "logits", expected, got });
    }
    expect(KERNEL, "chosen", "elements", count * k, chosen.len())?;
    expect(KERNEL, "shares", "elements", count * k, shares.len())?;
    for_row_pairs(count, k, k, chosen, shares, |rows, chosen, shares| {
        scratch::with_f32(width, |values| {
            for (row, (chosen, shares)) in
                rows.zip(chosen.chunks_exact_mut(k).zip(shares.chunks_exact_mut(k)))
            {
                let total = dispatch(level, Softmax { row: logits.row(row), values });
                largest(values, chosen);
                let of = |&index: &u32| values[index as usize];
                let whole = if normalised { chosen.iter().map(of).sum() } else { total };
                for (share, index) in shares.iter_mut().zip(&*chosen) {
                    *share = E::from_f32(of(index) / whole);
                }
            }
        });
    });
    Ok(())
}

/// Indices of the largest values, as many as `chosen` holds, in descending order.
fn largest(values: &[f32], chosen: &mut [u32]) {
    // NaN is below everything.
    let value = |index: u32| if values[index as usize].is_nan() { -1.0 } else { values[index as usize] };
    let mut found = 0;
    for index in 0..values.len() as u32 {
        let place = chosen[..found].iter().rposition(|&other| value(other) >= value(index));
        let place = place.map_or(0, |place| place + 1);
        if place < chosen.len() {
            found = (found + 1).min(chosen.len());
            chosen[place..found].rotate_right(1);
            chosen[place] = index;
        }
    }
}

/// Writes `exp(x - largest x)` and returns the sum.
struct Softmax<'a, E> {
    row: &'a [E],
    values: &'a mut [f32],
}

impl<E: Lane> Body for Softmax<'_, E> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let Self { row, values } = self;
        let mut most = f32::NEG_INFINITY;
        for (x, value) in row.iter().zip(&mut *values) {
            *value = x.to_f32();
            most = most.max(*value);
        }
        for at in (0..values.len()).step_by(S::LANES) {
            let power = math::exp(s, s.sub(f32::get(s, values, at), s.splat(most)));
            f32::put(s, values, at, power);
        }
        values.iter().sum()
    }
}

/// `residual + sum over k (shares * said)` into `out` (contiguous); each row of the residual has `k` consecutive rows of `said`.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit each other.
pub fn combine<E: Lane>(
    level: Level,
    residual: Rows<'_, E>,
    said: Rows<'_, E>,
    shares: Rows<'_, E>,
    out: &mut [E],
) -> Result<(), Error> {
    const KERNEL: &str = "combine";
    let (count, width) = (residual.count(), residual.width());
    expect(KERNEL, "shares", "rows", count, shares.count())?;
    expect(KERNEL, "said", "rows", count * shares.width(), said.count())?;
    expect(KERNEL, "said", "values in a row", width, said.width())?;
    expect(KERNEL, "out", "elements", count * width, out.len())?;
    for_rows(count, width, out, |rows, out| {
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            dispatch(level, Combine { row, residual: residual.row(row), said, shares: shares.row(row), out });
        }
    });
    Ok(())
}

struct Combine<'a, E> {
    row: usize,
    residual: &'a [E],
    said: Rows<'a, E>,
    shares: &'a [E],
    out: &'a mut [E],
}

impl<E: Lane> Body for Combine<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { row, residual, said, shares, out } = self;
        for at in (0..out.len()).step_by(S::LANES) {
            let mut sum = E::get(s, residual, at);
            for (k, share) in shares.iter().enumerate() {
                let x = E::get(s, said.row(row * shares.len() + k), at);
                sum = s.fma(s.splat(share.to_f32()), x, sum);
            }
            E::put(s, out, at, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, close, ulp, wide};
    use half::{bf16, f16};

    fn check_route<E: Lane>() {
        for (count, width, k) in [(1, 1, 1), (3, 5, 2), (7, 60, 4), (300, 128, 8), (2, 33, 33)] {
            let x: Vec<E> = Random::new(width as u64).vec(count * width, 3.0);
            let logits = Rows::contiguous("test", "x", &x, width).unwrap();
            for (level, normalised) in
                Level::available().into_iter().flat_map(|level| [(level, false), (level, true)])
            {
                let (mut chosen, mut shares) = (vec![9999; count * k], vec![E::default(); count * k]);
                route(level, logits, k, normalised, &mut chosen, &mut shares).unwrap();
                for (row, (chosen, shares)) in chosen.chunks(k).zip(shares.chunks(k)).enumerate() {
                    let x = wide(logits.row(row));
                    let mut order: Vec<usize> = (0..width).collect();
                    order.sort_by(|&a, &b| x[b].total_cmp(&x[a])); // stable: lower indices first
                    let expected: Vec<u32> = order[..k].iter().map(|&i| i as u32).collect();
                    assert_eq!(chosen, expected, "{level:?} {width} {k}");
                    let among = if normalised { &order[..k] } else { &order[..] };
                    let whole: f64 = among.iter().map(|&i| x[i].exp()).sum();
                    let expected: Vec<f64> = order[..k].iter().map(|&i| x[i].exp() / whole).collect();
                    close("shares", shares, &expected, |i| 8.0 * ulp::<E>() * expected[i]);
                }
            }
        }
    }

    #[test]
    fn the_likeliest_are_chosen_with_their_shares_in_every_type() {
        check_route::<f32>();
        check_route::<f16>();
        check_route::<bf16>();
    }

    #[test]
    fn of_equal_logits_the_first_are_chosen_and_nan_last() {
        for level in Level::available() {
            let x = [2.0, 5.0, 5.0, f32::NEG_INFINITY, 2.0, 5.0];
            let logits = Rows::contiguous("test", "x", &x, 6).unwrap();
            let (mut chosen, mut shares) = ([0; 4], [0.0; 4]);
            route(level, logits, 4, true, &mut chosen, &mut shares).unwrap();
            assert_eq!(chosen, [1, 2, 5, 0]);
            let x = [f32::NAN, 1.0, f32::NAN, 3.0];
            let logits = Rows::contiguous("test", "x", &x, 4).unwrap();
            route(level, logits, 4, true, &mut chosen, &mut shares).unwrap();
            assert_eq!(chosen, [3, 1, 0, 2]);
            assert!(shares.iter().all(|share| share.is_nan()));
            let nothing = [f32::NAN; 4];
            let logits = Rows::contiguous("test", "x", &nothing, 4).unwrap();
            route(level, logits, 4, false, &mut chosen, &mut shares).unwrap();
            assert_eq!(chosen, [0, 1, 2, 3]);
        }
    }

    fn check_combine<E: Lane>() {
        for (count, width, k) in [(1, 1, 1), (3, 19, 2), (5, 64, 8), (2, 5000, 4)] {
            let mut random = Random::new((width + k) as u64);
            let residual: Vec<E> = random.vec(count * width, 1.0);
            let (said, shares): (Vec<E>, Vec<E>) =
                (random.vec(count * k * width, 1.0), random.vec(count * k, 1.0));
            let rows = |x, width| Rows::contiguous("test", "x", x, width).unwrap();
            for level in Level::available() {
                let mut out = vec![E::default(); count * width];
                let operands = (rows(&residual, width), rows(&said, width), rows(&shares, k));
                combine(level, operands.0, operands.1, operands.2, &mut out).unwrap();
                for (row, out) in out.chunks(width).enumerate() {
                    let share = wide(&shares[row * k..][..k]);
                    let said: Vec<_> =
                        (0..k).map(|i| wide(&said[(row * k + i) * width..][..width])).collect();
                    let mut expected = wide(&residual[row * width..][..width]);
                    for (i, x) in expected.iter_mut().enumerate() {
                        *x += share.iter().zip(&said).map(|(share, said)| share * said[i]).sum::<f64>();
                    }
                    close("sums", out, &expected, |i| ulp::<E>() * expected[i].abs() + 1e-6 * k as f64);
                }
            }
        }
    }

    #[test]
    fn what_experts_say_is_added_by_their_shares_in_every_type() {
        check_combine::<f32>();
        check_combine::<f16>();
        check_combine::<bf16>();
    }

    #[test]
    fn operands_that_do_not_fit_are_refused_by_name() {
        let x = [0.0_f32; 12];
        let rows = |width| Rows::contiguous("test", "x", &x, width).unwrap();
        let error = route(Level::best(), rows(4), 5, true, &mut [0; 15], &mut [0.0; 15]).unwrap_err();
        assert_eq!(error.to_string(), "[route] logits needs 5 values in a row but has 4");
        let error = route(Level::best(), rows(4), 2, true, &mut [0; 5], &mut [0.0; 6]).unwrap_err();
        assert_eq!(error.to_string(), "[route] chosen needs 6 elements but has 5");
        let error = combine(Level::best(), rows(4), rows(4), rows(3), &mut [0.0; 12]).unwrap_err();
        assert_eq!(error.to_string(), "[combine] shares needs 3 rows but has 4");
    }
}

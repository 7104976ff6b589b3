//! Picking from logits on the CPU. A row is cut into pieces, so that one row of a large vocabulary uses all cores; each
//! piece gives its best, and the pieces are merged in order.

mod draw;

pub use draw::draw;

use crate::Error;
use crate::host::Level;
use crate::host::lanes::{Body, Lane, MAX_LANES, Simd, dispatch};
use crate::host::pool::{parallel_chunks, part};
use crate::host::rows::{PIECE, Rows, expect};
use std::cmp::Ordering;

/// A value and where it stands.
type Pick = (f32, u32);

/// Index of each row's largest value.
///
/// # Errors
/// [`Error::Shape`] when the rows are empty or the result does not fit.
pub fn argmax<E: Lane>(level: Level, logits: Rows<'_, E>, out: &mut [u32]) -> Result<(), Error> {
    check("argmax", &logits, 1)?;
    expect("argmax", "out", "elements", logits.count(), out.len())?;
    let pieces = logits.width().div_ceil(PIECE);
    let mut best = vec![(f32::NEG_INFINITY, 0); logits.count() * pieces];
    parallel_chunks(&mut best, 1, |index, best| {
        let (row, piece) = (logits.row(index / pieces), part(logits.width(), pieces, 1, index % pieces));
        let (value, at) = dispatch(level, Largest(&row[piece.clone()]));
        best[0] = (value, piece.start as u32 + at);
    });
    for (out, pieces) in out.iter_mut().zip(best.chunks_exact(pieces)) {
        let mut best = (f32::NEG_INFINITY, 0);
        for &piece in pieces.iter().filter(|piece| piece.0 > f32::NEG_INFINITY) {
            if piece.0 > best.0 {
                best = piece;
            }
        }
        *out = best.1;
    }
    Ok(())
}

/// Values and indices of each row's `k` largest, descending.
///
/// # Errors
/// [`Error::Shape`] when a row has fewer than `k` values or the results do not fit.
pub fn top_k<E: Lane>(
    level: Level,
    logits: Rows<'_, E>,
    k: usize,
    values: &mut [E],
    indices: &mut [u32],
) -> Result<(), Error> {
    check("top_k", &logits, k)?;
    expect("top_k", "values", "elements", logits.count() * k, values.len())?;
    expect("top_k", "indices", "elements", logits.count() * k, indices.len())?;
    // Every piece must be able to give k.
    let pieces = (logits.width() / PIECE.max(k)).max(1);
    let mut best: Vec<Vec<Pick>> = vec![Vec::new(); logits.count() * pieces];
    parallel_chunks(&mut best, 1, |index, best| {
        let (row, piece) = (logits.row(index / pieces), part(logits.width(), pieces, 1, index % pieces));
        best[0] = dispatch(level, Best { row: &row[piece.clone()], start: piece.start as u32, k });
    });
    let results = values.chunks_exact_mut(k).zip(indices.chunks_exact_mut(k));
    for (i, (values, indices)) in results.enumerate() {
        let mut picks = best[i * pieces..(i + 1) * pieces].concat();
        picks.sort_unstable_by(order);
        for ((value, index), pick) in values.iter_mut().zip(indices).zip(picks) {
            // The element itself, so that a NaN keeps its bits.
            (*value, *index) = (logits.row(i)[pick.1 as usize], pick.1);
        }
    }
    Ok(())
}

fn check<E>(kernel: &'static str, logits: &Rows<'_, E>, k: usize) -> Result<(), Error> {
    if k >= 1 && k <= logits.width() && u32::try_from(logits.width()).is_ok() {
        return Ok(());
    }
    let expected = format!("rows of {} to {} values", k.max(1), u32::MAX);
    Err(Error::Shape { kernel, operand: "logits", expected, got: format!("{}", logits.width()) })
}

/// Larger values first, then lower indices; NaN last.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "what sorting takes")]
fn order(a: &Pick, b: &Pick) -> Ordering {
    match (a.0.is_nan(), b.0.is_nan()) {
        (false, false) => b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1)),
        (a_nan, b_nan) => a_nan.cmp(&b_nan).then(a.1.cmp(&b.1)),
    }
}

/// The largest value of a piece and its first index; minus infinity at 0 when there is none.
struct Largest<'a, E>(&'a [E]);

impl<E: Lane> Body for Largest<'_, E> {
    type Out = Pick;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Pick {
        // Each lane keeps its first largest value and the step it was seen at; steps are exact in float32.
        let (mut best, mut seen) = (s.splat(f32::NEG_INFINITY), s.splat(0.0));
        let whole = self.0.len() / S::LANES * S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            let x = E::get(s, self.0, at);
            let larger = s.lt(best, x);
            seen = s.select(larger, s.splat((at / S::LANES) as f32), seen);
            best = s.select(larger, x, best);
        }
        let (mut values, mut steps) = ([f32::NEG_INFINITY; MAX_LANES], [0.0; MAX_LANES]);
        f32::put(s, &mut values, 0, best);
        f32::put(s, &mut steps, 0, seen);
        let lanes = (0..S::LANES).map(|lane| (values[lane], steps[lane] as usize * S::LANES + lane));
        let tail = (whole..self.0.len()).map(|at| (self.0[at].to_f32(), at));
        let mut pick = (f32::NEG_INFINITY, 0);
        for (value, at) in lanes.chain(tail) {
            #[allow(clippy::float_cmp, reason = "ties are exact")]
            let tie = value == pick.0 && value > f32::NEG_INFINITY && (at as u32) < pick.1;
            if value > pick.0 || tie {
                pick = (value, at as u32);
            }
        }
        pick
    }
}

/// The `k` best of a piece, in any order.
struct Best<'a, E> {
    row: &'a [E],
    start: u32,
    k: usize,
}

impl<E: Lane> Body for Best<'_, E> {
    type Out = Vec<Pick>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<Pick> {
        let Self { row, start, k } = self;
        let room = (2 * k).max(256) + S::LANES;
        let mut picks: Vec<Pick> = Vec::with_capacity(room);
        // Values up to the threshold can't be among the best any more: they are not larger than k earlier ones.
        let mut threshold = f32::NEG_INFINITY;
        for at in (0..row.len()).step_by(S::LANES) {
            if !s.any(s.lt(s.splat(threshold), E::get(s, row, at))) {
                continue;
            }
            let end = row.len().min(at + S::LANES);
            for (i, x) in row[at..end].iter().enumerate() {
                let x = x.to_f32();
                if x > threshold {
                    picks.push((x, start + (at + i) as u32));
                }
            }
            if picks.len() + S::LANES > room {
                picks.select_nth_unstable_by(k - 1, order);
                picks.truncate(k);
                threshold = picks[k - 1].0;
            }
        }
        if picks.len() > k {
            picks.select_nth_unstable_by(k - 1, order);
            picks.truncate(k);
        } else if picks.len() < k {
            // Minus infinity and NaN fill up what numbers did not.
            let rest = row.iter().enumerate().map(|(i, x)| (x.to_f32(), start + i as u32));
            let mut rest: Vec<Pick> = rest.filter(|x| x.0.is_nan() || x.0 == f32::NEG_INFINITY).collect();
            rest.sort_unstable_by(order);
            let missing = k - picks.len();
            picks.extend(rest.into_iter().take(missing));
        }
        picks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::Random;
    use half::{bf16, f16};

    fn sorted<E: Lane>(row: &[E]) -> Vec<u32> {
        let mut picks: Vec<Pick> = row.iter().enumerate().map(|(i, x)| (x.to_f32(), i as u32)).collect();
        picks.sort_by(order);
        picks.into_iter().map(|x| x.1).collect()
    }

    fn check_row<E: Lane>(row: &[E], what: &str) {
        let expected = sorted(row);
        let rows = Rows::contiguous("test", "x", row, row.len()).unwrap();
        for level in Level::available() {
            let mut index = [u32::MAX];
            argmax(level, rows, &mut index).unwrap();
            let first = if row[expected[0] as usize].to_f32() > f32::NEG_INFINITY { expected[0] } else { 0 };
            assert_eq!(index[0], first, "{what} {level:?}");
            for k in [1, 2, 40, row.len()].into_iter().filter(|&k| k <= row.len()) {
                let (mut values, mut indices) = (vec![E::default(); k], vec![0; k]);
                top_k(level, rows, k, &mut values, &mut indices).unwrap();
                assert_eq!(indices, expected[..k], "{what} {level:?} k {k}");
                let same = |(v, &i): (&E, &u32)| v.to_f32().to_bits() == row[i as usize].to_f32().to_bits();
                assert!(values.iter().zip(&indices).all(same), "{what} {level:?} k {k}");
            }
        }
    }

    #[test]
    fn rows_of_every_length_give_the_sorted_order_with_ties_by_index() {
        let mut random = Random::new(1);
        for width in (1..70).chain([1000, 49_153]) {
            // Few distinct values make many ties.
            let coarse: Vec<f32> = (0..width).map(|_| (random.unit() * 8.0).round()).collect();
            check_row(&coarse, "coarse");
            check_row::<f16>(&random.vec(width, 4.0), "float16");
            check_row::<bf16>(&random.vec(width, 4.0), "bfloat16");
        }
        check_row::<f32>(&random.vec(100_000, 4.0), "large");
    }

    #[test]
    fn nan_orders_below_everything_and_infinities_take_part() {
        let nan = f32::NAN;
        check_row(&[nan, 1.0, nan, 3.0, f32::NEG_INFINITY, 3.0], "nan");
        check_row(&[f32::NEG_INFINITY; 37], "all hidden");
        check_row(&[nan; 19], "all nan");
        check_row(&[nan, f32::NEG_INFINITY, nan], "nothing finite");
        let mut row = vec![f32::NEG_INFINITY; 40_000];
        (row[39_999], row[123], row[20_000]) = (f32::INFINITY, -5.0, nan);
        check_row(&row, "sparse");
    }

    #[test]
    fn rows_of_a_batch_are_apart() {
        let x: Vec<f32> = Random::new(4).vec(5 * 33, 1.0);
        let rows = Rows::new("test", "x", &x, 4, 30, 33).unwrap();
        let mut out = [0; 4];
        argmax(Level::best(), rows, &mut out).unwrap();
        for (i, &index) in out.iter().enumerate() {
            assert_eq!(index, sorted(rows.row(i))[0]);
        }
    }

    #[test]
    fn a_row_with_fewer_than_k_values_is_refused() {
        let x = [0.0_f32; 6];
        let rows = Rows::contiguous("test", "x", &x, 3).unwrap();
        let error = top_k(Level::best(), rows, 4, &mut [0.0; 8], &mut [0; 8]).unwrap_err();
        assert_eq!(error.to_string(), "[top_k] logits needs rows of 4 to 4294967295 values but has 3");
        assert!(top_k(Level::best(), rows, 0, &mut [], &mut []).is_err());
        assert!(argmax(Level::best(), rows, &mut [0; 3]).is_err());
    }
}

//! The causal convolution on the CPU: channels in lanes.

use crate::Error;
use crate::host::Level;
use crate::host::lanes::{Body, Lane, Simd, dispatch, math};
use crate::host::pool::parallel_chunks;
use crate::host::rows::{PIECE, expect, for_rows};

/// Operands in row-major order, shapes as in the contract.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a, E> {
    /// `[B, T, C]`.
    pub x: &'a [E],
    /// `[K, C]`.
    pub weight: &'a [E],
    /// `[B, K - 1, C]`.
    pub carried: &'a [E],
    /// Steps of each row that count.
    pub lengths: Option<&'a [i32]>,
    /// `B`.
    pub batch: usize,
    /// `T`.
    pub length: usize,
    /// `C`.
    pub channels: usize,
    /// Whether SiLU follows.
    pub silu: bool,
}

impl<'a, E: Lane> Operands<'a, E> {
    fn taps(&self) -> usize {
        self.weight.len() / self.channels.max(1)
    }

    /// Row `index` of a batch row's carried inputs followed by its `x`.
    #[inline(always)]
    fn row(&self, batch: usize, index: usize) -> &'a [E] {
        let keep = self.taps() - 1;
        let (data, row) = if index < keep {
            (self.carried, batch * keep + index)
        } else {
            (self.x, batch * self.length + index - keep)
        };
        &data[row * self.channels..][..self.channels]
    }
}

/// Outputs into `y`, the new carried inputs into `last`.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit each other, or a length is negative or above `T`.
pub fn causal_conv<E: Lane>(
    level: Level,
    operands: Operands<'_, E>,
    y: &mut [E],
    last: &mut [E],
) -> Result<(), Error> {
    check(&operands, y.len(), last.len())?;
    let Operands { batch, length, channels, .. } = operands;
    if length == 1 {
        // Decode: channels are shared out.
        let piece = PIECE.min(channels.div_ceil(4).next_multiple_of(64)).max(1);
        for (batch, y) in y.chunks_exact_mut(channels).enumerate() {
            parallel_chunks(y, piece, |index, y| {
                dispatch(level, Convolve { operands, batch, step: 0, channel: index * piece, y });
            });
        }
    } else {
        for_rows(batch * length, channels, y, |rows, y| {
            for (row, y) in rows.zip(y.chunks_exact_mut(channels)) {
                dispatch(
                    level,
                    Convolve { operands, batch: row / length, step: row % length, channel: 0, y },
                );
            }
        });
    }
    let keep = operands.taps() - 1;
    for (row, last) in last.chunks_exact_mut(channels).enumerate() {
        let (batch, index) = (row / keep, row % keep);
        let length = operands.lengths.map_or(length, |lengths| lengths[batch] as usize);
        last.copy_from_slice(operands.row(batch, length + index));
    }
    Ok(())
}

fn check<E>(operands: &Operands<'_, E>, y: usize, last: usize) -> Result<(), Error> {
    const KERNEL: &str = "causal_conv";
    let Operands { batch, length, channels, .. } = *operands;
    let taps = operands.weight.len() / channels.max(1);
    if taps == 0 || !operands.weight.len().is_multiple_of(channels) {
        let expected = format!("rows of {channels} channels, at least one");
        return Err(Error::Shape {
            kernel: KERNEL,
            operand: "weight",
            expected,
            got: format!("{}", operands.weight.len()),
        });
    }
    let carried = batch * (taps - 1) * channels;
    for (operand, expected, got) in [
        ("x", batch * length * channels, operands.x.len()),
        ("carried", carried, operands.carried.len()),
        ("lengths", batch, operands.lengths.map_or(batch, <[i32]>::len)),
        ("y", batch * length * channels, y),
        ("last", carried, last),
    ] {
        expect(KERNEL, operand, "elements", expected, got)?;
    }
    let valid = |n: &&i32| usize::try_from(**n).is_ok_and(|n| n <= length);
    match operands.lengths.unwrap_or_default().iter().find(|n| !valid(n)) {
        Some(n) => {
            let expected = format!("numbers of 0 to {length}");
            Err(Error::Shape { kernel: KERNEL, operand: "lengths", expected, got: format!("{n}") })
        }
        None => Ok(()),
    }
}

/// One step of one batch row, for the channels from `channel` on.
struct Convolve<'a, 'y, E> {
    operands: Operands<'a, E>,
    batch: usize,
    step: usize,
    channel: usize,
    y: &'y mut [E],
}

impl<E: Lane> Body for Convolve<'_, '_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { operands, batch, step, channel, y } = self;
        for at in (0..y.len()).step_by(S::LANES) {
            let mut sum = s.splat(0.0);
            for tap in 0..operands.taps() {
                let weight = &operands.weight[tap * operands.channels..][..operands.channels];
                let x = operands.row(batch, step + tap);
                sum = s.fma(E::get(s, weight, channel + at), E::get(s, x, channel + at), sum);
            }
            E::put(s, y, at, if operands.silu { math::silu(s, sum) } else { sum });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, close, ulp};
    use half::{bf16, f16};

    fn check_type<E: Lane>() {
        for (batch, length, channels, taps) in
            [(2, 1, 300, 4), (1, 9, 37, 4), (3, 5, 16, 2), (2, 2, 5, 7), (1, 3, 4, 1)]
        {
            let mut random = Random::new(channels as u64);
            let x: Vec<E> = random.vec(batch * length * channels, 2.0);
            let weight: Vec<E> = random.vec(taps * channels, 1.0);
            let carried: Vec<E> = random.vec(batch * (taps - 1) * channels, 2.0);
            let lengths: Vec<i32> = (0..batch).map(|b| (b % (length + 1)) as i32).collect();
            for (silu, lengths) in [(true, None), (false, Some(&lengths[..]))] {
                let operands = Operands {
                    x: &x,
                    weight: &weight,
                    carried: &carried,
                    lengths,
                    batch,
                    length,
                    channels,
                    silu,
                };
                let (mut expected, mut size, mut last) = (Vec::new(), Vec::new(), Vec::new());
                for b in 0..batch {
                    for t in 0..length {
                        for c in 0..channels {
                            let terms = (0..taps).map(|j| {
                                f64::from(operands.row(b, t + j)[c].to_f32())
                                    * f64::from(weight[j * channels + c].to_f32())
                            });
                            let sum: f64 = terms.clone().sum();
                            size.push(terms.map(f64::abs).sum::<f64>());
                            expected.push(if silu { sum / (1.0 + (-sum).exp()) } else { sum });
                        }
                    }
                    let end = lengths.map_or(length, |lengths| lengths[b] as usize);
                    (0..taps - 1).for_each(|j| last.extend_from_slice(operands.row(b, end + j)));
                }
                for level in Level::available() {
                    let (mut y, mut got) = (vec![E::default(); x.len()], vec![E::default(); carried.len()]);
                    causal_conv(level, operands, &mut y, &mut got).unwrap();
                    let what = format!("{level:?} {} {batch}x{length}x{channels} {taps} {silu}", E::DTYPE);
                    close(&what, &y, &expected, |i| {
                        2.0 * ulp::<E>() * expected[i].abs() + 2.0 * ulp::<f32>() * size[i]
                    });
                    assert_eq!(got, last, "{what}");
                }
            }
        }
    }

    #[test]
    fn steps_and_sequences_equal_the_formula_in_every_type() {
        check_type::<f32>();
        check_type::<f16>();
        check_type::<bf16>();
    }

    #[test]
    fn a_sequence_equals_its_steps() {
        let (length, channels) = (7, 20);
        let mut random = Random::new(3);
        let (x, weight): (Vec<f32>, Vec<f32>) =
            (random.vec(length * channels, 1.0), random.vec(4 * channels, 1.0));
        let mut state = vec![0.0; 3 * channels];
        let whole = Operands {
            x: &x,
            weight: &weight,
            carried: &state.clone(),
            lengths: None,
            batch: 1,
            length,
            channels,
            silu: true,
        };
        let (mut y, mut last) = (vec![0.0; x.len()], state.clone());
        causal_conv(Level::best(), whole, &mut y, &mut last).unwrap();
        for (x, y) in x.chunks(channels).zip(y.chunks(channels)) {
            let (mut got, before) = (vec![0.0; channels], state.clone());
            let step = Operands { x, carried: &before, length: 1, ..whole };
            causal_conv(Level::best(), step, &mut got, &mut state).unwrap();
            assert_eq!(got, y);
        }
        assert_eq!(state, last);
    }

    #[test]
    fn operands_that_do_not_fit_are_refused_by_name() {
        let x = [0.0_f32; 24];
        let operands = Operands {
            x: &x,
            weight: &x[..16],
            carried: &x[..12],
            lengths: Some(&[7]),
            batch: 1,
            length: 6,
            channels: 4,
            silu: false,
        };
        let run = |operands| {
            causal_conv(Level::best(), operands, &mut [0.0; 24], &mut [0.0; 12]).unwrap_err().to_string()
        };
        assert_eq!(run(operands), "[causal_conv] lengths needs numbers of 0 to 6 but has 7");
        assert_eq!(
            run(Operands { carried: &x[..8], ..operands }),
            "[causal_conv] carried needs 12 elements but has 8"
        );
        assert_eq!(
            run(Operands { weight: &x[..3], ..operands }),
            "[causal_conv] weight needs rows of 4 channels, at least one but has 3"
        );
    }
}

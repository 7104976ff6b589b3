//! The walk against the rule in float64.

use super::*;
use crate::host::testing::{Random, close, ulp};
use half::{bf16, f16};

/// The rule as the contract writes it; also the size of each output's terms.
fn expected<E: Lane>(sizes: Sizes, x: &Operands<'_, E>) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let Sizes { batch, length, key_heads, value_heads, key_width, value_width } = sizes;
    let wide = |x: &[E]| x.iter().map(|x| f64::from(x.to_f32())).collect::<Vec<_>>();
    let mut state: Vec<f64> = x.state.iter().map(|&x| f64::from(x)).collect();
    let mut y = vec![0.0; batch * length * value_heads * value_width];
    let mut size = y.clone();
    for head in 0..batch * value_heads {
        let (b, h) = (head / value_heads, head % value_heads);
        for t in 0..length {
            if x.mask.is_some_and(|mask| mask[b * length + t] == 0) {
                continue;
            }
            let number = (b * length + t) * value_heads + h;
            let key = ((b * length + t) * key_heads + h / (value_heads / key_heads)) * key_width;
            let (q, k) = (wide(&x.q[key..key + key_width]), wide(&x.k[key..key + key_width]));
            for r in 0..value_width {
                let row = &mut state[(head * value_width + r) * key_width..][..key_width];
                for (j, value) in row.iter_mut().enumerate() {
                    *value *= f64::from(if x.g.len() == x.beta.len() {
                        x.g[number]
                    } else {
                        x.g[number * key_width + j]
                    });
                }
                let memory: f64 = row.iter().zip(&k).map(|(a, b)| a * b).sum();
                let value = f64::from(x.v[number * value_width + r].to_f32());
                let delta = f64::from(x.beta[number]) * (value - memory);
                row.iter_mut().zip(&k).for_each(|(value, k)| *value += delta * k);
                y[number * value_width + r] = row.iter().zip(&q).map(|(a, b)| a * b).sum();
                size[number * value_width + r] = row.iter().zip(&q).map(|(a, b)| (a * b).abs()).sum();
            }
        }
    }
    (y, state, size)
}

fn check<E: Lane>(sizes: Sizes, vector: bool, masked: bool) {
    let Sizes { batch, length, key_heads, value_heads, key_width, value_width } = sizes;
    let mut random = Random::new((length * 100 + key_width) as u64);
    let steps = batch * length;
    let scale = 1.0 / (key_width as f32).sqrt();
    let q: Vec<E> = random.vec(steps * key_heads * key_width, scale);
    let k: Vec<E> = random.vec(steps * key_heads * key_width, 1.7 * scale);
    let v: Vec<E> = random.vec(steps * value_heads * value_width, 1.0);
    let columns = if vector { key_width } else { 1 };
    let g: Vec<f32> = (0..steps * value_heads * columns).map(|_| 0.5 + 0.5 * random.unit().abs()).collect();
    let beta: Vec<f32> = (0..steps * value_heads).map(|_| random.unit().abs()).collect();
    let state: Vec<f32> = random.vec(batch * value_heads * value_width * key_width, 1.0);
    let mask: Vec<u8> = (0..steps).map(|i| u8::from(i % 3 != 1)).collect();
    let mask = masked.then_some(&mask[..]);
    let operands = Operands { q: &q, k: &k, v: &v, g: &g, beta: &beta, state: &state, mask };
    let (y, last, size) = expected(sizes, &operands);
    for level in Level::available() {
        let mut got = vec![E::from_f32(f32::NAN); y.len()];
        let mut got_last = vec![f32::NAN; last.len()];
        gated_delta(level, sizes, operands, &mut got, &mut got_last).unwrap();
        let what = format!("{sizes:?} {vector} {masked} {level:?} {}", E::DTYPE);
        // Rounding of the state accumulates over its memory (about ten steps at these decays).
        close(&what, &got, &y, |i| 2.0 * ulp::<E>() * y[i].abs() + 10.0 * ulp::<f32>() * (size[i] + 1.0));
        close(&what, &got_last, &last, |i| 10.0 * ulp::<f32>() * (1.0 + last[i].abs()));
    }
}

const fn sizes(
    batch: usize,
    length: usize,
    key_heads: usize,
    value_heads: usize,
    key_width: usize,
    value_width: usize,
) -> Sizes {
    Sizes { batch, length, key_heads, value_heads, key_width, value_width }
}

#[test]
fn steps_and_sequences_equal_the_rule_in_every_type() {
    for sizes in [
        sizes(2, 1, 2, 4, 128, 96),
        sizes(1, 37, 1, 3, 64, 40),
        sizes(3, 5, 2, 2, 24, 7),
        sizes(1, 9, 1, 1, 5, 1),
    ] {
        for (vector, masked) in [(false, false), (true, false), (false, true), (true, true)] {
            check::<f32>(sizes, vector, masked);
            check::<f16>(sizes, vector, masked);
            check::<bf16>(sizes, vector, masked);
        }
    }
}

#[test]
fn a_sequence_equals_its_pieces_bit_for_bit() {
    let whole = sizes(1, 12, 2, 4, 32, 20);
    let mut random = Random::new(8);
    let (q, k, v): (Vec<f32>, Vec<f32>, Vec<f32>) =
        (random.vec(12 * 2 * 32, 0.2), random.vec(12 * 2 * 32, 0.2), random.vec(12 * 4 * 20, 1.0));
    let (g, beta): (Vec<f32>, Vec<f32>) = (vec![0.9; 48], vec![0.7; 48]);
    let state: Vec<f32> = random.vec(4 * 20 * 32, 1.0);
    let operands = Operands { q: &q, k: &k, v: &v, g: &g, beta: &beta, state: &state, mask: None };
    let (mut y, mut last) = (vec![0.0; 12 * 80], vec![0.0; state.len()]);
    gated_delta(Level::best(), whole, operands, &mut y, &mut last).unwrap();
    let (mut pieces, mut carried) = (vec![0.0; 12 * 80], state.clone());
    for (start, end) in [(0, 1), (1, 8), (8, 12)] {
        let before = carried.clone();
        let operands = Operands {
            q: &q[start * 64..end * 64],
            k: &k[start * 64..end * 64],
            v: &v[start * 80..end * 80],
            g: &g[start * 4..end * 4],
            beta: &beta[start * 4..end * 4],
            state: &before,
            mask: None,
        };
        let part = Sizes { length: end - start, ..whole };
        gated_delta(Level::best(), part, operands, &mut pieces[start * 80..end * 80], &mut carried).unwrap();
    }
    assert_eq!((pieces, carried), (y, last));
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() {
    let x = [0.0_f32; 64];
    let operands = Operands {
        q: &x[..8],
        k: &x[..8],
        v: &x[..8],
        g: &x[..2],
        beta: &x[..2],
        state: &x[..32],
        mask: None,
    };
    let run = |sizes, operands| {
        gated_delta(Level::best(), sizes, operands, &mut [0.0; 8], &mut [0.0; 32]).unwrap_err().to_string()
    };
    assert_eq!(
        run(sizes(1, 1, 2, 3, 4, 4), operands),
        "[gated_delta] k needs a number of heads that divides 3 but has 2"
    );
    let short = Operands { state: &x[..31], ..operands };
    assert_eq!(run(sizes(1, 1, 2, 2, 4, 4), short), "[gated_delta] state needs 32 elements but has 31");
}

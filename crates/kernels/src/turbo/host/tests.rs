//! Codes against the format's definition in float64, and attention against dense attention over what codes stand for.

use super::*;
use crate::attention::Span;
use crate::attention::host::attention;
use crate::host::testing::{Random, close, ulp, wide};
use half::{bf16, f16};

/// `H S x` in float64.
fn rotated(x: &[f64]) -> Vec<f64> {
    let width = x.len();
    let sum = |i: usize| -> f64 {
        let term = |(j, x): (usize, &f64)| {
            let flips = (i & j).count_ones() % 2 == 1;
            f64::from(sign(j)) * if flips { -x } else { *x }
        };
        x.iter().enumerate().map(term).sum()
    };
    (0..width).map(|i| sum(i) / (width as f64).sqrt()).collect()
}

/// The rotated vector that codes and a norm stand for.
fn decoded(codes: &[u32], norm: f32, bits: u8, width: usize) -> Vec<f64> {
    let plane = width / 32;
    let number = |at: usize| -> usize {
        (0..bits as usize)
            .map(|bit| (codes[bit * plane + at / 32] >> (at % 32) & 1) as usize * (1 << bit))
            .sum()
    };
    let scale = f64::from(norm) / (width as f64).sqrt();
    (0..width).map(|at| f64::from(levels(bits)[number(at)]) * scale).collect()
}

fn check_encode<E: Lane>() {
    for (width, bits) in [(32, 1), (64, 2), (128, 3), (256, 4), (64, 4)] {
        let count = 7;
        let mut x: Vec<E> = Random::new(width as u64 + 1).vec(count * width, 3.0);
        x[..width].fill(E::default());
        let rows = Rows::contiguous("test", "x", &x, width).unwrap();
        for level in Level::available() {
            let (mut codes, mut norms) = (vec![7; count * words(width, bits)], vec![7.0; count]);
            encode(level, rows, bits, &mut codes, &mut norms).unwrap();
            for (row, (codes, norm)) in codes.chunks(words(width, bits)).zip(&norms).enumerate() {
                let x = wide(rows.row(row));
                let exact = x.iter().map(|x| x * x).sum::<f64>().sqrt();
                assert!(
                    (f64::from(*norm) - exact).abs() <= 1e-6 * exact,
                    "{level:?} norm {norm} for {exact}"
                );
                let scale = exact / (width as f64).sqrt();
                for (at, (got, turned)) in
                    decoded(codes, *norm, bits, width).iter().zip(rotated(&x)).enumerate()
                {
                    let gap = |level: &f32| (f64::from(*level) * scale - turned).abs();
                    let nearest = levels(bits).iter().map(gap).fold(f64::INFINITY, f64::min);
                    let error = (got - turned).abs();
                    // At a midpoint either level is as near.
                    assert!(
                        error <= nearest + 1e-5 * exact,
                        "{level:?} {bits} bits {at}: {error} above {nearest}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_coordinate_takes_the_nearest_level() {
    check_encode::<f32>();
    check_encode::<f16>();
    check_encode::<bf16>();
}

fn check_attention<E: Lane>() {
    let (b, hq, hkv, room) = (2, 4, 2, 50);
    for (l, s, width, bits) in [(1, 41, 64, [4, 2]), (5, 33, 32, [3, 1]), (40, 50, 128, [2, 4])] {
        let mut random = Random::new((l + s) as u64);
        let q: Vec<E> = random.vec(b * hq * l * width, 1.0);
        // Longer buffers, of which the first positions are read.
        let encoded = |random: &mut Random, bits: u8| {
            let x: Vec<f32> = random.vec(b * hkv * room * width, 1.0);
            let rows = Rows::contiguous("test", "x", &x, width).unwrap();
            let (mut codes, mut norms) =
                (vec![0; b * hkv * room * words(width, bits)], vec![0.0; b * hkv * room]);
            encode(Level::best(), rows, bits, &mut codes, &mut norms).unwrap();
            (codes, norms)
        };
        let (k, v) = (encoded(&mut random, bits[0]), encoded(&mut random, bits[1]));
        let dense = |(codes, norms): &(Vec<u32>, Vec<f32>), bits: u8| -> Vec<E> {
            let rows = codes.chunks(words(width, bits)).zip(norms);
            let turn = |(codes, norm): (&[u32], &f32)| decoded(codes, *norm, bits, width);
            rows.flat_map(turn).map(|x| E::from_f32(x as f32)).collect()
        };
        let (dense_k, dense_v) = (dense(&k, bits[0]), dense(&v, bits[1]));
        let strides = |each: usize| [hkv * room * each, room * each, each];
        let heads = |x| Heads::new("test", "x", x, [b, hkv, s, width], strides(width)).unwrap();
        let turned: Vec<E> =
            q.chunks(width).flat_map(|row| rotated(&wide(row))).map(|x| E::from_f32(x as f32)).collect();
        let queries = |x| Heads::contiguous("test", "q", x, [b, hq, l, width], Layout::HeadsFirst).unwrap();
        for span in [Span::All, Span::Causal, Span::Window(7)] {
            let options = Options::new(0.2, span);
            let mut expected = vec![E::default(); q.len()];
            let operands = (queries(&turned), heads(&dense_k), heads(&dense_v));
            attention(
                Level::best(),
                operands.0,
                operands.1,
                operands.2,
                &options,
                Layout::PositionsFirst,
                &mut expected,
            )
            .unwrap();
            // The inverse of a rotation is its transpose: signs after the transform.
            let back = |row: &[E]| -> Vec<f64> {
                let signed: Vec<f64> =
                    wide(row).iter().enumerate().map(|(j, x)| x * f64::from(sign(j))).collect();
                rotated(&signed).into_iter().enumerate().map(|(i, x)| x * f64::from(sign(i))).collect()
            };
            let expected: Vec<f64> = expected.chunks(width).flat_map(back).collect();
            for level in Level::available() {
                let strides = |bits| [strides(words(width, bits)), strides(1)];
                let stored = |codes, norms, bits| {
                    Stored::new((codes, norms), [b, hkv, s, width], strides(bits), bits).unwrap()
                };
                let (k, v) = (stored(&k.0, &k.1, bits[0]), stored(&v.0, &v.1, bits[1]));
                let mut out = vec![E::default(); q.len()];
                turbo_attention(level, queries(&q), k, v, &options, Layout::PositionsFirst, &mut out)
                    .unwrap();
                // Roundings of queries and of results before the last rotation, which spreads them.
                let largest = expected.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
                close(&format!("{level:?} {} {span:?}", E::DTYPE), &out, &expected, |_| {
                    8.0 * ulp::<E>() * largest.max(1.0) + 1e-5
                });
            }
        }
    }
}

#[test]
fn attention_is_dense_attention_over_what_codes_stand_for() {
    check_attention::<f32>();
    check_attention::<f16>();
    check_attention::<bf16>();
}

#[test]
fn what_the_format_has_not_is_refused() {
    let x = [0.0_f32; 96];
    let rows = |width| Rows::contiguous("test", "x", &x, width).unwrap();
    let refuse = |width, bits, codes: usize| {
        encode(Level::best(), rows(width), bits, &mut vec![0; codes], &mut vec![0.0; 96 / width])
            .unwrap_err()
            .to_string()
    };
    assert!(refuse(96, 2, 6).contains("96 values are not a power of two"));
    assert!(refuse(16, 2, 6).contains("16 values are not a power of two"));
    assert!(refuse(32, 5, 15).contains("none of 5"));
    assert_eq!(refuse(32, 2, 5), "[turbo_encode] codes needs 6 elements but has 5");
    let error = Stored::new((&[0; 8], &[0.0; 3]), [1, 1, 4, 32], [[8, 8, 2], [4, 4, 1]], 2).unwrap_err();
    assert!(error.to_string().contains("norms"), "{error}");
}

#[test]
fn nan_and_infinity_reach_the_result() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = [0.5_f32; 64];
        x[40] = bad;
        let (mut codes, mut norms) = ([0; 4], [0.0; 2]);
        encode(Level::best(), Rows::contiguous("test", "x", &x, 32).unwrap(), 2, &mut codes, &mut norms)
            .unwrap();
        assert!(norms[0].is_finite() && !norms[1].is_finite(), "{norms:?}");
    }
}

//! Rotation against float64, for every level and type.

use super::*;
use crate::host::heads::Layout;
use crate::host::testing::{Random, close, ulp, wide};
use crate::rope::inverse_frequencies;
use half::{bf16, f16};

/// What the contract says for one row at one position.
fn expected<E: Lane>(x: &[E], norm: Option<(&[E], f32)>, rope: &Rope, position: f32) -> Vec<f64> {
    let mut x = wide(x);
    if let Some((weight, eps)) = norm {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        x.iter_mut().zip(wide(weight)).for_each(|(x, w)| *x *= factor * w);
    }
    let frequencies = rope.frequencies.at(0);
    let half = frequencies.len();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = f64::from(position * frequency).sin_cos();
        let (a, b) = if rope.traditional { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let factor = f64::from(rope.factor);
        (x[a], x[b]) = (factor * (x[a] * cos - x[b] * sin), factor * (x[a] * sin + x[b] * cos));
    }
    x
}

/// `[B, L, H, D]` with room behind each row, as a slice of a fused projection is.
fn check_type<E: Lane>() {
    for (width, dims) in [(64, 64), (80, 32), (16, 4), (18, 10), (256, 256), (128, 34), (6, 0)] {
        let frequencies = inverse_frequencies(10_000.0, dims);
        let (b, hq, hk, l) = (2, 3, 1, 5);
        let mut random = Random::new(width as u64);
        let stride = width + 3;
        let (q, k) = (random.vec::<E>(b * l * hq * stride, 2.0), random.vec::<E>(b * l * hk * stride, 2.0));
        let view = |x, h| {
            Heads::new("test", "x", x, [b, h, l, width], [l * h * stride, stride, h * stride]).unwrap()
        };
        let (q, k) = (view(&q, hq), view(&k, hk));
        let (wq, wk) = (random.vec::<E>(width, 2.0), random.vec::<E>(width, 2.0));
        let each = [7, 4_000];
        for (offset, traditional, norm) in [
            (Offset::Same(0), false, false),
            (Offset::Same(300_000), false, true),
            (Offset::Each(&each), true, true),
            (Offset::Each(&each), false, false),
            (Offset::Same(-3), true, false),
        ] {
            let factor = if norm { 1.0 } else { 1.3 };
            let rope = Rope { traditional, scale: 0.5, factor, ..Rope::fixed(frequencies.clone()) };
            for level in Level::available() {
                let mut out_q = vec![E::default(); b * hq * l * width];
                let mut out_k = vec![E::default(); b * hk * l * width];
                let norms = [&wq, &wk].map(|w| norm.then_some((&w[..], 1e-6)));
                let operands = [
                    Operand { x: q, norm: norms[0], turns: true, out: &mut out_q },
                    Operand { x: k, norm: norms[1], turns: true, out: &mut out_k },
                ];
                rotate("test", level, &rope, offset, operands).unwrap();
                for (x, norm, out) in [(q, norms[0], &out_q), (k, norms[1], &out_k)] {
                    let heads = x.shape()[1];
                    for (row, out) in out.chunks(width).enumerate() {
                        let (batch, head, position) = (row / (heads * l), row / l % heads, row % l);
                        let first = match offset {
                            Offset::Same(offset) => offset,
                            Offset::Each(offsets) => offsets[batch],
                        };
                        let angle = (position as f32 + first as f32) * rope.scale;
                        let expected = expected(x.row(batch, head, position), norm, &rope, angle);
                        let size = expected.iter().fold(0.0_f64, |a, b| a.max(b.abs()));
                        let what = format!(
                            "{level:?} {} {width} {dims} {offset:?} {traditional} {norm:?}",
                            E::DTYPE
                        );
                        close(&what, out, &expected, |_| 2.0 * ulp::<E>() * size.max(1e-3));
                    }
                }
            }
        }
    }
}

#[test]
fn queries_and_keys_rotate_as_the_contract_says_in_every_type() {
    check_type::<f32>();
    check_type::<f16>();
    check_type::<bf16>();
}

#[test]
fn b13_partial_rotation_takes_exponent_and_pair_distance_from_the_rotated_width() {
    // Head width 16, a quarter of it rotated: pairs (0, 2) and (1, 3), frequencies 1 and 10000^(-1/2).
    let frequencies = inverse_frequencies(10_000.0, 4);
    let x: Vec<f32> = (0..16).map(|i| i as f32 + 1.0).collect();
    for position in [0, 1, 5000] {
        let angles = [f64::from(position), f64::from(position) * 0.01];
        let heads = Heads::contiguous("test", "x", &x, [1, 1, 1, 16], Layout::HeadsFirst).unwrap();
        let options = Rope::fixed(frequencies.clone());
        for level in Level::available() {
            let mut out = [0.0; 16];
            rope(level, heads, &options, Offset::Same(position), &mut out).unwrap();
            for (i, angle) in angles.into_iter().enumerate() {
                let (a, b) = (i as f64 + 1.0, i as f64 + 3.0);
                let (sin, cos) = angle.sin_cos();
                // The angle itself is a float32.
                let bound = 4e-7 * (1.0 + angle);
                assert!((f64::from(out[i]) - (a * cos - b * sin)).abs() < bound, "{level:?} {position} {i}");
                assert!(
                    (f64::from(out[i + 2]) - (a * sin + b * cos)).abs() < bound,
                    "{level:?} {position} {i}"
                );
            }
            assert_eq!(out[4..], x[4..]);
        }
    }
}

#[test]
fn b16_identical_rows_of_a_batch_rotate_identically() {
    let frequencies = inverse_frequencies(10_000.0, 8);
    let row: Vec<f32> = Random::new(5).vec(3 * 8, 1.0);
    let x = [row.clone(), row].concat();
    let heads = Heads::contiguous("test", "x", &x, [2, 3, 1, 8], Layout::HeadsFirst).unwrap();
    for offset in [Offset::Same(11), Offset::Each(&[11, 11])] {
        let mut out = [0.0; 48];
        let options = Rope::fixed(frequencies.clone());
        rope(Level::best(), heads, &options, offset, &mut out).unwrap();
        assert_eq!(out[..24], out[24..]);
    }
}

#[test]
fn a_growing_base_belongs_to_each_row_of_the_batch() {
    let (b, h, l, width, longest) = (3, 2, 5, 16, 100.0);
    let x: Vec<f32> = Random::new(8).vec(b * h * l * width, 1.0);
    let heads = Heads::contiguous("test", "x", &x, [b, h, l, width], Layout::HeadsFirst).unwrap();
    let frequencies = Frequencies::Dynamic { dims: 12, base: 10_000.0, factor: 2.0, longest };
    let dynamic = Rope { frequencies, ..Rope::fixed([]) };
    for offsets in [[7, 96, 300], [95, 95, 95]] {
        let mut out = vec![0.0; x.len()];
        rope(Level::best(), heads, &dynamic, Offset::Each(&offsets), &mut out).unwrap();
        for (row, out) in out.chunks(width).enumerate() {
            let (batch, head, at) = (row / (h * l), row / l % h, row % l);
            let end = f64::from(offsets[batch]) + l as f64;
            let base = 10_000.0 * (2.0 * end.max(longest) / longest - 1.0).powf(12.0 / 10.0);
            let own = Rope::fixed(inverse_frequencies(base as f32, 12));
            let position = (offsets[batch] + at as i32) as f32;
            let expected = expected(heads.row(batch, head, at), None, &own, position);
            close("growing base", out, &expected, |_| 2.0 * ulp::<f32>());
        }
    }
    let mut same = vec![0.0; x.len()];
    rope(Level::best(), heads, &dynamic, Offset::Same(95), &mut same).unwrap();
    let mut each = vec![0.0; x.len()];
    rope(Level::best(), heads, &dynamic, Offset::Each(&[95; 3]), &mut each).unwrap();
    assert_eq!(same, each);
    rope(
        Level::best(),
        Heads::<f32>::contiguous("test", "x", &[], [3, 2, 0, 16], Layout::HeadsFirst).unwrap(),
        &dynamic,
        Offset::Same(0),
        &mut [],
    )
    .unwrap();
}

#[test]
fn many_rows_are_cut_into_pieces() {
    let (l, h, width) = (300, 3, 64);
    let frequencies = inverse_frequencies(500_000.0, width);
    let x: Vec<f32> = Random::new(2).vec(l * h * width, 1.0);
    let heads = Heads::contiguous("test", "x", &x, [1, h, l, width], Layout::PositionsFirst).unwrap();
    let options = Rope::fixed(frequencies);
    let mut out = vec![0.0; x.len()];
    rope(Level::best(), heads, &options, Offset::Same(9), &mut out).unwrap();
    for (row, out) in out.chunks(width).enumerate() {
        let expected = expected(heads.row(0, row / l, row % l), None, &options, (row % l + 9) as f32);
        close("pieces", out, &expected, |_| 2.0 * ulp::<f32>());
    }
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() {
    let x = [0.0_f32; 48];
    let frequencies = inverse_frequencies(10_000.0, 8);
    let options = Rope::fixed(frequencies);
    let view = |shape| Heads::contiguous("test", "x", &x, shape, Layout::HeadsFirst).unwrap();
    let refuse = |shape, offset: Offset<'_>, out: usize| {
        rope(Level::best(), view(shape), &options, offset, &mut vec![0.0; out]).unwrap_err().to_string()
    };
    assert_eq!(
        refuse([2, 2, 3, 4], Offset::Same(0), 48),
        "[rope] x needs shape [2, _, 3, 8 or more] but has [2, 2, 3, 4]"
    );
    assert_eq!(refuse([2, 3, 1, 8], Offset::Same(0), 47), "[rope] out needs 48 elements but has 47");
    assert_eq!(
        refuse([2, 3, 1, 8], Offset::Each(&[1, 2, 3]), 48),
        "[rope] offset needs 2 elements but has 3"
    );
}

//! Attention against a float64 reference: every level, type, path and mask.

use super::*;
use crate::host::testing::{Random, close, ulp};
use half::{bf16, f16};

/// Shape letters of the crate; `dk` and `dv` are the widths of keys and values.
#[derive(Debug, Clone, Copy)]
struct Case {
    b: usize,
    hq: usize,
    hkv: usize,
    l: usize,
    s: usize,
    dk: usize,
    dv: usize,
}

const fn case(b: usize, hq: usize, hkv: usize, l: usize, s: usize, dk: usize, dv: usize) -> Case {
    Case { b, hq, hkv, l, s, dk, dv }
}

/// Decode with one to sixteen rows, cut and uncut; widths with tails; prefill with several blocks; more queries than keys.
const CASES: [Case; 12] = [
    case(2, 6, 2, 1, 37, 64, 64),
    case(1, 9, 3, 1, 700, 64, 64),
    case(1, 4, 4, 3, 130, 80, 80),
    case(1, 8, 1, 2, 195, 128, 64),
    case(1, 3, 3, 1, 19, 40, 24),
    case(3, 2, 1, 7, 97, 256, 112),
    case(2, 4, 2, 17, 33, 64, 64),
    case(1, 6, 3, 70, 200, 32, 48),
    case(1, 2, 1, 5, 2, 16, 16),
    case(1, 3, 1, 19, 6, 18, 7),
    case(1, 9, 3, 150, 257, 64, 64),
    case(1, 1, 1, 1, 1, 1, 1),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mask {
    None,
    Boolean,
    Additive,
}

/// What the reference gives, and the scale of each value's rounding error.
fn reference<E: Lane>(
    case: Case,
    q: &Heads<'_, E>,
    k: &Heads<'_, E>,
    v: &Heads<'_, E>,
    options: &Options<'_, E>,
    layout: Layout,
) -> (Vec<f64>, Vec<f64>) {
    let Case { b, hq, hkv, l, s, dv, .. } = case;
    let strides = layout.strides([b, hq, l, dv]);
    let mut out = vec![0.0; b * hq * l * dv];
    let mut scale = out.clone();
    for (batch, head, query) in (0..b).flat_map(|b| (0..hq).flat_map(move |h| (0..l).map(move |l| (b, h, l))))
    {
        let row = |x: &Heads<'_, E>, h, i| {
            x.row(batch, h, i).iter().map(|x| f64::from(x.to_f32())).collect::<Vec<_>>()
        };
        let kv = head / (hq / hkv);
        let query_row = row(q, head, query);
        let position = (s + query) as i64 - l as i64;
        let mut size = 0.0_f64;
        let mut scores: Vec<f64> = (0..s)
            .map(|j| {
                let key = row(k, kv, j);
                let terms = query_row.iter().zip(&key).map(|(a, b)| a * b);
                let factor = f64::from(options.scale);
                size = size.max(terms.clone().map(f64::abs).sum::<f64>() * factor);
                let mut score = terms.sum::<f64>() * factor;
                if let Some(cap) = options.softcap.map(f64::from) {
                    score = (score / cap).tanh() * cap;
                }
                match options.mask {
                    Some(ArrayMask::Boolean(data, t))
                        if data[batch * t[0] + head * t[1] + query * t[2] + j * t[3]] == 0 =>
                    {
                        score = f64::NEG_INFINITY;
                    }
                    Some(ArrayMask::Additive(data, t)) => {
                        score +=
                            f64::from(data[batch * t[0] + head * t[1] + query * t[2] + j * t[3]].to_f32());
                    }
                    _ => {}
                }
                let j = j as i64;
                let visible = match options.span {
                    Span::All => true,
                    Span::Causal => j <= position,
                    Span::Window(w) => j <= position && j > position - w as i64,
                };
                if visible { score } else { f64::NEG_INFINITY }
            })
            .collect();
        let sink = options.sinks.map(|sinks| f64::from(sinks[head].to_f32()));
        let additive = matches!(options.mask, Some(ArrayMask::Additive(..)));
        if scores.iter().all(|&x| x == f64::NEG_INFINITY) && sink.is_none() && !additive {
            scores.fill(0.0);
        }
        let top = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|x| (x - top).exp()).collect();
        let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |x| (x - top).exp());
        let at = batch * strides[0] + head * strides[1] + query * strides[2];
        for (j, weight) in weights.iter().enumerate() {
            for (d, value) in row(v, kv, j).into_iter().enumerate() {
                out[at + d] += weight / total * value;
                scale[at + d] += weight / total * value.abs();
            }
        }
        // In float32 the scores carry rounding errors of their own, which the exponential passes on.
        let conditioning = if E::DTYPE == strata_contracts::Dtype::Float32 { 1.0 + size } else { 1.0 };
        scale[at..at + dv].iter_mut().for_each(|x| *x *= conditioning);
    }
    (out, scale)
}

/// Keys and values lie in buffers with room for more positions, as caches do; queries are `[B, L, H, D]` transposed.
fn check<E: Lane>(case: Case, span: Span, mask: Mask, softcap: Option<f32>, sinks: bool, layout: Layout) {
    let Case { b, hq, hkv, l, s, dk, dv } = case;
    let mut random = Random::new((l * 1000 + s) as u64);
    let q: Vec<E> = random.vec(b * hq * l * dk, 2.0);
    let room = s + 5;
    let k: Vec<E> = random.vec(b * hkv * room * dk, 2.0);
    let v: Vec<E> = random.vec(b * hkv * room * dv, 2.0);
    let q = Heads::contiguous("test", "q", &q, [b, hq, l, dk], Layout::PositionsFirst).unwrap();
    let k = Heads::new("test", "k", &k, [b, hkv, s, dk], [hkv * room * dk, room * dk, dk]).unwrap();
    let v = Heads::new("test", "v", &v, [b, hkv, s, dv], [hkv * room * dv, room * dv, dv]).unwrap();
    let mut options = Options::new(1.0 / (dk as f32).sqrt(), span);
    options.softcap = softcap;
    let sink: Vec<E> = random.vec(hq, 3.0);
    options.sinks = sinks.then_some(&sink);
    let boolean: Vec<u8> = (0..b * l * s).map(|_| u8::from(!random.bits().is_multiple_of(3))).collect();
    let mut additive: Vec<E> = random.vec(hq * l * s, 3.0);
    for (i, x) in additive.iter_mut().enumerate() {
        if i % 7 == 3 && i % s != 0 {
            *x = E::from_f32(f32::NEG_INFINITY);
        }
    }
    options.mask = match mask {
        Mask::None => None,
        Mask::Boolean => Some(ArrayMask::Boolean(&boolean, [l * s, 0, s, 1])),
        Mask::Additive => Some(ArrayMask::Additive(&additive, [0, l * s, s, 1])),
    };
    let (expected, scale) = reference(case, &q, &k, &v, &options, layout);
    for level in Level::available() {
        let mut out = vec![E::from_f32(f32::NAN); b * hq * l * dv];
        attention(level, q, k, v, &options, layout, &mut out).unwrap();
        let what =
            format!("{case:?} {span:?} {mask:?} {softcap:?} {sinks} {layout:?} {level:?} {}", E::DTYPE);
        close(&what, &out, &expected, |i| 2.0 * ulp::<E>() * scale[i]);
        let mut again = vec![E::default(); out.len()];
        attention(level, q, k, v, &options, layout, &mut again).unwrap();
        let bits = |x: &[E]| x.iter().map(|x| x.to_f32().to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&again), bits(&out), "{what}: not the same twice");
    }
}

#[test]
fn every_span_equals_the_reference_in_every_type() {
    for case in CASES {
        for span in [Span::All, Span::Causal, Span::Window(5), Span::Window(120)] {
            check::<f32>(case, span, Mask::None, None, false, Layout::HeadsFirst);
            check::<f16>(case, span, Mask::None, None, false, Layout::PositionsFirst);
            check::<bf16>(case, span, Mask::None, None, false, Layout::PositionsFirst);
        }
    }
}

#[test]
fn masks_caps_and_sinks_combine() {
    for case in CASES {
        for mask in [Mask::Boolean, Mask::Additive] {
            check::<f32>(case, Span::All, mask, None, false, Layout::HeadsFirst);
            check::<f16>(case, Span::Causal, mask, Some(3.0), true, Layout::PositionsFirst);
        }
        check::<f32>(case, Span::Window(9), Mask::None, Some(2.0), false, Layout::PositionsFirst);
        check::<bf16>(case, Span::Causal, Mask::None, None, true, Layout::HeadsFirst);
        check::<f32>(case, Span::Window(1), Mask::Boolean, None, true, Layout::HeadsFirst);
    }
}

#[test]
fn nan_and_infinity_reach_exactly_the_rows_that_see_them() {
    // One row (few) and forty (many); key 3 has a NaN, value 7 an infinity.
    for l in [1, 40] {
        let (s, d) = (50, 16);
        let mut random = Random::new(3);
        let q: Vec<f32> = random.vec(l * d, 1.0);
        let mut k: Vec<f32> = random.vec(s * d, 1.0);
        let mut v: Vec<f32> = random.vec(s * d, 1.0);
        k[30 * d + 5] = f32::NAN;
        v[20 * d + 2] = f32::INFINITY;
        let view = |x| Heads::contiguous("test", "x", x, [1, 1, s, d], Layout::HeadsFirst).unwrap();
        let q = Heads::contiguous("test", "q", &q, [1, 1, l, d], Layout::HeadsFirst).unwrap();
        for level in Level::available() {
            let mut out = vec![0.0; l * d];
            let options = Options::new(1.0, Span::Window(15));
            attention(level, q, view(&k), view(&v), &options, Layout::HeadsFirst, &mut out).unwrap();
            for (i, out) in out.chunks(d).enumerate() {
                let position = s - l + i;
                let sees = |j| (position + 1).saturating_sub(15) <= j && j <= position;
                assert_eq!(out[0].is_nan(), sees(30), "{level:?} row {i}");
                // A hidden infinity in the same block meets weight 0, which is NaN as in MLX.
                if sees(20) && !sees(30) {
                    assert!(out[2] == f32::INFINITY, "{level:?} row {i}: {}", out[2]);
                }
            }
        }
    }
}

#[test]
fn a_row_hidden_by_an_additive_mask_is_nan_and_one_without_keys_is_the_mean() {
    let k: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let q = [1.0_f32; 4 * 4];
    let hidden = [f32::NEG_INFINITY; 3];
    let k = Heads::contiguous("test", "k", &k, [1, 1, 3, 4], Layout::HeadsFirst).unwrap();
    let q = Heads::contiguous("test", "q", &q, [1, 1, 4, 4], Layout::HeadsFirst).unwrap();
    for level in Level::available() {
        let mut out = [0.0; 16];
        // Four queries and three keys: the first query stands before the first key.
        let mut options = Options::new(1.0, Span::Causal);
        attention(level, q, k, k, &options, Layout::HeadsFirst, &mut out).unwrap();
        assert_eq!(out[..8], [4.0, 5.0, 6.0, 7.0, 0.0, 1.0, 2.0, 3.0]);
        options.mask = Some(ArrayMask::Additive(&hidden, [0, 0, 0, 1]));
        attention(level, q, k, k, &options, Layout::HeadsFirst, &mut out).unwrap();
        assert!(out.iter().all(|x| x.is_nan()));
        options.sinks = Some(&[0.5]);
        attention(level, q, k, k, &options, Layout::HeadsFirst, &mut out).unwrap();
        assert_eq!(out, [0.0; 16]);
    }
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() {
    let data = vec![0.0_f32; 1000];
    let view = |shape| Heads::contiguous("test", "x", &data, shape, Layout::HeadsFirst).unwrap();
    let run = |q, k, v, options: &Options<'_, f32>, out: usize| {
        let mut out = vec![0.0; out];
        attention(Level::best(), view(q), view(k), view(v), options, Layout::HeadsFirst, &mut out)
            .unwrap_err()
            .to_string()
    };
    let plain = Options::new(1.0, Span::All);
    let q = [2, 6, 3, 4];
    assert_eq!(
        run(q, [2, 4, 5, 4], [2, 4, 5, 4], &plain, 0),
        "[attention] k needs a number of heads that divides 6 but has 4"
    );
    assert_eq!(
        run(q, [2, 3, 5, 8], [2, 3, 5, 4], &plain, 0),
        "[attention] k needs shape [2, _, _, 4] but has [2, 3, 5, 8]"
    );
    assert_eq!(
        run(q, [2, 3, 5, 4], [2, 3, 6, 7], &plain, 0),
        "[attention] v needs shape [2, 3, 5, _] but has [2, 3, 6, 7]"
    );
    assert_eq!(run(q, [2, 3, 5, 4], [2, 3, 5, 7], &plain, 1), "[attention] out needs 252 elements but has 1");
    let sinks = Options { sinks: Some(&data[..5]), ..plain };
    assert_eq!(
        run(q, [2, 3, 5, 4], [2, 3, 5, 7], &sinks, 252),
        "[attention] sinks needs 6 elements but has 5"
    );
    let mask = Options { mask: Some(ArrayMask::Boolean(&[1; 10], [0, 0, 5, 1])), ..plain };
    assert_eq!(
        run(q, [2, 3, 5, 4], [2, 3, 5, 7], &mask, 252),
        "[attention] mask needs data for shape [2, 6, 3, 5] at strides [0, 0, 5, 1] but has 10 elements"
    );
}

#[test]
fn empty_operands_give_what_softmax_over_nothing_gives() {
    let q = [1.0_f32; 8];
    let q = Heads::contiguous("test", "q", &q, [1, 1, 2, 4], Layout::HeadsFirst).unwrap();
    let k = Heads::contiguous("test", "k", &[], [1, 1, 0, 4], Layout::HeadsFirst).unwrap();
    let mut out = [0.0; 8];
    let options = Options::new(1.0, Span::All);
    attention(Level::best(), q, k, k, &options, Layout::HeadsFirst, &mut out).unwrap();
    assert!(out.iter().all(|x| x.is_nan()));
    let none = Heads::contiguous("test", "q", &[], [1, 1, 0, 4], Layout::HeadsFirst).unwrap();
    attention(Level::best(), none, k, k, &options, Layout::HeadsFirst, &mut []).unwrap();
}

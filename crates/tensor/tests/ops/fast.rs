//! MLX's fused operations against their formulas.

use crate::support::{array, close, floats, i32s, numbers};
use strata_tensor::fast::{
    Mask, Rope, layer_norm, rms_norm, rope, rope_dynamic, scaled_dot_product_attention,
};
use strata_tensor::{Array, Dtype, ops};

#[test]
fn norms_divide_by_the_spread_of_the_last_dimension() {
    let (x, w, b) = (array([2, 3, 8]), array([8]), array([8]).negative().unwrap());
    let weight = numbers(8);
    let rows: Vec<Vec<f64>> =
        numbers(48).chunks(8).map(|row| row.iter().map(|&v| f64::from(v)).collect()).collect();
    let of = |f: &dyn Fn(&[f64], usize) -> f64| -> Vec<f64> {
        rows.iter().flat_map(|row| (0..8).map(|i| f(row, i)).collect::<Vec<_>>()).collect()
    };
    let mean_of = |row: &[f64], f: &dyn Fn(f64) -> f64| row.iter().map(|&v| f(v)).sum::<f64>() / 8.0;
    let rms = |row: &[f64], i: usize| row[i] / (mean_of(row, &|v| v * v) + 1e-3).sqrt();
    let weighted = of(&|row, i| rms(row, i) * f64::from(weight[i]));
    close(&rms_norm(&x, Some(&w), 1e-3).unwrap(), [2, 3, 8], &weighted, 2e-6);
    close(&rms_norm(&x, None, 1e-3).unwrap(), [2, 3, 8], &of(&rms), 2e-6);
    let layer = of(&|row, i| {
        let mean = mean_of(row, &|v| v);
        let variance = mean_of(row, &|v| (v - mean).powi(2));
        ((row[i] - mean) / (variance + 1e-3).sqrt() - 1.0) * f64::from(weight[i])
    });
    close(&layer_norm(&x, Some(&w), Some(&b), 1e-3).unwrap(), [2, 3, 8], &layer, 4e-6);
    assert!(rms_norm(&x, Some(&array([7])), 1e-3).is_err());
}

/// The formula in float64: x `[2, 3, 5, 12]`, positions `offset(row) + l`.
fn turned(r: &Rope, offset: impl Fn(usize) -> i32) -> Vec<f64> {
    let x = numbers(360);
    let half = r.dims as usize / 2;
    let mut out: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    for n in 0..30 {
        let position = f64::from(offset(n / 15)) + (n % 5) as f64;
        for i in 0..half {
            let frequency = match (&r.freqs, r.base) {
                (Some(freqs), _) => 1.0 / f64::from(floats(freqs)[i]),
                (None, base) => f64::from(base.unwrap()).powf(-2.0 * i as f64 / f64::from(r.dims)),
            };
            let (sin, cos) = (position * f64::from(r.scale) * frequency).sin_cos();
            let (first, second) = if r.traditional { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (a, b) = (f64::from(x[n * 12 + first]), f64::from(x[n * 12 + second]));
            out[n * 12 + first] = a * cos - b * sin;
            out[n * 12 + second] = a * sin + b * cos;
        }
    }
    out
}

fn ropes() -> Vec<Rope> {
    let freqs = Array::from_slice(&[1.0f32, 3.0, 70.0, 900.0], [4]).unwrap();
    let plain = Rope { dims: 12, traditional: false, base: Some(10_000.0), scale: 1.0, freqs: None };
    vec![
        Rope { traditional: true, ..plain.clone() },
        // The last four values pass.
        Rope { dims: 8, scale: 0.25, ..plain.clone() },
        Rope { dims: 8, base: None, freqs: Some(freqs), ..plain.clone() },
        plain,
    ]
}

#[test]
fn rope_turns_pairs_and_a_dynamic_offset_gives_the_same_bits() {
    let x = array([2, 3, 5, 12]);
    for r in ropes() {
        for offset in [0, 7, 1000] {
            let fixed = rope(&x, &r, offset).unwrap();
            close(&fixed, [2, 3, 5, 12], &turned(&r, |_| offset), 2e-4);
            let dynamic = rope_dynamic(&x, &r, &Array::from_i32(offset)).unwrap();
            assert_eq!(floats(&dynamic), floats(&fixed));
        }
        let rows = rope_dynamic(&x, &r, &i32s(&[3, 500], [2])).unwrap();
        close(&rows, [2, 3, 5, 12], &turned(&r, |row| [3, 500][row]), 2e-4);
    }
}

#[test]
fn b16_identical_rows_turn_identically() {
    let row = array([1, 3, 1, 12]);
    let rows = ops::concatenate(&[&row, &row], 0).unwrap();
    for r in ropes() {
        let values = floats(&rope(&rows, &r, 9).unwrap());
        assert_eq!(values[..36], values[36..]);
        assert!(values.iter().all(|&v| v != 0.0));
    }
}

/// Attention by its formula: queries `[2, 6, 3, 8]`, keys `[2, 2, 5, 8]`, values `[2, 2, 5, 4]`; `bias(b, h, q, s)` is
/// added to the score, and `sink(h)` takes part in the sum.
fn attended(bias: impl Fn([usize; 4]) -> f64, sink: impl Fn(usize) -> Option<f64>) -> Vec<f64> {
    let (q, k, v) = (numbers(288), numbers(160), numbers(80));
    let mut out = Vec::new();
    for n in 0..36 {
        let (batch, head, query) = (n / 18, n / 3 % 6, n % 3);
        let kv = batch * 2 + head / 3;
        let score = |s: usize| -> f64 {
            let dot: f64 = (0..8).map(|i| f64::from(q[n * 8 + i]) * f64::from(k[(kv * 5 + s) * 8 + i])).sum();
            (0.3 * dot + bias([batch, head, query, s])).exp()
        };
        let weights: Vec<f64> = (0..5).map(score).collect();
        let total = weights.iter().sum::<f64>() + sink(head).map_or(0.0, f64::exp);
        for i in 0..4 {
            out.push((0..5).map(|s| weights[s] * f64::from(v[(kv * 5 + s) * 4 + i])).sum::<f64>() / total);
        }
    }
    out
}

fn hidden(is: bool) -> f64 {
    if is { f64::NEG_INFINITY } else { 0.0 }
}

#[test]
fn attention_with_every_kind_of_mask() {
    let (q, k, v) = (array([2, 6, 3, 8]), array([2, 2, 5, 8]), array([2, 2, 5, 4]));
    let found = |mask: Mask<'_>, sinks: Option<&Array>| {
        scaled_dot_product_attention(&q, &k, &v, 0.3, mask, sinks).unwrap()
    };
    let none = |_: usize| None;
    let shape = [2, 6, 3, 4];
    close(&found(Mask::None, None), shape, &attended(|_| 0.0, none), 2e-6);
    // With 3 queries and 5 keys, query i sees keys up to 2 + i.
    let causal = attended(|[_, _, l, s]| hidden(s > l + 2), none);
    close(&found(Mask::Causal, None), shape, &causal, 2e-6);
    let seen = ops::tri(3, 5, 2, Dtype::Bool).unwrap();
    close(&found(Mask::Array(&seen), None), shape, &causal, 2e-6);
    let bias = array([2, 1, 3, 5]);
    let values = numbers(30);
    let biased = attended(|[b, _, l, s]| f64::from(values[(b * 3 + l) * 5 + s]), none);
    close(&found(Mask::Array(&bias), None), shape, &biased, 2e-6);
    // Each row its own mask, as with left padding.
    let padded = Array::from_bytes(&[1, 1, 1, 1, 1, 0, 0, 1, 1, 1], [2, 1, 1, 5], Dtype::Bool).unwrap();
    let padding = attended(|[b, _, _, s]| hidden(b == 1 && s < 2), none);
    close(&found(Mask::Array(&padded), None), shape, &padding, 2e-6);
    let sinks = array([6]);
    let with_sinks = attended(|[_, _, l, s]| hidden(s > l + 2), |h| Some(f64::from(numbers(6)[h])));
    close(&found(Mask::Causal, Some(&sinks)), shape, &with_sinks, 2e-6);
}

#[test]
fn attention_that_does_not_fit_is_refused() {
    let (q, k, v) = (array([2, 6, 3, 8]), array([2, 2, 5, 8]), array([2, 2, 5, 4]));
    let refused = |q: &Array, k: &Array, v: &Array, mask: Mask<'_>| {
        let error = scaled_dot_product_attention(q, k, v, 1.0, mask, None).unwrap_err().to_string();
        assert!(error.starts_with("fast_scaled_dot_product_attention: "), "{error}");
    };
    refused(&array([2, 5, 3, 8]), &k, &v, Mask::None);
    refused(&q, &array([2, 2, 5, 7]), &v, Mask::None);
    refused(&q, &k, &array([2, 2, 4, 4]), Mask::None);
    refused(&q, &k, &v, Mask::Array(&array([4, 5])));
}

//! Host kernels as nodes of MLX's graph give what their references give, to the rounding of the reference's own steps,
//! on views (transposed, sliced) as models pass them.

use strata_contracts::QuantScheme;
use strata_kernels::Offset;
use strata_kernels::append;
use strata_kernels::attention::{self, Span};
use strata_kernels::gated_activation::{self, Activation};
use strata_kernels::host::heads::Layout;
use strata_kernels::qk_norm_rope::{self, Norms};
use strata_kernels::rms_norm::Overflow;
use strata_kernels::rope::{self, Rope};
use strata_kernels::{
    causal_conv, experts, gated_delta, layer_norm, matmul, paged_attention, quantize, quantized_attention,
    rms_norm, sample, turbo,
};
use strata_tensor::{Array, Dtype, fast, ops, random};

const FLOATS: [(Dtype, f32); 3] = [(Dtype::Float32, 4e-6), (Dtype::Float16, 6e-3), (Dtype::Bfloat16, 5e-2)];

fn normal(shape: &[i32], seed: u64, dtype: Dtype) -> Array {
    let key = random::Key::new(seed).unwrap();
    random::normal(0.0, 1.0, shape, Dtype::Float32, &key).unwrap().astype(dtype).unwrap()
}

fn bytes(x: &Array) -> Vec<u8> {
    x.to_bytes().unwrap()
}

#[track_caller]
fn close(got: &Array, expected: &Array, bound: f32) {
    assert_eq!((got.shape(), got.dtype()), (expected.shape(), expected.dtype()));
    let values = |x: &Array| x.astype(Dtype::Float32).unwrap().to_vec::<f32>().unwrap();
    for (i, (a, b)) in values(got).into_iter().zip(values(expected)).enumerate() {
        assert!((a - b).abs() <= bound * (1.0 + b.abs()), "value {i}: {a}, not {b} ({})", got.dtype());
    }
}

#[test]
fn norms_equal_their_references() {
    for (dtype, bound) in FLOATS {
        let x = normal(&[2, 5, 3, 40], 1, dtype).transpose(&[0, 2, 1, 3]).unwrap();
        let (w, b) = (normal(&[40], 2, dtype), normal(&[40], 3, dtype));
        for weight in [None, Some(&w)] {
            let expected = rms_norm::reference::rms_norm(&x, weight, 1e-5).unwrap();
            close(&rms_norm::rms_norm(&x, weight, 1e-5).unwrap(), &expected, bound);
            let bias = weight.and(Some(&b));
            let expected = layer_norm::reference::layer_norm(&x, weight, bias, 1e-5).unwrap();
            close(&layer_norm::layer_norm(&x, weight, bias, 1e-5).unwrap(), &expected, bound);
        }
        let residual = normal(&[2, 3, 5, 40], 4, dtype);
        for overflow in [Overflow::Infinite, Overflow::Clip] {
            let got = rms_norm::rms_norm_onto(&residual, &x, Some(&w), 1e-5, overflow).unwrap();
            let expected =
                rms_norm::reference::rms_norm_onto(&residual, &x, Some(&w), 1e-5, overflow).unwrap();
            // MLX rounds the norm before it adds.
            close(&got, &expected, 3.0 * bound);
        }
    }
    let x = normal(&[3, 8], 1, Dtype::Float32);
    let error = rms_norm::rms_norm(&x, Some(&normal(&[7], 2, Dtype::Float32)), 1e-5).unwrap_err();
    assert!(error.to_string().contains("weight needs shape"), "{error}");
    assert!(rms_norm::rms_norm(&x.astype(Dtype::Int32).unwrap(), None, 1e-5).is_err());
}

#[test]
fn rotations_equal_their_references() {
    for (dtype, bound) in FLOATS {
        // As a projection gives it: [B, L, H * D].
        let (b, l, d) = (2, 5, 24);
        let (q, k) = (normal(&[b, l, 4 * d], 1, dtype), normal(&[b, l, 2 * d], 2, dtype));
        let v = normal(&[b, l, 2 * d], 5, dtype);
        let (wq, wk) = (normal(&[d], 3, dtype), normal(&[d], 4, dtype));
        let norms = Norms { q: &wq, k: &wk, eps: 1e-6 };
        let offsets = Array::from_slice(&[7_i32, 300], [2]).unwrap();
        let freqs: Vec<f32> = (0..8).map(|i| 1.5_f32.powi(i)).collect();
        let freqs = Array::from_slice(&freqs, [8]).unwrap();
        for rope in [
            fast::Rope { dims: 24, traditional: false, base: Some(10_000.0), scale: 1.0, freqs: None },
            fast::Rope { dims: 12, traditional: true, base: Some(500.0), scale: 0.25, freqs: None },
            fast::Rope { dims: 16, traditional: false, base: None, scale: 1.0, freqs: Some(freqs.clone()) },
        ] {
            let host = Rope::new(&rope).unwrap();
            for offset in [Offset::At(0), Offset::At(70), Offset::Array(&offsets)] {
                for norms in [None, Some(norms)] {
                    let got = qk_norm_rope::qk_norm_rope(&q, &k, &v, d, norms, &host, offset).unwrap();
                    let expected =
                        qk_norm_rope::reference::qk_norm_rope(&q, &k, &v, d, norms, &rope, offset).unwrap();
                    // Angles of some hundred radians differ by the last place of the frequencies.
                    close(&got[0], &expected[0], 8.0 * bound);
                    close(&got[1], &expected[1], 8.0 * bound);
                    close(&got[2], &expected[2], 0.0);
                }
                let x = q.unflatten(-1, [4, d]).unwrap().transpose(&[0, 2, 1, 3]).unwrap();
                let got = rope::rope(&x, &host, offset).unwrap();
                close(&got, &rope::reference::rope(&x, &rope, offset).unwrap(), 8.0 * bound);
            }
        }
    }
}

#[test]
fn routes_and_sums_of_experts_equal_their_references() {
    for (dtype, bound) in FLOATS {
        // Multiples of a number that no two of a row share: half types keep them apart.
        let logits: Vec<f32> = (0..2 * 3 * 12).map(|i| ((i * 7) % 12) as f32 * 0.25 - 1.0).collect();
        let logits = Array::from_slice(&logits, [2, 3, 12]).unwrap().astype(dtype).unwrap();
        for (k, normalised) in [(1, true), (4, true), (12, false)] {
            let (chosen, shares) = experts::route(&logits, k, normalised).unwrap();
            let expected = experts::reference::route(&logits, k, normalised).unwrap();
            assert_eq!(chosen.to_vec::<u32>().unwrap(), expected.0.to_vec::<u32>().unwrap());
            close(&shares, &expected.1, 4.0 * bound);
            let (said, residual) = (normal(&[2, 3, k as i32, 40], 1, dtype), normal(&[2, 3, 40], 2, dtype));
            let got = experts::combine(&residual, &said, &shares).unwrap();
            close(&got, &experts::reference::combine(&residual, &said, &shares).unwrap(), 8.0 * bound);
        }
        assert!(
            experts::route(&logits, 13, true).unwrap_err().to_string().contains("cannot choose 13 of 12")
        );
        let (said, residual) = (normal(&[2, 3, 4, 40], 1, dtype), normal(&[2, 3, 41], 2, dtype));
        let (_, shares) = experts::route(&logits, 4, true).unwrap();
        assert!(experts::combine(&residual, &said, &shares).unwrap_err().to_string().contains("do not fit"));
    }
}

#[test]
fn rows_are_quantized_to_the_bits_of_mlx() {
    for (dtype, _) in FLOATS {
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                let scheme = QuantScheme::affine(bits, group).unwrap();
                // A slice of longer rows; rows of a single value; zeros.
                let x = normal(&[2, 3, 7, 384], u64::from(bits), dtype).slice_axis(3, 128, 384).unwrap();
                let flat = ops::full([1, 3, 7, 256], &Array::from_f32(-0.75), dtype).unwrap();
                let zeros = ops::zeros([1, 3, 7, 256], dtype).unwrap();
                for x in [x, flat, zeros] {
                    let got = quantize::quantize(&x, scheme).unwrap();
                    let expected = quantize::reference::quantize(&x, scheme).unwrap();
                    let parts = |q: ops::Quantized| [q.weight, q.scales, q.biases.unwrap()];
                    for (got, expected) in parts(got).iter().zip(&parts(expected)) {
                        assert_eq!(got.shape(), expected.shape());
                        assert_eq!(bytes(got), bytes(expected), "{dtype}, {bits} bits, groups of {group}");
                    }
                }
            }
        }
    }
    let odd = normal(&[2, 48], 1, Dtype::Float32);
    assert!(quantize::quantize(&odd, QuantScheme::affine(4, 32).unwrap()).is_err());
}

/// Stored keys or values.
fn stored([codes, norms]: &[Array; 2], bits: u8) -> turbo::Stored<'_> {
    turbo::Stored { codes, norms, bits }
}

#[test]
fn attention_over_rotated_codes_equals_its_reference() {
    for (dtype, bound) in FLOATS {
        for (l, bits) in [(1, [4, 2]), (6, [3, 1])] {
            let (b, hq, hkv, room, d) = (2, 6, 2, 40, 64);
            let q = normal(&[b, l, hq, d], 1, dtype).transpose(&[0, 2, 1, 3]).unwrap();
            let encoded =
                |seed, bits| turbo::reference::encode(&normal(&[b, hkv, room, d], seed, dtype), bits);
            let (k, v) = (encoded(2, bits[0]).unwrap(), encoded(3, bits[1]).unwrap());
            let first = |parts: &[Array; 2]| parts.each_ref().map(|x| x.slice_axis(2, 0, 33).unwrap());
            let (first_k, first_v) = (first(&k), first(&v));
            let slices = (stored(&first_k, bits[0]), stored(&first_v, bits[1]));
            let whole = (stored(&k, bits[0]), stored(&v, bits[1]));
            for layout in [Layout::HeadsFirst, Layout::PositionsFirst] {
                let options = attention::Options::new(0.125, Span::Causal);
                let expected =
                    turbo::reference::turbo_attention(&q, slices.0, slices.1, &options, layout).unwrap();
                let got = turbo::turbo_attention(&q, slices.0, slices.1, &options, layout).unwrap();
                close(&got, &expected, 8.0 * bound);
                // The whole buffers, and how much of them is live.
                let options = attention::Options { end: Some(Offset::At(33)), ..options };
                let got = turbo::turbo_attention(&q, whole.0, whole.1, &options, layout).unwrap();
                close(&got, &expected, 8.0 * bound);
            }
        }
        let x = normal(&[2, 3, 5, 64], 9, dtype);
        let [codes, norms] = turbo::encode(&x, 4).unwrap();
        let [expected_codes, expected_norms] = turbo::reference::encode(&x, 4).unwrap();
        assert_eq!(codes.shape(), expected_codes.shape());
        close(&norms, &expected_norms, 4e-6);
        // Coordinates on a midpoint may take either level.
        let back = |codes: &Array| turbo::reference::decode(codes, &norms, 4, Dtype::Float32).unwrap();
        let apart = back(&codes).subtract(&back(&expected_codes)).unwrap().to_vec::<f32>().unwrap();
        assert!(apart.iter().filter(|x| **x != 0.0).count() <= apart.len() / 500);
    }
    let error = turbo::encode(&normal(&[2, 48], 1, Dtype::Float32), 4).unwrap_err().to_string();
    assert!(error.contains("power of two"), "{error}");
}

#[test]
fn gated_activations_equal_their_references() {
    for (dtype, bound) in FLOATS {
        let both = normal(&[2, 3, 2 * 37], 1, dtype).multiply_number(3.0).unwrap();
        let halves = both.split(2, -1).unwrap();
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
            let got = gated_activation::gated_activation(activation, &halves[0], &halves[1]).unwrap();
            let expected = gated_activation::reference::gated_activation(activation, &halves[0], &halves[1]);
            close(&got, &expected.unwrap(), 4.0 * bound);
        }
    }
}

#[test]
fn attention_equals_its_reference() {
    for (dtype, bound) in FLOATS {
        for (l, s) in [(1, 33), (4, 21), (40, 57)] {
            let (b, hq, hkv, d) = (2, 6, 2, 32);
            let q = normal(&[b, l, hq, d], 1, dtype).transpose(&[0, 2, 1, 3]).unwrap();
            // Slices of longer buffers, or the buffers and what of them is there.
            let room = |seed| normal(&[b, hkv, 64, d], seed, dtype);
            let slice = |x: &Array| x.slice_axis(2, 0, s).unwrap();
            let (k, v) = (room(2), room(3));
            let boolean = normal(&[b, 1, l, s], 4, Dtype::Float32).greater(&Array::from_f32(-0.5)).unwrap();
            let additive = normal(&[l, s], 5, dtype);
            let sinks = normal(&[hq], 6, dtype);
            for span in [Span::All, Span::Causal, Span::Window(9)] {
                for (mask, softcap, sinks) in [
                    (None, None, None),
                    (Some(&boolean), None, Some(&sinks)),
                    (Some(&additive), None, None),
                    (None, Some(2.0), Some(&sinks)),
                    (Some(&boolean), Some(2.0), None),
                ] {
                    let options = attention::Options { scale: 0.2, span, end: None, mask, softcap, sinks };
                    let end = Array::from_slice(&[s], []).unwrap();
                    let buffers = attention::Options { end: Some(Offset::At(s)), ..options };
                    let to_end = attention::Options { end: Some(Offset::Array(&end)), ..options };
                    for layout in [Layout::HeadsFirst, Layout::PositionsFirst] {
                        let (k_slice, v_slice) = (slice(&k), slice(&v));
                        let got = attention::attention(&q, &k_slice, &v_slice, &options, layout).unwrap();
                        let expected = attention::reference::attention(&q, &k, &v, &buffers, layout).unwrap();
                        close(&got, &expected, 2.0 * bound);
                        for options in [buffers, to_end] {
                            let again = attention::attention(&q, &k, &v, &options, layout).unwrap();
                            close(&again, &got, 0.0);
                        }
                    }
                }
            }
        }
    }
    let x = ops::zeros([1, 3, 4, 8], Dtype::Float32).unwrap();
    let k = ops::zeros([1, 2, 4, 8], Dtype::Float32).unwrap();
    let options = attention::Options::new(1.0, Span::All);
    let error = attention::attention(&x, &k, &k, &options, Layout::HeadsFirst).unwrap_err();
    assert!(error.to_string().contains("a divisor of 3"), "{error}");
    let options = attention::Options { end: Some(Offset::At(5)), ..options };
    let error = attention::attention(&k, &k, &k, &options, Layout::HeadsFirst).unwrap_err();
    assert!(error.to_string().contains("reads 5 keys but k has 4"), "{error}");
    for (end, problem) in [(5, "reads 5 keys but k has 4"), (-1, "must not be negative")] {
        let end = Array::from_slice(&[end], []).unwrap();
        let options = attention::Options { end: Some(Offset::Array(&end)), ..options };
        let out = attention::attention(&k, &k, &k, &options, Layout::HeadsFirst).unwrap();
        let error = out.eval().unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn appending_equals_its_reference_and_leaves_what_others_hold() {
    let (b, h, t, l) = (2, 3, 11, 4);
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Uint32] {
        let array = |shape: &[i32], seed| {
            normal(shape, seed, Dtype::Float32).multiply_number(1000.0).unwrap().astype(dtype).unwrap()
        };
        for widths in [vec![5, 8], vec![3, 1, 2, 7, 1, 4]] {
            let buffers: Vec<Array> = widths.iter().map(|&w| array(&[b, h, t, w], 1 + w as u64)).collect();
            // As a projection leaves them: positions before heads.
            let new = |&w: &i32| array(&[b, l, h, w], 9 + w as u64).transpose(&[0, 2, 1, 3]).unwrap();
            let new: Vec<Array> = widths.iter().map(new).collect();
            let before: Vec<Vec<u8>> = buffers.iter().map(bytes).collect();
            for start in [0, 3, 7] {
                let array = Array::from_slice(&[start], []).unwrap();
                for start in [Offset::At(start), Offset::Array(&array)] {
                    let got = append::append(&buffers, &new, start).unwrap();
                    let expected = append::reference::append(&buffers, &new, start).unwrap();
                    let equal =
                        got.iter().zip(&expected).all(|(got, expected)| bytes(got) == bytes(expected));
                    assert!(equal, "{dtype} from {start:?}");
                }
            }
            assert_eq!(buffers.iter().map(bytes).collect::<Vec<_>>(), before);
            let error = append::append(&buffers, &new, Offset::At(8)).unwrap_err();
            assert!(error.to_string().contains("4 positions from 8 on do not fit a buffer of 11"), "{error}");
            for start in [8, -1] {
                let start = Array::from_slice(&[start], []).unwrap();
                let late = append::append(&buffers, &new, Offset::Array(&start)).unwrap();
                assert!(late[0].eval().is_err());
            }
        }
    }
}

#[test]
fn products_with_a_matrix_as_it_lies_equal_their_references() {
    for (dtype, bound) in FLOATS {
        let x = normal(&[2, 5, 24], 1, dtype);
        let plain = normal(&[24, 96], 2, dtype);
        let weight = matmul::Weight::Plain(&plain);
        let expected = matmul::reference::matmul(&x, weight).unwrap();
        close(&matmul::matmul(&x, weight).unwrap(), &expected, 8.0 * bound);
        let quantized = ops::quantize(&plain, QuantScheme::affine(4, 32).unwrap()).unwrap();
        let weight = matmul::Weight::Quantized(&quantized);
        let expected = matmul::reference::matmul(&x, weight).unwrap();
        // MLX rounds half types in between.
        close(&matmul::matmul(&x, weight).unwrap(), &expected, 16.0 * bound);
        let error = matmul::matmul(&x.slice_axis(-1, 0, 23).unwrap(), weight).unwrap_err();
        assert!(error.to_string().contains("a matrix of 24 x 96 does not fit x of shape"), "{error}");
    }
}

#[test]
fn quantized_attention_equals_its_reference() {
    for (dtype, bound) in FLOATS {
        for (l, s) in [(1, 33), (4, 21), (40, 57)] {
            let (b, hq, hkv, d) = (2, 6, 2, 64);
            let q = normal(&[b, hq, l, d], 1, dtype);
            let store = |seed, bits, group| {
                let x = normal(&[b, hkv, 64, d], seed, dtype);
                let full = ops::quantize(&x, QuantScheme::affine(bits, group).unwrap()).unwrap();
                let slice = |x: &Array| x.slice_axis(2, 0, s).unwrap();
                ops::Quantized {
                    weight: slice(&full.weight),
                    scales: slice(&full.scales),
                    biases: full.biases.as_ref().map(slice),
                    scheme: full.scheme,
                }
            };
            for (k, v) in [
                (store(2, 4, 32), store(3, 8, 64)),
                (store(2, 8, 64), store(3, 8, 64)),
                (store(2, 3, 32), store(3, 6, 32)),
            ] {
                for (span, softcap) in
                    [(Span::Causal, None), (Span::Window(9), None), (Span::Causal, Some(2.0))]
                {
                    let options = attention::Options { softcap, ..attention::Options::new(0.2, span) };
                    let got = quantized_attention::quantized_attention(
                        &q,
                        &k,
                        &v,
                        &options,
                        Layout::PositionsFirst,
                    );
                    let expected = quantized_attention::reference::quantized_attention(
                        &q,
                        &k,
                        &v,
                        &options,
                        Layout::PositionsFirst,
                    );
                    close(&got.unwrap(), &expected.unwrap(), 4.0 * bound);
                }
            }
        }
    }
}

#[test]
fn paged_attention_equals_its_reference() {
    use paged_attention::{Options, Pages, Tables};
    let ints = |x: &[i32], shape: &[i32]| Array::from_slice(x, shape).unwrap();
    for (dtype, bound) in FLOATS {
        let (b, hq, hkv, d, page) = (3, 6, 2, 64, 5);
        // Rows of unequal length that share a page; the last two begin and end within the queries.
        let tables = ints(&[7, 2, 4, 7, 6, 0, 1, 0, 0], &[b, 3]);
        let (keys, values) = (normal(&[8, hkv, page, d], 2, dtype), normal(&[8, hkv, page, d], 3, dtype));
        let affine = |x: &Array, bits| ops::quantize(x, QuantScheme::affine(bits, 32).unwrap()).unwrap();
        for (pages, bound) in [
            (Pages::Dense(keys.clone(), values.clone()), 2.0 * bound),
            (Pages::Affine(affine(&keys, 4), affine(&values, 4)), 4.0 * bound),
            (Pages::Affine(affine(&keys, 8), affine(&values, 8)), 4.0 * bound),
            (Pages::Affine(affine(&keys, 6), affine(&values, 3)), 4.0 * bound),
        ] {
            for (l, lengths, offsets) in
                [(1, [13, 10, 2], [12, 9, 1]), (4, [13, 10, 2], [9, 8, -2]), (40, [15, 10, 3], [-25, 0, 0])]
            {
                let q = normal(&[b, l, hq, d], 1, dtype).transpose(&[0, 2, 1, 3]).unwrap();
                let tables = Tables {
                    tables: tables.clone(),
                    lengths: ints(&lengths, &[b]),
                    offsets: ints(&offsets, &[b]),
                };
                for (softcap, layout) in [(None, Layout::HeadsFirst), (Some(2.0), Layout::PositionsFirst)] {
                    let options = Options { scale: 0.2, softcap };
                    let got = paged_attention::paged_attention(&q, &pages, &tables, options, layout);
                    let expected =
                        paged_attention::reference::paged_attention(&q, &pages, &tables, options, layout);
                    close(&got.unwrap(), &expected.unwrap(), bound);
                }
            }
        }
    }
    let x = ops::zeros([2, 2, 1, 32], Dtype::Float32).unwrap();
    let table = |id| Tables {
        tables: ints(&[0, id], &[2, 1]),
        lengths: ints(&[1, 1], &[2]),
        offsets: ints(&[0, 0], &[2]),
    };
    let options = Options { scale: 1.0, softcap: None };
    let pages = Pages::Dense(x.clone(), x.clone());
    let run =
        |tables: &Tables| paged_attention::paged_attention(&x, &pages, tables, options, Layout::HeadsFirst);
    let error = run(&table(2)).unwrap().eval().unwrap_err();
    assert!(error.to_string().contains("pages below 2 in row 1 but has 2"), "{error}");
    let error = run(&Tables { lengths: ints(&[1], &[1]), ..table(1) }).unwrap_err();
    assert!(error.to_string().contains("lengths must be int32 [2]"), "{error}");
}

#[test]
fn picks_equal_their_references() {
    for (dtype, _) in FLOATS {
        let logits = normal(&[2, 3, 1000], 1, dtype);
        let indices = |x: Array| x.to_vec::<u32>().unwrap();
        assert_eq!(
            indices(sample::argmax(&logits).unwrap()),
            indices(sample::reference::argmax(&logits).unwrap())
        );
        let (values, picks) = sample::top_k(&logits, 7).unwrap();
        let expected = sample::reference::top_k(&logits, 7).unwrap();
        close(&values, &expected.0, 0.0);
        assert_eq!(indices(picks), indices(expected.1));
    }
    assert!(sample::top_k(&normal(&[4], 1, Dtype::Float32), 5).is_err());
}

#[test]
fn draws_equal_their_reference() {
    let plain = sample::Draw { temperature: 0.8, top_p: 1.0, min_p: 0.0, top_k: 0 };
    for (dtype, _) in FLOATS {
        let logits = normal(&[2, 3, 500], 1, dtype).multiply_number(2.0).unwrap();
        let uniform =
            random::uniform(0.0, 1.0, [2, 3], Dtype::Float32, &random::Key::new(5).unwrap()).unwrap();
        for options in [
            plain,
            sample::Draw { top_p: 0.9, ..plain },
            sample::Draw { min_p: 0.05, ..plain },
            sample::Draw { top_k: 20, ..plain },
            sample::Draw { top_p: 0.95, min_p: 0.01, top_k: 50, ..plain },
        ] {
            let got = sample::draw(&logits, &uniform, options).unwrap();
            let expected = sample::reference::draw(&logits, &uniform, options).unwrap();
            assert_eq!((got.shape(), got.dtype()), (expected.shape(), expected.dtype()));
            assert_eq!(got.to_vec::<u32>().unwrap(), expected.to_vec::<u32>().unwrap(), "{options:?}");
        }
        let error = sample::draw(&logits, &normal(&[3], 1, Dtype::Float32), plain).unwrap_err();
        assert!(error.to_string().contains("needs float32 numbers [2, 3]"), "{error}");
    }
}

#[test]
fn gated_delta_equals_both_references() {
    for (dtype, bound) in FLOATS {
        for length in [1, 21] {
            let (b, hk, hv, dk, dv) = (2, 2, 4, 32, 24);
            let small =
                |shape: &[i32], seed| normal(shape, seed, Dtype::Float32).multiply_number(0.2).unwrap();
            let (q, k) = (small(&[b, length, hk, dk], 1), small(&[b, length, hk, dk], 2));
            let (q, k) = (q.astype(dtype).unwrap(), k.astype(dtype).unwrap());
            let v = normal(&[b, length, hv, dv], 3, dtype);
            let unit = |shape: &[i32], seed| normal(shape, seed, Dtype::Float32).sigmoid().unwrap();
            let (g, columns) = (unit(&[b, length, hv], 4), unit(&[b, length, hv, dk], 5));
            let (beta, state) = (unit(&[b, length, hv], 6), normal(&[b, hv, dv, dk], 7, Dtype::Float32));
            let mask = normal(&[b, length], 8, Dtype::Float32).greater(&Array::from_f32(-0.5)).unwrap();
            for (g, mask) in [(&g, None), (&columns, None), (&g, Some(&mask))] {
                let operands =
                    gated_delta::Operands { q: &q, k: &k, v: &v, g, beta: &beta, state: &state, mask };
                let got = gated_delta::gated_delta(operands).unwrap();
                let expected = gated_delta::reference::gated_delta(operands).unwrap();
                close(&got.0, &expected.0, 4.0 * bound);
                close(&got.1, &expected.1, 1e-5);
            }
            let operands =
                gated_delta::Operands { q: &q, k: &k, v: &v, g: &g, beta: &beta, state: &state, mask: None };
            let expected = gated_delta::reference::gated_delta(operands).unwrap();
            for chunk in [1, 8, 64] {
                let got = gated_delta::reference::gated_delta_chunked(operands, chunk).unwrap();
                close(&got.0, &expected.0, 4.0 * bound);
                close(&got.1, &expected.1, 2e-5);
            }
        }
    }
}

#[test]
fn causal_convolution_equals_its_reference() {
    for (dtype, bound) in FLOATS {
        for length in [1, 6] {
            let (b, c, taps) = (2, 20, 4);
            let (x, weight) = (normal(&[b, length, c], 1, dtype), normal(&[taps, c], 2, dtype));
            let carried = normal(&[b, taps - 1, c], 3, dtype);
            let lengths = Array::from_slice(&[1_i32, 0], [2]).unwrap();
            for lengths in [None, Some(&lengths)] {
                let got = causal_conv::causal_conv(&x, &weight, &carried, lengths, true).unwrap();
                let expected =
                    causal_conv::reference::causal_conv(&x, &weight, &carried, lengths, true).unwrap();
                close(&got.0, &expected.0, 4.0 * bound);
                close(&got.1, &expected.1, 0.0);
            }
        }
    }
}

//! Linear maps against float64 at every level: bits, groups, types, sizes around vector widths, and what surrounds them.

use super::host::*;
use super::{Activation, Arithmetic};
use crate::embedding;
use crate::host::element::Floats;
use crate::host::lanes::Lane;
use crate::host::{Element, Level};
use crate::matmul::Plain;
use crate::quantized_matmul::Quantized;
use crate::quantized_matmul::host::pack::pack;
use crate::quantized_matmul::panels::{Panels, sizes};
use half::{bf16, f16};
use strata_contracts::QuantScheme;

/// A small linear congruential generator (constants of Knuth's MMIX), uniform in -1 .. 1.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    fn value(&mut self) -> f32 {
        f64::from(self.word()) as f32 / 2_147_483_648.0 - 1.0
    }

    fn values<T: Element>(&mut self, count: usize) -> Vec<T> {
        (0..count).map(|_| T::from_f32(self.value())).collect()
    }
}

/// A random quantized stack with its values in float64.
struct Table<E> {
    packed: Vec<u32>,
    scales: Vec<E>,
    biases: Vec<E>,
    scheme: QuantScheme,
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl<E: Lane> Table<E> {
    fn new(random: &mut Random, scheme: (u32, u32), count: usize, rows: usize, columns: usize) -> Self {
        let scheme = QuantScheme::affine(scheme.0, scheme.1).unwrap();
        let (bits, group) = (scheme.bits() as usize, scheme.group_size() as usize);
        let words = scheme.packed_columns(columns).unwrap();
        let packed: Vec<u32> = (0..count * rows * words).map(|_| random.word()).collect();
        let scale = 1.0 / f64::from(1_u32 << bits) as f32;
        let groups = count * rows * columns / group;
        let scales: Vec<E> = (0..groups).map(|_| E::from_f32((1.5 + random.value()) * scale)).collect();
        let biases: Vec<E> = (0..groups).map(|_| E::from_f32(random.value() - 0.5)).collect();
        let mut values = Vec::new();
        for row in 0..count * rows {
            for k in 0..columns {
                let number: usize = (0..bits)
                    .map(|bit| {
                        let at = k * bits + bit;
                        (packed[row * words + at / 32] >> (at % 32) & 1) as usize * (1 << bit)
                    })
                    .sum();
                let g = row * columns / group + k / group;
                let (scale, bias) = (f64::from(scales[g].to_f32()), f64::from(biases[g].to_f32()));
                values.push(scale * number as f64 + bias);
            }
        }
        Self { packed, scales, biases, scheme, rows, columns, values }
    }

    fn view(&self) -> Quantized<'_> {
        let (scales, biases) = (E::floats(&self.scales), E::floats(&self.biases));
        Quantized::new(&self.packed, scales, biases, self.scheme, self.rows, self.columns).unwrap()
    }

    fn linear(&self) -> Linear<'_> {
        Linear { matrix: Matrix::Quantized(self.view()), bias: None }
    }

    /// Words, scales and biases in panels.
    fn packed(&self, level: Level) -> (Vec<u32>, [Vec<E>; 2]) {
        let count = self.view().count();
        let [words, factors] =
            sizes(self.scheme, self.rows, self.columns, level.lanes()).map(|size| count * size);
        let mut words = vec![7; words];
        let [mut scales, mut biases] = [vec![E::default(); factors], vec![E::default(); factors]];
        let from = [&self.scales[..], &self.biases[..]];
        pack(self.view(), from, level.lanes(), &mut words, [&mut scales, &mut biases]);
        (words, [scales, biases])
    }

    fn panels<'a>(&self, level: Level, (words, [scales, biases]): &'a (Vec<u32>, [Vec<E>; 2])) -> Panels<'a> {
        let (scales, biases) = (E::floats(scales), E::floats(biases));
        Panels::new(level, words, scales, Some(biases), self.scheme, self.rows, self.columns).unwrap()
    }

    fn in_panels<'a>(&self, level: Level, packed: &'a (Vec<u32>, [Vec<E>; 2])) -> Linear<'a> {
        Linear { matrix: Matrix::Panels(self.panels(level, packed)), bias: None }
    }
}

/// `x` as integer arithmetic sees it: blocks of 32 in steps of a part of the largest.
fn rounded(x: &[f32]) -> Vec<f64> {
    let parts = 127.0 * 255.0;
    let round = |block: &[f32]| {
        let largest = block.iter().fold(0_f32, |most, x| most.max(x.abs()));
        let (step, inverse) = if largest < 1e-30 { (0.0, 0.0) } else { (largest / parts, parts / largest) };
        block.iter().map(|x| f64::from((x * inverse).round_ties_even()) * f64::from(step)).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(round).collect()
}

fn wide<T: Element>(values: &[T]) -> Vec<f32> {
    values.iter().map(|x| x.to_f32()).collect()
}

/// Unit roundoff of a type.
fn roundoff<T: Element>() -> f64 {
    match T::DTYPE {
        strata_contracts::Dtype::Float32 => 2_f64.powi(-24),
        strata_contracts::Dtype::Float16 => 2_f64.powi(-11),
        _ => 2_f64.powi(-8),
    }
}

/// Compares `out` with `x W^T` in float64. The bound: one rounding of the result, and float32 sums whose terms go
/// through at most `K / 4` additions, though errors average out; 16 roundoffs of the sum of magnitudes hold for all `K` here.
fn check_product<T: Lane>(out: &[T], x: &[f64], w: &[f64], columns: usize, what: &str) {
    let width = w.len() / columns;
    for (row, out) in x.chunks(columns).zip(out.chunks(width)) {
        for (n, (w, &got)) in w.chunks(columns).zip(out).enumerate() {
            let exact: f64 = row.iter().zip(w).map(|(x, w)| x * w).sum();
            let size: f64 = row.iter().zip(w).map(|(x, w)| (x * w).abs() + x.abs()).sum();
            let bound = exact.abs() * roundoff::<T>() + size * 16.0 * 2_f64.powi(-24) + 6e-8;
            let error = (f64::from(got.to_f32()) - exact).abs();
            assert!(
                error <= bound,
                "{what} column {n}: {got:?} for {exact}, off by {error:e}, allowed {bound:e}"
            );
        }
    }
}

fn call<'a, T>(x: &'a [T], linears: &'a [Linear<'a>], arithmetic: Arithmetic) -> Call<'a, T> {
    Call { x, norm: None, linears, finish: Finish::Store, routes: None, arithmetic }
}

fn quantized_product<T: Lane, E: Lane>(scheme: (u32, u32), sizes: &[(usize, usize, usize)]) {
    let mut random = Random(7 + u64::from(scheme.0 * 1000 + scheme.1));
    for &(rows, width, groups) in sizes {
        let columns = groups * scheme.1 as usize;
        let table = Table::<E>::new(&mut random, scheme, 1, width, columns);
        let x: Vec<T> = random.values(rows * columns);
        let exact: Vec<f64> = wide(&x).into_iter().map(f64::from).collect();
        let int16 = wide(&x).chunks(columns).flat_map(rounded).collect();
        for level in Level::available() {
            for (arithmetic, packed64) in [(Arithmetic::Float, &exact), (Arithmetic::Integer, &int16)] {
                let what = format!("{level:?} {arithmetic:?} {scheme:?} M {rows} N {width} K {columns}");
                let mut out = vec![T::default(); rows * width];
                run_at(level, &call(&x, &[table.linear()], arithmetic), &mut [&mut out]).unwrap();
                check_product(&out, &exact, &table.values, columns, &what);
                let packed = table.packed(level);
                out.fill(T::default());
                let panels = [table.in_panels(level, &packed)];
                run_at(level, &call(&x, &panels, arithmetic), &mut [&mut out]).unwrap();
                check_product(&out, packed64, &table.values, columns, &format!("{what} in panels"));
            }
        }
    }
}

/// Row counts around the tiles of rows and the border of streaming; widths around panels and tiles.
const SIZES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 37, 5),
    (2, 32, 18),
    (3, 5, 2),
    (4, 70, 3),
    (5, 33, 17),
    (8, 32, 1),
    (9, 65, 7),
    (15, 64, 19),
];

#[test]
fn quantized_products_match_float64_for_every_width_and_group() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            quantized_product::<f32, f32>((bits, group), SIZES);
        }
    }
}

#[test]
fn quantized_products_match_float64_for_every_type() {
    for bits in [4, 5] {
        quantized_product::<f16, f16>((bits, 32), SIZES);
        quantized_product::<bf16, bf16>((bits, 64), SIZES);
        quantized_product::<f32, f16>((bits, 32), SIZES);
        quantized_product::<f16, f32>((bits, 64), SIZES);
    }
}

#[test]
fn panels_of_another_size_are_refused() {
    let table = Table::<f32>::new(&mut Random(3), (4, 32), 1, 40, 64);
    let packed = table.packed(Level::Portable);
    let (words, [scales, biases]) = (&packed.0, &packed.1);
    let new = |words, rows, columns| {
        let (scales, biases) = (Floats::F32(scales), Some(Floats::F32(biases)));
        Panels::new(Level::Portable, words, scales, biases, table.scheme, rows, columns)
    };
    assert!(new(words, 40, 64).is_ok());
    let error = new(&words[1..], 40, 64).unwrap_err().to_string();
    assert!(error.contains("1 of 40 x 64 in panels of 4 but has 319 values"), "{error}");
    assert!(new(words, 41, 64).is_err() && new(words, 40, 96).is_err());
}

#[test]
fn extreme_numbers_do_not_saturate() {
    // All weights 255 and all activations at the ends: the largest integer sums there are.
    for (bits, largest) in [(8, 255.0), (6, 63.0), (5, 31.0), (4, 15.0), (3, 7.0)] {
        let (columns, width) = (96, 33);
        let scheme = QuantScheme::affine(bits, 32).unwrap();
        let packed = vec![u32::MAX; width * scheme.packed_columns(columns).unwrap()];
        let (scales, biases) = (vec![1_f32; width * 3], vec![0_f32; width * 3]);
        let matrix =
            Quantized::new(&packed, Floats::F32(&scales), Floats::F32(&biases), scheme, width, columns)
                .unwrap();
        for rows in [1, 12] {
            for sign in [1.0, -1.0] {
                let x = vec![sign * 127_f32; rows * columns];
                for level in Level::available() {
                    let mut words = vec![0; sizes(scheme, width, columns, level.lanes())[0]];
                    let factors = sizes(scheme, width, columns, level.lanes())[1];
                    let mut to = [vec![0_f32; factors], vec![0_f32; factors]];
                    let [to_scales, to_biases] = &mut to;
                    pack(matrix, [&scales, &biases], level.lanes(), &mut words, [to_scales, to_biases]);
                    let (packed_scales, packed_biases) = (Floats::F32(&to[0]), Some(Floats::F32(&to[1])));
                    let panels =
                        Panels::new(level, &words, packed_scales, packed_biases, scheme, width, columns);
                    let linear = Linear { matrix: Matrix::Panels(panels.unwrap()), bias: None };
                    let mut out = vec![0_f32; rows * width];
                    run_at(level, &call(&x, &[linear], Arithmetic::Integer), &mut [&mut out]).unwrap();
                    let expected = sign * 127.0 * largest * columns as f32;
                    // A step is not a whole number, so sums are rounded.
                    let slack = 1e-6 * expected.abs();
                    assert!(out.iter().all(|&y| (y - expected).abs() <= slack), "{level:?} {bits} {out:?}");
                }
            }
        }
    }
}

fn plain_product<T: Lane, E: Lane>() {
    let mut random = Random(99);
    for (rows, width, columns) in
        [(1, 1, 1), (1, 37, 100), (2, 4, 16), (3, 66, 33), (4, 32, 7), (6, 35, 250), (21, 64, 48)]
    {
        let weights: Vec<E> = random.values(width * columns);
        let x: Vec<T> = random.values(rows * columns);
        let to64 = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
        let plain = Plain::new(E::floats(&weights), width, columns).unwrap();
        let linear = Linear { matrix: Matrix::Plain(plain), bias: None };
        for level in Level::available() {
            let mut out = vec![T::default(); rows * width];
            run_at(level, &call(&x, &[linear], Arithmetic::Integer), &mut [&mut out]).unwrap();
            let what = format!("{level:?} M {rows} N {width} K {columns}");
            check_product(&out, &to64(wide(&x)), &to64(wide(&weights)), columns, &what);
        }
    }
}

#[test]
fn plain_products_match_float64_for_every_type() {
    plain_product::<f32, f32>();
    plain_product::<f16, f16>();
    plain_product::<bf16, bf16>();
    plain_product::<f32, bf16>();
    plain_product::<bf16, f32>();
}

#[test]
fn many_rows_are_cut_and_put_back_in_order() {
    quantized_product::<f32, f16>((4, 32), &[(1100, 33, 2)]);
}

#[test]
fn norm_bias_and_residual_are_applied() {
    let mut random = Random(5);
    let (columns, width) = (96, 40);
    let table = Table::<f16>::new(&mut random, (4, 32), 1, width, columns);
    let (weight, bias): (Vec<f16>, Vec<bf16>) = (random.values(columns), random.values(width));
    for rows in [1, 3, 10] {
        let (x, residual): (Vec<f32>, Vec<f32>) =
            (random.values(rows * columns), random.values(rows * width));
        let linears = [Linear { bias: Some(Floats::Bf16(&bias)), ..table.linear() }];
        let norm = Norm { weight: Some(Floats::F16(&weight)), shift: 1.0, eps: 0.01 };
        for level in Level::available() {
            let mut out = vec![0_f32; rows * width];
            let finish = Finish::Add(&residual);
            let call = Call { norm: Some(norm), finish, ..call(&x, &linears, Arithmetic::Float) };
            run_at(level, &call, &mut [&mut out]).unwrap();
            for (m, row) in x.chunks(columns).enumerate() {
                let square: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
                let factor = 1.0 / (square / columns as f64 + 0.01).sqrt();
                for n in 0..width {
                    let product: f64 = (0..columns)
                        .map(|k| {
                            let x = f64::from(row[k]) * factor * (1.0 + f64::from(weight[k].to_f32()));
                            x * table.values[n * columns + k]
                        })
                        .sum();
                    let exact = product + f64::from(bias[n].to_f32()) + f64::from(residual[m * width + n]);
                    let got = f64::from(out[m * width + n]);
                    assert!((got - exact).abs() < 2e-5, "{level:?} row {m} column {n}: {got} for {exact}");
                }
            }
        }
    }
}

#[test]
fn a_gated_pair_gives_the_activated_product() {
    let mut random = Random(11);
    let (columns, width) = (64, 45);
    let gate = Table::<f32>::new(&mut random, (4, 64), 1, width, columns);
    let up = Table::<f32>::new(&mut random, (4, 64), 1, width, columns);
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gelu_tanh = |x: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
        x / 2.0 * (1.0 + inner.tanh())
    };
    for rows in [1, 9] {
        let x: Vec<f32> = random.values(rows * columns);
        let x16: Vec<f64> = x.chunks(columns).flat_map(rounded).collect();
        for level in Level::available() {
            let packed = [gate.packed(level), up.packed(level)];
            let linears = [gate.in_panels(level, &packed[0]), up.in_panels(level, &packed[1])];
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let mut out = vec![0_f32; rows * width];
                let finish = Finish::Gate(activation);
                let call = Call { finish, ..call(&x, &linears, Arithmetic::Integer) };
                run_at(level, &call, &mut [&mut out]).unwrap();
                for (at, &got) in out.iter().enumerate() {
                    let (m, n) = (at / width, at % width);
                    let product = |table: &Table<f32>| -> f64 {
                        let w = &table.values[n * columns..][..columns];
                        x16[m * columns..][..columns].iter().zip(w).map(|(x, w)| x * w).sum()
                    };
                    let act = if activation == Activation::Silu {
                        silu(product(&gate))
                    } else {
                        gelu_tanh(product(&gate))
                    };
                    let exact = act * product(&up);
                    assert!(
                        (f64::from(got) - exact).abs() < 1e-4 + 1e-5 * exact.abs(),
                        "{level:?} {got} for {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn several_matrices_of_several_schemes_share_an_input() {
    let mut random = Random(17);
    let (rows, columns) = (3, 128);
    let a = Table::<f16>::new(&mut random, (4, 32), 1, 40, columns);
    let b = Table::<f16>::new(&mut random, (4, 32), 1, 17, columns);
    let c = Table::<f32>::new(&mut random, (6, 64), 1, 9, columns);
    let x: Vec<f32> = random.values(rows * columns);
    let x64: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let x16: Vec<f64> = x.chunks(columns).flat_map(rounded).collect();
    for level in Level::available() {
        let (mut ya, mut yb, mut yc) =
            (vec![0_f32; rows * 40], vec![0_f32; rows * 17], vec![0_f32; rows * 9]);
        let (packed_a, packed_c) = (a.packed(level), c.packed(level));
        let linears = [a.in_panels(level, &packed_a), b.linear(), c.in_panels(level, &packed_c)];
        run_at(level, &call(&x, &linears, Arithmetic::Integer), &mut [&mut ya, &mut yb, &mut yc]).unwrap();
        check_product(&ya, &x16, &a.values, columns, "first");
        check_product(&yb, &x64, &b.values, columns, "second");
        check_product(&yc, &x16, &c.values, columns, "third");
    }
}

#[test]
fn routes_choose_row_and_expert() {
    let mut random = Random(23);
    let (inputs, columns, width, experts) = (13, 64, 34, 5);
    let table = Table::<f16>::new(&mut random, (4, 32), experts, width, columns);
    let bias: Vec<f32> = random.values(experts * width);
    let x: Vec<f32> = random.values(inputs * columns);
    let routes: Vec<Route> = (0..61)
        .map(|i| Route {
            row: i * 7 % inputs as u32,
            expert: if i < 20 { 3 } else { random.word() % experts as u32 },
        })
        .collect();
    for level in Level::available() {
        let packed = table.packed(level);
        let matrices = [table.linear(), table.in_panels(level, &packed), table.in_panels(level, &packed)];
        let arithmetics = [Arithmetic::Float, Arithmetic::Float, Arithmetic::Integer];
        for (linear, arithmetic) in matrices.into_iter().zip(arithmetics) {
            let linears = [Linear { bias: Some(Floats::F32(&bias)), ..linear }];
            let mut out = vec![0_f32; routes.len() * width];
            let call = Call { routes: Some(&routes), ..call(&x, &linears, arithmetic) };
            run_at(level, &call, &mut [&mut out]).unwrap();
            for (route, out) in routes.iter().zip(out.chunks(width)) {
                let (row, expert) = (route.row as usize, route.expert as usize);
                let x = &x[row * columns..][..columns];
                let x: Vec<f64> = match arithmetic {
                    Arithmetic::Float => x.iter().copied().map(f64::from).collect(),
                    Arithmetic::Integer => rounded(x),
                };
                let w = &table.values[expert * width * columns..][..width * columns];
                let out: Vec<f32> = out.iter().zip(&bias[expert * width..]).map(|(y, b)| y - b).collect();
                check_product(&out, &x, w, columns, &format!("{level:?} {route:?}"));
            }
        }
    }
}

#[test]
fn infinity_and_nan_reach_the_output() {
    let mut random = Random(31);
    let (columns, width) = (96, 33);
    let table = Table::<f32>::new(&mut random, (4, 32), 1, width, columns);
    for rows in [2, 10] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x: Vec<f32> = random.values(rows * columns);
            x[columns + 40] = bad;
            for level in Level::available() {
                let packed = table.packed(level);
                let panels = [table.in_panels(level, &packed)];
                let mut out = vec![0_f32; rows * width];
                run_at(level, &call(&x, &panels, Arithmetic::Integer), &mut [&mut out]).unwrap();
                for (n, y) in out[columns.min(width)..2 * width].iter().enumerate() {
                    let expected = f64::from(bad) * table.values[n * columns + 40];
                    assert!(
                        y.is_nan() == expected.is_nan()
                            && (bad.is_nan() || y.to_bits() == (expected as f32).to_bits()),
                        "{y}"
                    );
                }
                assert!(out[..width].iter().chain(&out[2 * width..]).all(|y| y.is_finite()), "{level:?}");
            }
        }
    }
}

#[test]
fn zero_and_tiny_blocks_round_to_zero_without_nan() {
    let mut random = Random(37);
    let table = Table::<f32>::new(&mut random, (4, 32), 1, 8, 64);
    let mut x = vec![0_f32; 64];
    x[40] = 1e-40;
    for level in Level::available() {
        let packed = table.packed(level);
        let panels = [table.in_panels(level, &packed)];
        let mut out = vec![1_f32; 8];
        run_at(level, &call(&x, &panels, Arithmetic::Integer), &mut [&mut out]).unwrap();
        assert!(out.iter().all(|y| y.abs() < 1e-30), "{level:?} {out:?}");
    }
}

#[test]
fn embedding_rows_are_dequantized_exactly() {
    let mut random = Random(41);
    for bits in [2, 3, 4, 5, 6, 8] {
        let table = Table::<f16>::new(&mut random, (bits, 32), 2, 25, 96);
        let ids: Vec<u32> = (0..33).map(|i| i * 29 % 50).collect();
        for level in Level::available() {
            let lookup = |rows| {
                let mut out = vec![0_f32; ids.len() * 96];
                embedding::host::lookup_at(level, rows, &ids, 1.0, &mut out).unwrap();
                out
            };
            let out = lookup(embedding::host::Table::Quantized(table.view()));
            let packed = table.packed(level);
            let panels = lookup(embedding::host::Table::Panels(table.panels(level, &packed)));
            assert_eq!(panels, out, "{level:?}, {bits} bits");
            for (&id, out) in ids.iter().zip(out.chunks(96)) {
                for (got, exact) in out.iter().zip(&table.values[id as usize * 96..]) {
                    assert!(
                        (f64::from(*got) - exact).abs() <= exact.abs() * 2_f64.powi(-23),
                        "{level:?} {got} {exact}"
                    );
                }
            }
        }
        let refused = embedding::host::lookup(
            embedding::host::Table::Quantized(table.view()),
            &[50],
            1.0,
            &mut vec![0_f32; 96],
        )
        .unwrap_err();
        assert!(refused.to_string().contains("below 50"), "{refused}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let mut random = Random(43);
    let table = Table::<f32>::new(&mut random, (4, 32), 1, 8, 64);
    let other = Table::<f32>::new(&mut random, (8, 32), 1, 8, 64);
    let x = vec![0_f32; 128];
    let linears = [table.linear()];
    let run = |call: &Call<'_, f32>, length: usize| {
        run(call, &mut [&mut vec![0_f32; length]]).map_err(|e| e.to_string())
    };
    assert!(run(&call(&x, &linears, Arithmetic::Integer), 15).unwrap_err().contains("output needs 16"));
    assert!(run(&call(&x[..100], &linears, Arithmetic::Integer), 8).unwrap_err().contains("[linear] x"));
    let residual = Call { finish: Finish::Add(&x[..3]), ..call(&x, &linears, Arithmetic::Integer) };
    assert!(run(&residual, 16).unwrap_err().contains("residual"));
    let routes = [Route { row: 2, expert: 0 }];
    assert!(
        run(&Call { routes: Some(&routes), ..call(&x, &linears, Arithmetic::Integer) }, 8)
            .unwrap_err()
            .contains("route")
    );
    let packed = (table.packed(Level::best()), other.packed(Level::best()));
    let pair = [table.in_panels(Level::best(), &packed.0), other.in_panels(Level::best(), &packed.1)];
    let gated = Call { finish: Finish::Gate(Activation::Silu), ..call(&x, &pair, Arithmetic::Integer) };
    assert!(run(&gated, 16).unwrap_err().contains("two quantization schemes"));
}

#[test]
fn repeated_calls_give_the_same_bits() {
    let mut random = Random(47);
    let table = Table::<f16>::new(&mut random, (4, 32), 1, 999, 192);
    let packed = table.packed(Level::best());
    let panels = [table.in_panels(Level::best(), &packed)];
    for rows in [1, 40] {
        let x: Vec<f16> = random.values(rows * 192);
        let once = || {
            let mut out = vec![f16::ZERO; rows * 999];
            run(&call(&x, &panels, Arithmetic::Integer), &mut [&mut out]).unwrap();
            out
        };
        let first = once();
        assert!((0..20).all(|_| once() == first));
    }
}

//! Row-wise kernels, sampling and recurrences at the sizes of small models: decode (one row) and prefill.

mod ceilings;

use criterion::{
    BenchmarkGroup, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
    measurement::WallTime,
};
use half::f16;
use std::hint::black_box;
use strata_contracts::QuantScheme;
use strata_kernels::causal_conv::host as conv;
use strata_kernels::embedding::host::{Table, lookup};
use strata_kernels::gated_activation::{Activation, host::gated_activation};
use strata_kernels::gated_delta::host::{Operands, Sizes, gated_delta};
use strata_kernels::host::Level;
use strata_kernels::host::element::Floats;
use strata_kernels::host::heads::{Heads, Layout};
use strata_kernels::host::lanes::Lane;
use strata_kernels::host::rows::Rows;
use strata_kernels::quantized_matmul::Quantized;
use strata_kernels::rms_norm::{Overflow, host::rms_norm_onto};
use strata_kernels::rope::{
    Rope,
    host::{Offset, rope},
    inverse_frequencies,
};
use strata_kernels::sample::host::{argmax, top_k};

fn values<E: Lane>(n: usize) -> Vec<E> {
    (0..n).map(|i| E::from_f32((i as f32 * 0.37).sin())).collect()
}

fn bytes(group: &mut BenchmarkGroup<'_, WallTime>, bytes: usize) {
    group.throughput(Throughput::Bytes(bytes as u64));
}

fn benches(criterion: &mut Criterion) {
    let level = Level::best();
    let mut group = criterion.benchmark_group("rows");
    group.sampling_mode(SamplingMode::Flat);
    for rows in [1, 512] {
        let (x, weight): (Vec<f16>, Vec<f16>) = (values(rows * 576), values(576));
        let mut out = x.clone();
        bytes(&mut group, rows * 576 * 6);
        group.bench_function(format!("rms_norm_onto float16 {rows}x576"), |bencher| {
            let x = Rows::contiguous("bench", "x", &x, 576).unwrap();
            bencher.iter(|| {
                rms_norm_onto(level, x, black_box(x), Some(&weight), 1e-5, Overflow::Infinite, &mut out)
                    .unwrap();
            });
        });
        let gate: Vec<f16> = values(rows * 1536);
        let mut out = gate.clone();
        bytes(&mut group, rows * 1536 * 6);
        for activation in [Activation::Silu, Activation::GeluTanh] {
            group.bench_function(format!("{activation:?} float16 {rows}x1536"), |bencher| {
                let gate = Rows::contiguous("bench", "gate", &gate, 1536).unwrap();
                bencher
                    .iter(|| gated_activation(level, activation, gate, black_box(gate), &mut out).unwrap());
            });
        }
        let q: Vec<f16> = values(rows * 9 * 64);
        let mut out = q.clone();
        let settings = Rope::fixed(inverse_frequencies(1e5, 64));
        bytes(&mut group, rows * 9 * 64 * 4);
        group.bench_function(format!("rope float16 9x{rows}x64"), |bencher| {
            let q = Heads::contiguous("bench", "q", &q, [1, 9, rows, 64], Layout::PositionsFirst).unwrap();
            bencher.iter(|| rope(level, q, black_box(&settings), Offset::Same(300), &mut out).unwrap());
        });
        let sizes = Sizes {
            batch: 1,
            length: rows,
            key_heads: 16,
            value_heads: 16,
            key_width: 128,
            value_width: 128,
        };
        let (q, v): (Vec<f16>, Vec<f16>) = (values(rows * 16 * 128), values(rows * 16 * 128));
        let (g, beta, state): (Vec<f32>, Vec<f32>, Vec<f32>) =
            (vec![0.9; rows * 16], vec![0.3; rows * 16], values(16 * 128 * 128));
        let (mut y, mut last) = (v.clone(), state.clone());
        // Two products and the update of the state, each step.
        group.throughput(Throughput::Elements((rows * 16 * 128 * 128 * 7) as u64));
        group.bench_function(format!("gated_delta float16 {rows} steps, 16 heads of 128x128"), |bencher| {
            bencher.iter(|| {
                let operands = Operands {
                    q: &q,
                    k: &q,
                    v: black_box(&v),
                    g: &g,
                    beta: &beta,
                    state: &state,
                    mask: None,
                };
                gated_delta(level, sizes, operands, &mut y, &mut last).unwrap();
            });
        });
        convolution(&mut group, level, rows);
        embedding(&mut group, rows);
    }
    let logits: Vec<f16> = values(262_144);
    for vocabulary in [49_152, 262_144] {
        bytes(&mut group, vocabulary * 2);
        let rows = Rows::contiguous("bench", "logits", &logits[..vocabulary], vocabulary).unwrap();
        group.bench_function(format!("argmax float16 {vocabulary}"), |bencher| {
            bencher.iter(|| argmax(level, black_box(rows), &mut [0]).unwrap());
        });
        group.bench_function(format!("top_k 40 float16 {vocabulary}"), |bencher| {
            bencher.iter(|| top_k(level, black_box(rows), 40, &mut [f16::ZERO; 40], &mut [0; 40]).unwrap());
        });
    }
    group.finish();
}

/// Four taps over the channels that a gated delta layer of 16 heads of 128 has, with SiLU.
fn convolution(group: &mut BenchmarkGroup<'_, WallTime>, level: Level, length: usize) {
    let channels = 3 * 16 * 128;
    let (x, weight): (Vec<f16>, Vec<f16>) = (values(length * channels), values(4 * channels));
    let carried: Vec<f16> = values(3 * channels);
    let (mut y, mut last) = (x.clone(), carried.clone());
    bytes(group, (2 * length + 4 + 3 + 3) * channels * 2);
    group.bench_function(format!("causal_conv float16 {length} steps, 4x{channels}"), |bencher| {
        bencher.iter(|| {
            let operands = conv::Operands {
                x: black_box(&x),
                weight: &weight,
                carried: &carried,
                lengths: None,
                batch: 1,
                length,
                channels,
                silu: true,
            };
            conv::causal_conv(level, operands, &mut y, &mut last).unwrap();
        });
    });
}

/// Rows of a 4-bit table, far from each other.
fn embedding(group: &mut BenchmarkGroup<'_, WallTime>, count: usize) {
    let (rows, columns, size) = (49_152, 576, 32);
    let scheme = QuantScheme::affine(4, size as u32).unwrap();
    let packed: Vec<u32> = (0..(rows * columns / 8) as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let scales = vec![f16::from_f32(0.01); rows * columns / size];
    let factors = Floats::F16(&scales);
    let table = Table::Quantized(Quantized::new(&packed, factors, factors, scheme, rows, columns).unwrap());
    let ids: Vec<u32> = (0..count as u32).map(|i| (i * 7919 + 13) % rows as u32).collect();
    let mut out = vec![f16::ZERO; count * columns];
    // Packed, scales and biases, and what is written.
    bytes(group, count * (columns / 2 + columns / size * 4 + columns * 2));
    group.bench_function(format!("embedding 4 bits {count}x{columns}"), |bencher| {
        bencher.iter(|| lookup(table, black_box(&ids), 1.0, &mut out).unwrap());
    });
}

criterion_group! {
    name = group;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(300));
    targets = ceilings::ceilings, benches
}
criterion_main!(group);

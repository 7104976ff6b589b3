//! Attention: decode in bytes of keys and values a second, prefill in floating-point operations a second.

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use half::f16;
use std::hint::black_box;
use strata_kernels::attention::Span;
use strata_kernels::attention::host::{Heads, Layout, Options, attention};
use strata_kernels::host::Level;
use strata_kernels::host::lanes::Lane;

/// Query heads, key heads, width.
const MODELS: [(&str, usize, usize, usize); 3] =
    [("smollm2-135m", 9, 3, 64), ("gemma3-270m", 4, 1, 256), ("llama3-8b", 32, 8, 128)];

fn values<E: Lane>(n: usize) -> Vec<E> {
    (0..n).map(|i| E::from_f32((i as f32 * 0.37).sin())).collect()
}

fn run<E: Lane>(
    criterion: &mut Criterion,
    name: &str,
    (model, hq, hkv, d): (&str, usize, usize, usize),
    l: usize,
    s: usize,
) {
    let q: Vec<E> = values(hq * l * d);
    let k: Vec<E> = values(hkv * s * d);
    let v: Vec<E> = values(hkv * s * d);
    let mut out = vec![E::default(); hq * l * d];
    let q = Heads::contiguous("bench", "q", &q, [1, hq, l, d], Layout::PositionsFirst).unwrap();
    let k = Heads::contiguous("bench", "k", &k, [1, hkv, s, d], Layout::HeadsFirst).unwrap();
    let v = Heads::contiguous("bench", "v", &v, [1, hkv, s, d], Layout::HeadsFirst).unwrap();
    let options = Options::new(0.1, Span::Causal);
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat);
    group.throughput(if l == 1 {
        Throughput::Bytes((2 * hkv * s * d * size_of::<E>()) as u64)
    } else {
        // Two products over the visible half of the scores.
        Throughput::Elements((4 * hq * d * l * (s - l / 2)) as u64)
    });
    let id = BenchmarkId::new(format!("{model} {}", E::DTYPE), format!("{l}x{s}"));
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            attention(Level::best(), q, k, v, black_box(&options), Layout::PositionsFirst, &mut out).unwrap();
        });
    });
    group.finish();
}

fn benches(criterion: &mut Criterion) {
    for model in MODELS {
        for s in [128, 512, 2048] {
            run::<f16>(criterion, "decode", model, 1, s);
        }
        run::<f32>(criterion, "decode", model, 1, 2048);
        for s in [36, 512] {
            run::<f16>(criterion, "prefill", model, s, s);
        }
        run::<f32>(criterion, "prefill", model, 512, 512);
    }
}

criterion_group! {
    name = group;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(500));
    targets = benches
}
criterion_main!(group);

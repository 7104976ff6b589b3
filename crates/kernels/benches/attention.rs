//! Attention over dense and quantized keys and values: decode in bytes of them a second, prefill in floating-point
//! operations a second.

mod ceilings;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use half::f16;
use std::hint::black_box;
use strata_kernels::attention::Span;
use strata_kernels::attention::host::{Heads, Layout, Options, attention};
use strata_kernels::host::Level;
use strata_kernels::host::lanes::Lane;
use strata_kernels::paged_attention;
use strata_kernels::paged_attention::host::{Pages, Tables, paged_attention as paged};
use strata_kernels::quantized_attention::host::{Quantized, quantized_attention};

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
    let bytes = 2 * hkv * s * d * size_of::<E>();
    let id = BenchmarkId::new(format!("{model} {}", E::DTYPE), format!("{l}x{s}"));
    measure(criterion, name, id, work(hq, d, l, s, bytes), || {
        attention(Level::best(), q, k, v, black_box(&options), Layout::PositionsFirst, &mut out).unwrap();
    });
}

/// Keys and values of `bits` in groups of 64, with float16 scales.
fn run_quantized(
    criterion: &mut Criterion,
    name: &str,
    (model, hq, hkv, d): (&str, usize, usize, usize),
    l: usize,
    s: usize,
    bits: u32,
) {
    let q: Vec<f16> = values(hq * l * d);
    let (width, groups) = (d * bits as usize / 32, d / 64);
    let words: Vec<u32> = (0..(hkv * s * width) as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let scales: Vec<f16> = vec![f16::from_f32(0.01); hkv * s * groups];
    let strides = [width, groups, groups].map(|row| [hkv * s * row, s * row, row]);
    let k = Quantized::new((&words, &scales, &scales), [1, hkv, s, d], strides, bits, 64).unwrap();
    let mut out = vec![f16::ZERO; hq * l * d];
    let q = Heads::contiguous("bench", "q", &q, [1, hq, l, d], Layout::PositionsFirst).unwrap();
    let options = Options::new(0.1, Span::Causal);
    let bytes = 2 * (4 * words.len() + 4 * scales.len());
    let id = BenchmarkId::new(format!("{model} {bits} bits"), format!("{l}x{s}"));
    measure(criterion, name, id, work(hq, d, l, s, bytes), || {
        let options = black_box(&options);
        quantized_attention(Level::best(), q, k, k, options, Layout::PositionsFirst, &mut out).unwrap();
    });
}

/// As [`run`], over pages of `page` positions that lie in no order in a pool of twice as many.
fn run_paged<E: Lane>(
    criterion: &mut Criterion,
    name: &str,
    (model, hq, hkv, d): (&str, usize, usize, usize),
    l: usize,
    s: usize,
    page: usize,
) {
    let columns = s.div_ceil(page);
    let pool = 2 * columns;
    let q: Vec<E> = values(hq * l * d);
    let k: Vec<E> = values(pool * hkv * page * d);
    let v: Vec<E> = values(pool * hkv * page * d);
    // No page twice: 7 does not divide the pool, whose size is a power of two.
    let ids: Vec<i32> = (0..columns).map(|i| ((7 * i + 3) % pool) as i32).collect();
    let mut out = vec![E::default(); hq * l * d];
    let q = Heads::contiguous("bench", "q", &q, [1, hq, l, d], Layout::PositionsFirst).unwrap();
    let k = Heads::contiguous("bench", "k", &k, [pool, hkv, page, d], Layout::HeadsFirst).unwrap();
    let v = Heads::contiguous("bench", "v", &v, [pool, hkv, page, d], Layout::HeadsFirst).unwrap();
    let (lengths, offsets) = ([s as i32], [(s - l) as i32]);
    let tables = Tables { tables: &ids, lengths: &lengths, offsets: &offsets };
    let options = paged_attention::Options { scale: 0.1, softcap: None };
    let bytes = 2 * hkv * s * d * size_of::<E>();
    let id = BenchmarkId::new(format!("{model} {} pages of {page}", E::DTYPE), format!("{l}x{s}"));
    measure(criterion, name, id, work(hq, d, l, s, bytes), || {
        let (pages, options) = (Pages::Dense(k, v), black_box(options));
        paged(Level::best(), q, pages, tables, options, Layout::PositionsFirst, &mut out).unwrap();
    });
}

/// What limits attention of `l` queries to `s` positions: the bytes of keys and values for one query, else two products
/// over the visible half of the scores.
fn work(heads: usize, d: usize, l: usize, s: usize, bytes: usize) -> Throughput {
    if l == 1 {
        Throughput::Bytes(bytes as u64)
    } else {
        Throughput::Elements((4 * heads * d * l * (s - l / 2)) as u64)
    }
}

fn measure(criterion: &mut Criterion, name: &str, id: BenchmarkId, work: Throughput, mut body: impl FnMut()) {
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat);
    group.throughput(work);
    group.bench_function(id, |bencher| bencher.iter(&mut body));
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
        for page in [16, 64] {
            for s in [512, 2048] {
                run_paged::<f16>(criterion, "decode", model, 1, s, page);
            }
            run_paged::<f16>(criterion, "prefill", model, 512, 512, page);
        }
        for bits in [4, 8] {
            run_quantized(criterion, "quantized_decode", model, 1, 2048, bits);
            run_quantized(criterion, "quantized_prefill", model, 512, 512, bits);
        }
    }
}

criterion_group! {
    name = group;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(500));
    targets = ceilings::ceilings, benches
}
criterion_main!(group);

//! What this machine can do at most with all threads. Every bench prints it first: its own bytes and operations a second
//! are to be read beside these.

#![allow(
    clippy::inline_always,
    reason = "a body must end up inside the function that has its instructions enabled"
)]

use criterion::{Criterion, Throughput};
use std::hint::black_box;
use strata_kernels::host::lanes::{Body, Bytes, Lane, MAX_LANES, dispatch};
use strata_kernels::host::{Level, pool};

/// Independent sums: enough to hide the latency of a multiplication, few enough to stay in registers.
const SUMS: usize = 12;
/// Vector operations on each sum, in each piece of work.
const ROUNDS: usize = 20_000;

/// Bandwidth of reading 80 MB again and again, float32 multiplications and additions, and those of bytes.
pub(crate) fn ceilings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ceiling");
    let words: Vec<u64> = (0..10_000_000).collect();
    group.throughput(Throughput::Bytes(words.len() as u64 * 8));
    group.bench_function("read_80MB", |bencher| {
        bencher.iter(|| {
            pool::parallel_for(64, |part| {
                let part = pool::part(words.len(), 64, 1024, part);
                black_box(words[part].iter().fold(0, |sum, x| sum ^ x));
            });
        });
    });
    let level = Level::best();
    let pieces = 2 * pool::threads();
    // Each operation multiplies and adds.
    let operations = (2 * pieces * ROUNDS * SUMS * level.lanes()) as u64;
    group.throughput(Throughput::Elements(operations));
    group.bench_function("float32_fma", |bencher| {
        bencher.iter(|| everywhere(pieces, || dispatch(level, Floats(black_box(0.5)))));
    });
    group.throughput(Throughput::Elements(4 * operations));
    group.bench_function("int8_dot", |bencher| {
        bencher.iter(|| everywhere(pieces, || dispatch(level, Dots(black_box(0.5)))));
    });
    group.finish();
}

fn everywhere(pieces: usize, work: impl Fn() -> [f32; MAX_LANES] + Sync) {
    pool::parallel_for(pieces, |_| {
        black_box(work());
    });
}

/// Fused multiplications and additions of float32.
struct Floats(f32);

impl Body for Floats {
    type Out = [f32; MAX_LANES];

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) -> Self::Out {
        let factor = s.splat(self.0);
        let mut sums = [factor; SUMS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = s.fma(*sum, factor, factor);
            }
        }
        out(s, sums.into_iter())
    }
}

/// Products of bytes, added up by fours in 32 bits.
struct Dots(f32);

impl Body for Dots {
    type Out = [f32; MAX_LANES];

    #[inline(always)]
    fn run<S: Bytes>(self, s: S) -> Self::Out {
        let bytes = s.as_bytes(s.splat(self.0));
        let mut sums = [bytes; SUMS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = s.dot::<true>(*sum, bytes, bytes);
            }
        }
        out(s, sums.into_iter().map(|sum| s.to_floats(sum)))
    }
}

/// All sums in one vector, so that none is left out.
#[inline(always)]
fn out<S: Bytes>(s: S, sums: impl Iterator<Item = S::V>) -> [f32; MAX_LANES] {
    let mut out = [0.0; MAX_LANES];
    let sum = sums.fold(s.splat(0.0), |sum, x| s.add(sum, x));
    f32::put(s, &mut out[..S::LANES], 0, sum);
    out
}

//! Linear layers at the sizes of SmolLM2-135M, next to what the machine can do.
//!
//! Matrices are packed, as models have them. Bandwidth counts numbers, scales and biases once a call; operations count two for each
//! weight and row.

mod ceilings;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use strata_contracts::QuantScheme;
use strata_kernels::host::Level;
use strata_kernels::host::element::Floats;
use strata_kernels::linear::host::{self, Call, Finish, Linear, Matrix, Norm};
use strata_kernels::linear::{Activation, Arithmetic, Packed};
use strata_kernels::matmul::Plain;
use strata_kernels::quantized_matmul::panels::Panels;
use strata_tensor::{Array, ops};

const HIDDEN: usize = 576;
const INNER: usize = 1536;
const KEYS: usize = 192;
const LAYERS: usize = 30;
const VOCABULARY: usize = 49152;

struct Weights {
    words: Vec<u32>,
    scales: Vec<f16>,
    biases: Vec<f16>,
    scheme: QuantScheme,
    rows: usize,
    columns: usize,
}

impl Weights {
    fn new(bits: u32, group: u32, rows: usize, columns: usize) -> Self {
        let scheme = QuantScheme::affine(bits, group).unwrap();
        let words = rows * scheme.packed_columns(columns).unwrap();
        let numbers: Vec<u32> = (0..words as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        // Mean 0, so that a chain of layers stays finite: rows with infinities take another path.
        let (scale, groups) = (0.1 / (1 << bits) as f32, rows * columns / group as usize);
        let factors = |value: f32| {
            let values = vec![f16::from_f32(value); groups];
            Array::from_slice(&values, [rows as i32, (groups / rows) as i32]).unwrap()
        };
        let weight = Array::from_slice(&numbers, [rows as i32, (words / rows) as i32]).unwrap();
        let biases = Some(factors(-scale * ((1 << bits) - 1) as f32 / 2.0));
        let packed = Packed::new(&ops::Quantized { weight, scales: factors(scale), biases, scheme }).unwrap();
        let values = |x: &Array| x.to_vec::<f16>().unwrap();
        let (scales, biases) = (values(&packed.scales), values(packed.biases.as_ref().unwrap()));
        Self { words: packed.words.to_vec().unwrap(), scales, biases, scheme, rows, columns }
    }

    fn linear(&self) -> Linear<'_> {
        let (scales, biases) = (Floats::F16(&self.scales), Floats::F16(&self.biases));
        let (scheme, rows, columns) = (self.scheme, self.rows, self.columns);
        let panels = Panels::new(Level::best(), &self.words, scales, Some(biases), scheme, rows, columns);
        Linear { matrix: Matrix::Panels(panels.unwrap()), bias: None }
    }

    fn bytes(&self) -> u64 {
        (self.words.len() * 4 + self.scales.len() * 4) as u64
    }
}

fn call<'a, T>(x: &'a [T], linears: &'a [Linear<'a>], arithmetic: Arithmetic) -> Call<'a, T> {
    Call { x, norm: None, linears, finish: Finish::Store, routes: None, arithmetic }
}

struct Layer {
    q: Weights,
    k: Weights,
    v: Weights,
    o: Weights,
    gate: Weights,
    up: Weights,
    down: Weights,
    norm: Vec<f16>,
}

impl Layer {
    fn new(bits: u32) -> Self {
        let new = |rows, columns| Weights::new(bits, 32, rows, columns);
        Self {
            q: new(HIDDEN, HIDDEN),
            k: new(KEYS, HIDDEN),
            v: new(KEYS, HIDDEN),
            o: new(HIDDEN, HIDDEN),
            gate: new(INNER, HIDDEN),
            up: new(INNER, HIDDEN),
            down: new(HIDDEN, INNER),
            norm: vec![f16::ONE; HIDDEN],
        }
    }

    fn bytes(&self) -> u64 {
        [&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down].iter().map(|w| w.bytes()).sum()
    }
}

/// Buffers of one forward pass of `rows` tokens.
struct Buffers {
    hidden: Vec<f16>,
    q: Vec<f16>,
    k: Vec<f16>,
    v: Vec<f16>,
    inner: Vec<f16>,
    out: Vec<f16>,
}

impl Buffers {
    fn new(rows: usize) -> Self {
        let zeros = |width: usize| vec![f16::from_f32(0.5); rows * width];
        Self {
            hidden: (0..rows * HIDDEN).map(|i| f16::from_f32((i as f32).sin())).collect(),
            q: zeros(HIDDEN),
            k: zeros(KEYS),
            v: zeros(KEYS),
            inner: zeros(INNER),
            out: zeros(HIDDEN),
        }
    }

    /// The four linear nodes of a llama layer.
    fn layer(&mut self, layer: &Layer, arithmetic: Arithmetic) {
        let norm = Some(Norm { weight: Some(Floats::F16(&layer.norm)), shift: 0.0, eps: 1e-5 });
        let linears = [layer.q.linear(), layer.k.linear(), layer.v.linear()];
        let qkv = Call { norm, ..call(&self.hidden, &linears, arithmetic) };
        host::run(&qkv, &mut [&mut self.q, &mut self.k, &mut self.v]).unwrap();
        let linears = [layer.o.linear()];
        let o = Call { finish: Finish::Add(&self.hidden), ..call(&self.q, &linears, arithmetic) };
        host::run(&o, &mut [&mut self.out]).unwrap();
        let linears = [layer.gate.linear(), layer.up.linear()];
        let finish = Finish::Gate(Activation::Silu);
        let gate = Call { norm, finish, ..call(&self.out, &linears, arithmetic) };
        host::run(&gate, &mut [&mut self.inner]).unwrap();
        let linears = [layer.down.linear()];
        let down = Call { finish: Finish::Add(&self.hidden), ..call(&self.inner, &linears, arithmetic) };
        host::run(&down, &mut [&mut self.out]).unwrap();
    }
}

/// All linear work of a token: 30 layers and the head, from memory.
fn token(c: &mut Criterion) {
    let layers: Vec<Layer> = (0..LAYERS).map(|_| Layer::new(4)).collect();
    let head = Weights::new(4, 32, VOCABULARY, HIDDEN);
    let bytes = layers.iter().map(Layer::bytes).sum::<u64>() + head.bytes();
    let mut group = c.benchmark_group("token_4bit");
    group.throughput(Throughput::Bytes(bytes));
    for (name, arithmetic) in [("integer", Arithmetic::Integer), ("float", Arithmetic::Float)] {
        for rows in [1, 2, 4, 8] {
            let mut buffers = Buffers::new(rows);
            let mut logits = vec![f16::ZERO; rows * VOCABULARY];
            group.bench_function(BenchmarkId::new(name, rows), |b| {
                b.iter(|| {
                    for layer in &layers {
                        buffers.layer(layer, arithmetic);
                    }
                    host::run(&call(&buffers.out, &[head.linear()], arithmetic), &mut [&mut logits]).unwrap();
                });
            });
        }
    }
    group.finish();
}

/// The linear work of one layer for a prompt.
fn prompt(c: &mut Criterion) {
    let layer = Layer::new(4);
    let weights = (2 * HIDDEN * HIDDEN + 2 * KEYS * HIDDEN + 3 * HIDDEN * INNER) as u64;
    let mut group = c.benchmark_group("prompt_layer_4bit");
    for (name, arithmetic) in [("integer", Arithmetic::Integer), ("float", Arithmetic::Float)] {
        for rows in [16, 64, 512] {
            let mut buffers = Buffers::new(rows);
            group.throughput(Throughput::Elements(2 * weights * rows as u64));
            group.bench_function(BenchmarkId::new(name, rows), |b| {
                b.iter(|| buffers.layer(&layer, arithmetic));
            });
        }
    }
    group.finish();
}

/// One matrix of each width of numbers, 40 MB of it, one row.
fn widths(c: &mut Criterion) {
    let mut group = c.benchmark_group("matvec");
    for bits in [2, 3, 4, 5, 6, 8] {
        for size in [32, 64] {
            let weights = Weights::new(bits, size, 160_000 * 4 / bits as usize, HIDDEN);
            let x = vec![f16::from_f32(0.3); HIDDEN];
            let mut out = vec![f16::ZERO; weights.rows];
            group.throughput(Throughput::Bytes(weights.bytes()));
            for (name, arithmetic) in [("integer", Arithmetic::Integer), ("float", Arithmetic::Float)] {
                group.bench_function(BenchmarkId::new(name, format!("{bits}bit_{size}")), |b| {
                    b.iter(|| {
                        host::run(&call(&x, &[weights.linear()], arithmetic), &mut [&mut out]).unwrap();
                    });
                });
            }
        }
    }
    group.finish();
}

/// Plain weights: a matvec from memory, and a prompt.
fn plain(c: &mut Criterion) {
    let wide: Vec<f32> = (0..INNER * HIDDEN * 16).map(|i| (i as f32).sin()).collect();
    let brain: Vec<bf16> = wide.iter().map(|&x| bf16::from_f32(x)).collect();
    let half: Vec<f16> = wide.iter().map(|&x| f16::from_f32(x)).collect();
    let mut group = c.benchmark_group("plain");
    for (name, values, size) in
        [("f32", Floats::F32(&wide), 4), ("bf16", Floats::Bf16(&brain), 2), ("f16", Floats::F16(&half), 2)]
    {
        for rows in [1, 4, 512] {
            let width = if rows == 512 { INNER } else { INNER * 16 };
            let matrix = Plain::new(values.slice(0..width * HIDDEN), width, HIDDEN).unwrap();
            let linears = [Linear { matrix: Matrix::Plain(matrix), bias: None }];
            let x = vec![bf16::from_f32(0.3); rows * HIDDEN];
            let mut out = vec![bf16::ZERO; rows * width];
            let work = (width * HIDDEN) as u64;
            group.throughput(if rows == 512 {
                Throughput::Elements(2 * work * rows as u64)
            } else {
                Throughput::Bytes(work * size)
            });
            group.bench_function(BenchmarkId::new(name, rows), |b| {
                b.iter(|| host::run(&call(&x, &linears, Arithmetic::Float), &mut [&mut out]).unwrap());
            });
        }
    }
    group.finish();
}

criterion_group!(
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(2));
    targets = ceilings::ceilings, token, prompt, widths, plain
);
criterion_main!(benches);

//! What the layers of the model are given for each token, and what they must make of it: plain computations in f64.

use super::leaky::{Leaky, TAIL};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind};
use strata_state::{AttentionRead, LayerState, Phase, Recurrence, State};
use strata_tensor::{Array, ops};

pub(crate) const HEADS: usize = 4;
const SCALE: f32 = 0.4;

/// What is made of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Key = 0,
    Value = 1,
    Query = 2,
    RopeQuery = 3,
}

/// Widths of a layer's parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) kv_heads: usize,
    pub(crate) key: usize,
    pub(crate) value: usize,
    pub(crate) window: usize,
}

pub(crate) fn shape(kind: LayerKind) -> Shape {
    let of = |kv_heads: u32, key: u32, value: u32, window: usize| Shape {
        kv_heads: kv_heads as usize,
        key: key as usize,
        value: value as usize,
        window,
    };
    match kind {
        LayerKind::Full { kv_heads, head_dim } => of(kv_heads, head_dim, head_dim, usize::MAX),
        LayerKind::Sliding { kv_heads, head_dim, window } => {
            of(kv_heads, head_dim, head_dim, window as usize)
        }
        LayerKind::Latent { rank, rope_dim } => of(1, rank, rope_dim, usize::MAX),
        LayerKind::Recurrent { channels, .. } => of(1, channels, channels, usize::MAX),
        other @ LayerKind::Shared { .. } => panic!("the model has no {other:?}"),
    }
}

/// Values of one part of a token at one layer, heads after each other.
fn values_of(token: u64, layer: usize, part: Part, count: usize) -> Vec<f32> {
    let mut seed =
        token.wrapping_mul(31).wrapping_add(layer as u64).wrapping_mul(7).wrapping_add(part as u64);
    let mut draw = || {
        // splitmix64
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| draw()).collect()
}

/// `[B, heads, L, D]` of each row's tokens.
pub(crate) fn array(rows: &[&[u64]], layer: usize, part: Part, heads: usize, dim: usize) -> Array {
    let length = rows[0].len();
    let mut data = vec![0.0; rows.len() * heads * length * dim];
    for (b, tokens) in rows.iter().enumerate() {
        for (t, &token) in tokens.iter().enumerate() {
            for (h, head) in values_of(token, layer, part, heads * dim).chunks(dim).enumerate() {
                let at = ((b * heads + h) * length + t) * dim;
                data[at..at + dim].copy_from_slice(head);
            }
        }
    }
    Array::from_slice(&data, [rows.len() as i32, heads as i32, length as i32, dim as i32]).expect("an array")
}

/// A forward pass of each row's tokens: every layer appends and attends. Outputs are `[B, heads, L, D]`.
pub(crate) fn run(state: &mut State, layers: &[LayerKind], rows: &[Vec<u64>], known: bool) -> Vec<Array> {
    let rows: Vec<&[u64]> = rows.iter().map(Vec::as_slice).collect();
    let count = rows[0].len();
    let phase = match (count, known) {
        (_, true) => Phase::Committed,
        (1, false) => Phase::Decode,
        _ => Phase::Window,
    };
    let outs = layers.iter().enumerate().map(|(index, &kind)| {
        let Shape { kv_heads, key, value, .. } = shape(kind);
        let part = |part, heads, dim| array(&rows, index, part, heads, dim);
        let keys = part(Part::Key, kv_heads, key);
        let layer = state.layer(index);
        if let LayerKind::Recurrent { .. } = kind {
            let recurrence: Rc<dyn Recurrence> = Rc::new(Leaky);
            let inputs = keys.squeeze(&[1]).expect("inputs"); // [B, L, C]
            let out = layer.recur(&[inputs], &recurrence, phase).expect("runs");
            return out.expand_dims(&[1]).expect("heads");
        }
        let read = append(layer, &keys, &part(Part::Value, kv_heads, value), phase);
        let queries = part(Part::Query, HEADS, key);
        match kind {
            LayerKind::Latent { .. } => {
                let rope = part(Part::RopeQuery, HEADS, value);
                read.attend_latent(&queries, &rope, SCALE).expect("attends")
            }
            _ => read.attend(&queries, SCALE).expect("attends"),
        }
    });
    let outs = outs.collect();
    state.advance(count);
    outs
}

fn append(layer: &mut LayerState, keys: &Array, values: &Array, phase: Phase) -> AttentionRead {
    layer.append(keys, values, phase).expect("appends")
}

/// Keys and values as a number format keeps them.
#[derive(Clone)]
pub(crate) struct Rounding {
    format: KvFormat,
    /// Norms are sums, which kernels and MLX's operations add up in different orders.
    kernels: KernelSet,
    /// Tokens at layers, as states that hold nothing else: what rounding to a codebook makes of them.
    alone: Rc<RefCell<HashMap<(u64, usize), Alone>>>,
}

struct Alone {
    parts: Vec<Array>,
    /// Keys and values.
    rounded: [Vec<f32>; 2],
}

impl Rounding {
    pub(crate) fn new(format: KvFormat, kernels: KernelSet) -> Self {
        Self { format, kernels, alone: Rc::default() }
    }

    /// One part of tokens, rounded: `[H, T, D]`.
    fn of(&self, tokens: &[u64], layer: usize, kind: LayerKind, part: Part) -> Vec<f32> {
        let Shape { kv_heads, key, value, .. } = shape(kind);
        let dim = if part == Part::Key { key } else { value };
        if let KvFormat::Turbo { .. } = self.format {
            let mut out = vec![0.0; kv_heads * tokens.len() * dim];
            for (t, &token) in tokens.iter().enumerate() {
                self.alone(token, layer, kind, |alone| {
                    for (head, row) in alone.rounded[part as usize].chunks(dim).enumerate() {
                        out[(head * tokens.len() + t) * dim..][..dim].copy_from_slice(row);
                    }
                });
            }
            return out;
        }
        let dense = array(&[tokens], layer, part, kv_heads, dim);
        let rounded = match self.format {
            KvFormat::Affine(scheme) => {
                let quantized = ops::quantize(&dense, scheme).expect("quantizes");
                ops::dequantize(&quantized, None).expect("dequantizes")
            }
            _ => dense,
        };
        rounded.to_vec().expect("values")
    }

    /// What is stored of tokens, bit for bit.
    pub(crate) fn parts(&self, tokens: &[u64], layer: usize, kind: LayerKind) -> Vec<Array> {
        let Shape { kv_heads, key, value, .. } = shape(kind);
        if let KvFormat::Turbo { .. } = self.format {
            let mut parts: Vec<Vec<Array>> = vec![Vec::new(); 4];
            for &token in tokens {
                self.alone(token, layer, kind, |alone| {
                    parts.iter_mut().zip(&alone.parts).for_each(|(all, part)| all.push(part.clone()));
                });
            }
            let joined =
                |all: &Vec<Array>| ops::concatenate(&all.iter().collect::<Vec<_>>(), 2).expect("joins");
            return parts.iter().map(joined).collect();
        }
        let dense = [(Part::Key, key), (Part::Value, value)]
            .map(|(part, dim)| array(&[tokens], layer, part, kv_heads, dim));
        let KvFormat::Affine(scheme) = self.format else { return dense.to_vec() };
        let quantized = dense.map(|dense| ops::quantize(&dense, scheme).expect("quantizes"));
        quantized.into_iter().flat_map(|q| [q.weight, q.scales].into_iter().chain(q.biases)).collect()
    }

    fn alone(&self, token: u64, layer: usize, kind: LayerKind, mut with: impl FnMut(&Alone)) {
        let mut known = self.alone.borrow_mut();
        with(known.entry((token, layer)).or_insert_with(|| {
            let Shape { kv_heads, key, value, .. } = shape(kind);
            let dense = |part, dim| array(&[&[token]], layer, part, kv_heads, dim);
            let kv = KvScheme { format: self.format.clone(), ..KvScheme::default() };
            let composition = Composition { kernels: self.kernels, kv, ..Composition::default() };
            let mut state = State::compose(&[kind], &composition).expect("composes");
            append(state.layer(0), &dense(Part::Key, key), &dense(Part::Value, value), Phase::Decode);
            state.advance(1);
            // It is converted where the next pass would begin.
            state.begin().expect("begins").accept();
            let (keys, values) = state.layer(0).live().expect("live").expect("a position");
            let parts = state.layer(0).live_parts().expect("parts").into_iter().map(|(_, part)| part);
            Alone { parts: parts.collect(), rounded: [keys, values].map(|a| a.to_vec().expect("values")) }
        }));
    }
}

/// What the newest of `seen` gets at a layer: `[Hq, D]`, or `[C]` of a recurrent one.
pub(crate) fn expected(seen: &[u64], layer: usize, kind: LayerKind, rounding: &Rounding) -> Vec<f64> {
    let Shape { kv_heads, key, value, .. } = shape(kind);
    if let LayerKind::Recurrent { .. } = kind {
        return leaky(seen, layer, key);
    }
    let newest = seen[seen.len() - 1];
    let query = values_of(newest, layer, Part::Query, HEADS * key);
    let rope_query = values_of(newest, layer, Part::RopeQuery, HEADS * value);
    let keys = rounding.of(seen, layer, kind, Part::Key);
    let values = rounding.of(seen, layer, kind, Part::Value);
    let latent = matches!(kind, LayerKind::Latent { .. });
    let mut out = Vec::new();
    for head in 0..HEADS {
        let base = head / (HEADS / kv_heads) * seen.len();
        let dot = |query: &[f32], of: &[f32], t: usize, dim: usize| -> f64 {
            let row = &of[(base + t) * dim..][..dim];
            let terms = query[head * dim..][..dim].iter().zip(row);
            terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let scores: Vec<f64> = (0..seen.len())
            .map(|t| {
                let rope = if latent { dot(&rope_query, &values, t, value) } else { 0.0 };
                (dot(&query, &keys, t, key) + rope) * f64::from(SCALE)
            })
            .collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let (of, dim) = if latent { (&keys, key) } else { (&values, value) };
        let mixed =
            |d: usize| (0..seen.len()).map(|t| weights[t] * f64::from(of[(base + t) * dim + d])).sum::<f64>();
        out.extend((0..dim).map(|d| mixed(d) / total));
    }
    out
}

/// [`Leaky`] over a whole history.
fn leaky(seen: &[u64], layer: usize, channels: usize) -> Vec<f64> {
    let inputs: Vec<Vec<f32>> =
        seen.iter().map(|&token| values_of(token, layer, Part::Key, channels)).collect();
    let mut state = vec![0.0; channels];
    for t in 0..inputs.len() {
        for (c, state) in state.iter_mut().enumerate() {
            let newest = inputs[t.saturating_sub(TAIL)..=t].iter().map(|x| f64::from(x[c]));
            *state = 0.9 * *state + newest.sum::<f64>().tanh();
        }
    }
    state
}

//! The model: a batch of rows that keep every token they have seen, beside the state under test.

use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use strata_state::{Phase, Side, Snapshot, State};
use strata_tensor::{Array, ops};

const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const SCALE: f32 = 0.4;

/// A full layer and a sliding one.
pub(crate) fn layers(window: u32, head_dim: u32) -> Vec<LayerKind> {
    let kv_heads = KV_HEADS as u32;
    vec![LayerKind::Full { kv_heads, head_dim }, LayerKind::Sliding { kv_heads, head_dim, window }]
}

/// What a row has seen: a number that stands for each token, and whether it has changed its format.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    tokens: Vec<u64>,
    converted: bool,
    /// It once ended before the last of several passes that read rows together. A ring may hold one position less of it
    /// than a window from then on, since the next query sees no more.
    ended_early: bool,
}

pub(crate) struct World {
    state: State,
    pub(crate) rows: Vec<Row>,
    kernels: KernelSet,
    kv: KvScheme,
    layers: Vec<LayerKind>,
    next: u64,
    /// What sequences that may share memory are clones of.
    empty: State,
}

/// Values of one position: a token's keys (0), values (1) or queries (2) at one layer, heads after each other.
fn values_of(token: u64, layer: usize, what: u64, count: usize) -> Vec<f32> {
    let mut seed = token.wrapping_mul(31).wrapping_add(layer as u64).wrapping_mul(7).wrapping_add(what);
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
fn array(rows: &[&[u64]], layer: usize, what: u64, heads: usize, dim: usize) -> Array {
    let length = rows[0].len();
    let mut data = vec![0.0; rows.len() * heads * length * dim];
    for (b, tokens) in rows.iter().enumerate() {
        for (t, &token) in tokens.iter().enumerate() {
            for (h, head) in values_of(token, layer, what, heads * dim).chunks(dim).enumerate() {
                let at = ((b * heads + h) * length + t) * dim;
                data[at..at + dim].copy_from_slice(head);
            }
        }
    }
    Array::from_slice(&data, [rows.len() as i32, heads as i32, length as i32, dim as i32]).expect("an array")
}

impl World {
    pub(crate) fn new(kernels: KernelSet, kv: KvScheme, layers: Vec<LayerKind>) -> Self {
        let composition = Composition { kernels, kv: kv.clone(), ..Composition::default() };
        let state = State::compose(&layers, &composition).expect("composes");
        let empty = state.clone();
        Self { state, rows: vec![Row::default()], kernels, kv, layers, next: 1, empty }
    }

    /// An empty state that shares no memory with others.
    fn compose(&self) -> State {
        Self::new(self.kernels, self.kv.clone(), self.layers.clone()).state
    }

    fn fresh(&mut self, count: usize) -> Vec<u64> {
        let first = self.next;
        self.next += count as u64;
        (first..self.next).collect()
    }

    fn convert_due(&mut self) {
        for row in &mut self.rows {
            let length = row.tokens.len();
            let later = self.kv.format != KvFormat::Plain && length > 0 && length >= self.kv.start as usize;
            row.converted |= later;
        }
    }

    pub(crate) fn append(&mut self, count: usize, known: bool) {
        self.convert_due();
        self.pass(count, known);
    }

    /// One forward pass of fresh tokens.
    fn pass(&mut self, count: usize, known: bool) {
        let new: Vec<Vec<u64>> = (0..self.rows.len()).map(|_| self.fresh(count)).collect();
        let real = vec![count; self.rows.len()];
        self.forward(&new, &vec![0; self.rows.len()], &real, known);
    }

    /// One forward pass; row `r` has `skip[r]` tokens of padding before `real[r]` real ones.
    fn forward(&mut self, new: &[Vec<u64>], skip: &[usize], real: &[usize], known: bool) {
        let count = new[0].len();
        let outs = run(&mut self.state, &self.layers, new, known);
        let before: Vec<Row> = self.rows.clone();
        for (row, tokens) in self
            .rows
            .iter_mut()
            .zip(new)
            .zip(skip.iter().zip(real))
            .map(|((r, t), (s, n))| (r, &t[*s..s + n]))
        {
            row.tokens.extend(tokens);
        }
        for (layer, kind) in self.layers.iter().enumerate() {
            let (window, dim) = shape(*kind);
            let out: Vec<f32> = outs[layer].to_vec().expect("values");
            for (r, row) in before.iter().enumerate() {
                for t in 0..real[r] {
                    let at = row.tokens.len() + t + 1;
                    let seen = &self.rows[r].tokens[at.saturating_sub(window)..at];
                    let expected = self.attention(seen, layer, dim, self.is_converted(row, layer));
                    for head in 0..HEADS {
                        let from = ((r * HEADS + head) * count + skip[r] + t) * dim;
                        for (found, expected) in out[from..from + dim].iter().zip(&expected[head * dim..]) {
                            let near = (f64::from(*found) - expected).abs() < 2e-4;
                            assert!(near, "layer {layer}, row {r}, position {at}: {found} but {expected}");
                        }
                    }
                }
            }
        }
    }

    /// Pages have their format from the first token on.
    fn is_converted(&self, row: &Row, layer: usize) -> bool {
        row.converted || self.kv.page.is_some() && matches!(self.layers[layer], LayerKind::Full { .. })
    }

    /// What the newest of `seen` attends to, in f64: `[Hq, D]`.
    fn attention(&self, seen: &[u64], layer: usize, dim: usize, converted: bool) -> Vec<f64> {
        let query = values_of(seen[seen.len() - 1], layer, 2, HEADS * dim);
        let rounded = |what: u64| -> Vec<f32> {
            let dense = array(&[seen], layer, what, KV_HEADS, dim);
            match self.kv.format {
                KvFormat::Affine(scheme) if converted => {
                    ops::dequantize(&ops::quantize(&dense, scheme).expect("quantizes"), None)
                        .expect("dequantizes")
                        .to_vec()
                        .expect("values")
                }
                _ => dense.to_vec().expect("values"),
            }
        };
        let (keys, values) = (rounded(0), rounded(1));
        let mut out = Vec::new();
        for head in 0..HEADS {
            let base = head / (HEADS / KV_HEADS) * seen.len() * dim;
            let row = |of: &[f32], t: usize, d: usize| f64::from(of[base + t * dim + d]);
            let scores: Vec<f64> = (0..seen.len())
                .map(|t| {
                    (0..dim).map(|d| f64::from(query[head * dim + d]) * row(&keys, t, d)).sum::<f64>()
                        * f64::from(SCALE)
                })
                .collect();
            let most = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend(
                (0..dim)
                    .map(|d| (0..seen.len()).map(|t| weights[t] * row(&values, t, d)).sum::<f64>() / total),
            );
        }
        out
    }

    pub(crate) fn trim(&mut self, count: usize) {
        let shortest = self.rows.iter().map(|r| r.tokens.len()).min().unwrap_or(0);
        let possible = self.state.trimmable();
        assert!(possible <= shortest);
        if count > possible {
            let before = self.state.row_positions();
            self.state.trim(count).expect_err("more than possible");
            assert_eq!(self.state.row_positions(), before);
            return;
        }
        self.state.trim(count).expect("trims");
        for row in &mut self.rows {
            row.tokens.truncate(row.tokens.len() - count);
        }
    }

    pub(crate) fn join(&mut self, lengths: &[usize]) {
        for &length in lengths {
            let mut other = Self::new(self.kernels, self.kv.clone(), self.layers.clone());
            other.next = self.next + 1;
            if length % 2 == 0 {
                other.state = self.empty.clone();
            }
            if length > 0 {
                other.append(length, false);
            }
            self.next = other.next;
            self.state.join(&other.state).expect("joins");
            self.rows.append(&mut other.rows);
        }
    }

    pub(crate) fn filter(&mut self, rows: &[usize]) {
        self.state.filter(rows).expect("filters");
        self.rows = rows.iter().map(|&r| self.rows[r].clone()).collect();
    }

    pub(crate) fn extract(&mut self, row: usize) {
        self.state = self.state.extract(row).expect("extracts");
        self.rows = vec![self.rows[row].clone()];
    }

    pub(crate) fn fork(&mut self, count: usize) {
        let count = count.min(self.state.trimmable());
        let original = self.state.clone();
        let rows = self.rows.clone();
        self.state = self.state.fork(self.state.position() - count).expect("forks");
        self.rows.iter_mut().for_each(|row| row.tokens.truncate(row.tokens.len() - count));
        // The copy goes its own way; the original is as it was.
        self.append(1, false);
        let (copy, copied) =
            (std::mem::replace(&mut self.state, original), std::mem::replace(&mut self.rows, rows));
        self.check_rows();
        (self.state, self.rows) = (copy, copied);
    }

    pub(crate) fn padded(&mut self, lengths: &[usize], span: usize, left: bool) {
        let empty = self.rows.iter().all(|r| r.tokens.is_empty());
        let lengths = &lengths[..self.rows.len().min(lengths.len())];
        if lengths.len() < self.rows.len() {
            return;
        }
        let side = if left && empty { Side::Left } else { Side::Right };
        self.state.begin_padded(lengths, side).expect("begins");
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut start = 0;
        while start < longest {
            let count = span.min(longest - start);
            self.convert_due();
            let new: Vec<Vec<u64>> = (0..self.rows.len()).map(|_| self.fresh(count)).collect();
            let skip: Vec<usize> = lengths
                .iter()
                .map(|n| match side {
                    Side::Left => (longest - n).saturating_sub(start).min(count),
                    Side::Right => 0,
                })
                .collect();
            let real: Vec<usize> = lengths
                .iter()
                .zip(&skip)
                .map(|(n, skip)| match side {
                    Side::Left => count - skip,
                    Side::Right => n.saturating_sub(start).min(count),
                })
                .collect();
            self.forward(&new, &skip, &real, false);
            start += count;
        }
        self.state.end_padded().expect("ends");
        let several = longest > span;
        self.rows.iter_mut().zip(lengths).for_each(|(row, &n)| row.ended_early |= several && n < longest);
    }

    pub(crate) fn round(&mut self, spans: &[usize], keep: Option<&[usize]>) {
        let shadow = (self.state.clone(), self.rows.clone());
        self.convert_due();
        let converted = self.rows.clone();
        let appended: usize = spans.iter().sum();
        {
            // The state is taken apart from the world while a round borrows it.
            let placeholder = self.compose();
            let mut state = std::mem::replace(&mut self.state, placeholder);
            let new: Vec<Vec<u64>> = (0..self.rows.len()).map(|_| self.fresh(appended)).collect();
            let mut round = state.begin().expect("begins");
            let mut start = 0;
            for &span in spans {
                let part: Vec<Vec<u64>> = new.iter().map(|t| t[start..start + span].to_vec()).collect();
                let outs = run(&mut round, &self.layers, &part, false);
                strata_tensor::eval(&outs).expect("evaluates");
                start += span;
            }
            assert_eq!(round.appended(), appended);
            match keep {
                None => drop(round),
                Some(keep) => {
                    let keep: Vec<usize> =
                        keep[..new.len().min(keep.len())].iter().map(|k| k % (appended + 1)).collect();
                    let keep = if keep.len() < new.len() { vec![0; new.len()] } else { keep };
                    round.commit(&keep).expect("commits");
                    for ((row, tokens), keep) in self.rows.iter_mut().zip(&new).zip(&keep) {
                        row.tokens.extend(&tokens[..*keep]);
                    }
                    self.state = state;
                    self.compare_with_unseen(shadow, &new, &keep);
                    return;
                }
            }
            self.state = state;
        }
        self.rows = converted;
        let (mut unseen, _) = shadow;
        self.same_next(&mut unseen);
    }

    /// A state that appended just what was kept, one by one, continues with the same bits.
    fn compare_with_unseen(&mut self, shadow: (State, Vec<Row>), new: &[Vec<u64>], keep: &[usize]) {
        let (mut unseen, before) = shadow;
        // Rows of uneven length, and rings of rows that change their format on the way, hold the same but lie elsewhere
        // than single steps would put them, so sums have another order.
        let uneven = keep.iter().any(|&n| n != keep[0]);
        let changing = self.kv.format != KvFormat::Plain && before.iter().any(|row| !row.converted);
        if uneven || changing {
            return;
        }
        for i in 0..keep[0] {
            let step: Vec<Vec<u64>> = new.iter().map(|t| vec![t[i]]).collect();
            strata_tensor::eval(&run(&mut unseen, &self.layers, &step, false)).expect("evaluates");
        }
        self.same_next(&mut unseen);
    }

    fn same_next(&mut self, unseen: &mut State) {
        assert_eq!(self.state.row_positions(), unseen.row_positions());
        self.convert_due();
        let step: Vec<Vec<u64>> = (0..self.rows.len()).map(|_| self.fresh(1)).collect();
        let expected = run(unseen, &self.layers, &step, false);
        let found = run(&mut self.state, &self.layers, &step, false);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.to_bytes().expect("bytes"), expected.to_bytes().expect("bytes"));
        }
        self.rows.iter_mut().zip(&step).for_each(|(row, tokens)| row.tokens.extend(tokens));
    }

    /// Through the bytes of a file and back; a batch goes on with its first row alone.
    pub(crate) fn save(&mut self) {
        self.extract(0);
        let tokens: Vec<u32> = self.rows[0].tokens.iter().map(|&token| token as u32).collect();
        let file = self.state.snapshot("model", &tokens).expect("a snapshot").encode();
        let snapshot = Snapshot::decode(&file).expect("decodes");
        assert_eq!(snapshot.tokens(), tokens);
        let mut restored = snapshot.restore(&self.compose()).expect("restores");
        std::mem::swap(&mut self.state, &mut restored);
        self.same_next(&mut restored);
    }

    pub(crate) fn accept(&mut self, count: usize) {
        self.convert_due();
        let placeholder = self.compose();
        let mut state = std::mem::replace(&mut self.state, placeholder);
        let new: Vec<Vec<u64>> = (0..self.rows.len()).map(|_| self.fresh(count)).collect();
        let mut round = state.begin().expect("begins");
        strata_tensor::eval(&run(&mut round, &self.layers, &new, false)).expect("evaluates");
        round.accept();
        self.state = state;
        self.rows.iter_mut().zip(&new).for_each(|(row, tokens)| row.tokens.extend(tokens));
    }

    /// Every row, copied out, holds its newest positions exactly.
    pub(crate) fn check_rows(&self) {
        let positions: Vec<usize> = self.rows.iter().map(|r| r.tokens.len()).collect();
        assert_eq!(self.state.row_positions(), positions);
        for (r, row) in self.rows.iter().enumerate() {
            let mut alone = self.state.extract(r).expect("extracts");
            for (layer, kind) in self.layers.iter().enumerate() {
                let (window, dim) = shape(*kind);
                let parts = alone.layer(layer).live_parts().expect("parts");
                let held = parts.first().map_or(0, |(_, keys)| keys.dim(2) as usize);
                let least = if row.ended_early { window - 1 } else { window };
                assert!(held >= row.tokens.len().min(least), "layer {layer}, row {r} holds {held}");
                assert!(held <= row.tokens.len().min(window), "layer {layer}, row {r} holds {held}");
                let seen = &row.tokens[row.tokens.len() - held..];
                if seen.is_empty() {
                    assert!(parts.is_empty());
                    continue;
                }
                let expected: Vec<Array> = [0, 1]
                    .iter()
                    .flat_map(|&what| {
                        let dense = array(&[seen], layer, what, KV_HEADS, dim);
                        match self.kv.format {
                            KvFormat::Affine(scheme) if self.is_converted(row, layer) => {
                                quantized(&dense, scheme)
                            }
                            _ => vec![dense],
                        }
                    })
                    .collect();
                assert_eq!(parts.len(), expected.len(), "layer {layer}, row {r}");
                for ((name, found), expected) in parts.iter().zip(&expected) {
                    let same = found.to_bytes().expect("bytes") == expected.to_bytes().expect("bytes");
                    assert!(same, "layer {layer}, row {r}: {name} differ");
                }
            }
        }
    }
}

/// A forward pass: every layer appends and attends.
fn run(state: &mut State, layers: &[LayerKind], new: &[Vec<u64>], known: bool) -> Vec<Array> {
    let tokens: Vec<&[u64]> = new.iter().map(Vec::as_slice).collect();
    let count = tokens[0].len();
    let phase = match (count, known) {
        (_, true) => Phase::Committed,
        (1, false) => Phase::Decode,
        _ => Phase::Window,
    };
    let outs = layers.iter().enumerate().map(|(layer, kind)| {
        let (_, dim) = shape(*kind);
        let (keys, values) =
            (array(&tokens, layer, 0, KV_HEADS, dim), array(&tokens, layer, 1, KV_HEADS, dim));
        let read = state.layer(layer).append(&keys, &values, phase).expect("appends");
        read.attend(&array(&tokens, layer, 2, HEADS, dim), SCALE).expect("attends")
    });
    let outs = outs.collect();
    state.advance(count);
    outs
}

fn quantized(dense: &Array, scheme: QuantScheme) -> Vec<Array> {
    let q = ops::quantize(dense, scheme).expect("quantizes");
    [q.weight, q.scales].into_iter().chain(q.biases).collect()
}

fn shape(kind: LayerKind) -> (usize, usize) {
    match kind {
        LayerKind::Full { head_dim, .. } => (usize::MAX, head_dim as usize),
        LayerKind::Sliding { head_dim, window, .. } => (window as usize, head_dim as usize),
        other => panic!("the model has no {other:?}"),
    }
}

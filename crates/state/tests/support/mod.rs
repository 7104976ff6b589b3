//! The model: a batch of rows that keep every token they have seen, beside the state under test.

mod layers;
mod leaky;

use layers::{Rounding, expected, run, shape};
use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind};
use strata_state::{Side, Snapshot, State};

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
    rounding: Rounding,
    next: u64,
    /// What sequences that may share memory are clones of.
    empty: State,
}

impl World {
    pub(crate) fn new(kernels: KernelSet, kv: KvScheme, layers: Vec<LayerKind>) -> Self {
        let composition = Composition { kernels, kv: kv.clone(), ..Composition::default() };
        let state = State::compose(&layers, &composition).expect("composes");
        let empty = state.clone();
        let rounding = Rounding::new(kv.format.clone(), kernels);
        Self { state, rows: vec![Row::default()], kernels, kv, layers, rounding, next: 1, empty }
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
        let plain = Rounding::new(KvFormat::Plain, KernelSet::Reference);
        for (layer, &kind) in self.layers.iter().enumerate() {
            let (out, window) = (&outs[layer], shape(kind).window);
            let (heads, dim) = (out.dim(1) as usize, out.dim(3) as usize);
            let out: Vec<f32> = out.to_vec().expect("values");
            for (r, row) in before.iter().enumerate() {
                let rounding = if self.is_converted(row, layer) { &self.rounding } else { &plain };
                for t in 0..real[r] {
                    let at = row.tokens.len() + t + 1;
                    let seen = &self.rows[r].tokens[at.saturating_sub(window)..at];
                    let expected = expected(seen, layer, kind, rounding);
                    for head in 0..heads {
                        let from = ((r * heads + head) * count + skip[r] + t) * dim;
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
        row.converted || self.kv.page.is_some() && !matches!(self.layers[layer], LayerKind::Sliding { .. })
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
        for r in 0..self.rows.len() {
            let mut alone = self.state.extract(r).expect("extracts");
            for (layer, &kind) in self.layers.iter().enumerate() {
                self.check_layer(&mut alone, r, layer, kind);
            }
        }
    }

    fn check_layer(&self, alone: &mut State, r: usize, layer: usize, kind: LayerKind) {
        let (row, window) = (&self.rows[r], shape(kind).window);
        let parts = alone.layer(layer).live_parts().expect("parts");
        if let LayerKind::Recurrent { .. } = kind {
            assert_eq!(parts.len(), if row.tokens.is_empty() { 0 } else { 2 }, "layer {layer}, row {r}");
            return;
        }
        let held = parts.first().map_or(0, |(_, keys)| keys.dim(2) as usize);
        let least = if row.ended_early { window - 1 } else { window };
        assert!(held >= row.tokens.len().min(least), "layer {layer}, row {r} holds {held}");
        assert!(held <= row.tokens.len().min(window), "layer {layer}, row {r} holds {held}");
        let seen = &row.tokens[row.tokens.len() - held..];
        if seen.is_empty() {
            assert!(parts.is_empty());
            return;
        }
        let plain = Rounding::new(KvFormat::Plain, KernelSet::Reference);
        let rounding = if self.is_converted(row, layer) { &self.rounding } else { &plain };
        let expected = rounding.parts(seen, layer, kind);
        assert_eq!(parts.len(), expected.len(), "layer {layer}, row {r}");
        for ((name, found), expected) in parts.iter().zip(&expected) {
            let same = found.to_bytes().expect("bytes") == expected.to_bytes().expect("bytes");
            assert!(same, "layer {layer}, row {r}: {name} differ");
        }
    }
}

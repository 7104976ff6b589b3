//! Prefixes that have been read before, to be continued instead of read again. Entries are immutable and shared: what is
//! given out is a copy that copies memory only when it writes. An entry that cannot go back to the end of the common
//! prefix, such as a wrapped ring or a recurrent memory, serves only prompts that begin with all of it.

use crate::error::Result;
use crate::state::State;
use strata_tensor::eval;

/// Prefixes in memory, up to a number of bytes.
#[derive(Debug)]
pub struct PrefixCache {
    limit: usize,
    held: usize,
    entries: Vec<Entry>,
    /// Uses so far.
    uses: u64,
    /// Value of the entry evicted last: what is used now counts from here (GreedyDual-Size, Cao and Irani 1997).
    clock: f64,
    statistics: PrefixStatistics,
}

/// What the cache has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixStatistics {
    /// Prompts of which a prefix was found.
    pub hits: u64,
    /// Prompts without.
    pub misses: u64,
    /// Tokens that need not be read again.
    pub reused: u64,
    /// Entries put out for lack of room.
    pub evicted: u64,
}

#[derive(Debug)]
struct Entry {
    namespace: String,
    tokens: Vec<u32>,
    state: State,
    bytes: usize,
    value: f64,
    /// Number of the use that was the last one.
    used: u64,
}

impl PrefixCache {
    /// An empty cache that holds up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            held: 0,
            entries: Vec::new(),
            uses: 0,
            clock: 0.0,
            statistics: PrefixStatistics::default(),
        }
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.held
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What the cache has done so far.
    pub fn statistics(&self) -> PrefixStatistics {
        self.statistics
    }

    /// A state that has read the longest known prefix of `tokens`, at most all but the last one: a prompt needs the logits of
    /// its last token. The state's position says how long the prefix is. `namespace` names everything else that the
    /// state depends on: model, adapter, number format.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn find(&mut self, namespace: &str, tokens: &[u32]) -> Result<Option<State>> {
        let usable = |entry: &Entry| {
            let common = entry.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            let position = common.min(tokens.len().saturating_sub(1));
            let fits = entry.tokens.len() - position <= entry.state.trimmable();
            (entry.namespace == namespace && (position == entry.tokens.len() || fits)).then_some(position)
        };
        let found = self.entries.iter().enumerate().filter_map(|(i, entry)| Some((usable(entry)?, i)));
        let Some((position, index)) = found.max().filter(|&(position, _)| position > 0) else {
            self.statistics.misses += 1;
            return Ok(None);
        };
        let entry = &mut self.entries[index];
        let state = entry.state.fork(position)?;
        self.uses += 1;
        (entry.value, entry.used) = (self.clock + cost(entry.tokens.len(), entry.bytes), self.uses);
        self.statistics.hits += 1;
        self.statistics.reused += position as u64;
        Ok(Some(state))
    }

    /// Keeps the state of a sequence that has read exactly `tokens`, and evaluates it: an entry is one that can be read.
    /// False when it is larger than the whole cache or is not the state of one sequence that has read as many tokens.
    ///
    /// # Errors
    /// What MLX reports of the evaluation. Nothing changes then, as where the result is false.
    pub fn insert(&mut self, namespace: &str, tokens: &[u32], state: &State) -> Result<bool> {
        let bytes = state.bytes();
        if tokens.is_empty() || state.row_positions() != [tokens.len()] || bytes > self.limit {
            return Ok(false);
        }
        eval(state.arrays())?;
        let back = state.trimmable();
        // Shorter ones that the new one can stand for, and the same one again.
        self.remove_where(|entry| {
            entry.namespace == namespace
                && tokens.starts_with(&entry.tokens)
                && tokens.len() - entry.tokens.len() <= back
        });
        while self.held + bytes > self.limit {
            self.evict();
        }
        self.uses += 1;
        let (value, used) = (self.clock + cost(tokens.len(), bytes), self.uses);
        let (namespace, tokens, state) = (namespace.to_owned(), tokens.to_vec(), state.clone());
        self.entries.push(Entry { namespace, tokens, state, bytes, value, used });
        self.held += bytes;
        Ok(true)
    }

    /// Gives up the entries of a namespace.
    pub fn clear(&mut self, namespace: &str) {
        self.remove_where(|entry| entry.namespace == namespace);
    }

    /// Puts out the entry that costs least to read again for the bytes it takes and has not been used for longest.
    fn evict(&mut self) {
        let least = self
            .entries
            .iter()
            .enumerate()
            .min_by(|(_, a), (_, b)| a.value.total_cmp(&b.value).then(a.used.cmp(&b.used)));
        let Some((index, _)) = least else { return };
        let entry = self.entries.remove(index);
        self.clock = entry.value;
        self.held -= entry.bytes;
        self.statistics.evicted += 1;
    }

    fn remove_where(&mut self, gone: impl Fn(&Entry) -> bool) {
        self.entries.retain(|entry| !gone(entry));
        self.held = self.entries.iter().map(|entry| entry.bytes).sum();
    }
}

/// Tokens to read again for each byte held.
fn cost(tokens: usize, bytes: usize) -> f64 {
    tokens as f64 / bytes.max(1) as f64
}

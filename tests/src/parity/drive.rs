//! Runs Strata's graph over what the oracle fed its own, the same pieces in the same order.

use super::results::{Batch, Results, Row, Tensor};
use std::collections::BTreeMap;
use std::iter::repeat;
use std::path::Path;
use strata_artifacts::ModelDir;
use strata_contracts::{Composition, KvFormat, QuantError, QuantScheme};
use strata_models::Graph;
use strata_state::{Phase, Side, State};
use strata_tensor::{Array, Dtype, eval};

/// Group size of the oracle's quantized caches.
const KV_GROUP: u32 = 32;

/// A loaded model with the composition that it was loaded for.
pub struct Model {
    graph: Box<dyn Graph>,
    composition: Composition,
}

/// Why a run gave no result to compare.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The model folder can't be read.
    #[error(transparent)]
    Artifacts(#[from] strata_artifacts::Error),
    /// The graph can't be loaded or run.
    #[error(transparent)]
    Models(#[from] strata_models::Error),
    /// The state refused an operation.
    #[error(transparent)]
    State(#[from] strata_state::Error),
    /// MLX failed.
    #[error(transparent)]
    Tensor(#[from] strata_tensor::Error),
    /// The run asks for a number format that there isn't.
    #[error(transparent)]
    Quant(#[from] QuantError),
}

impl Model {
    /// Loads a model folder.
    ///
    /// # Errors
    /// What the folder or the graph reports.
    pub fn load(folder: &Path, composition: Composition) -> Result<Self, DriveError> {
        let graph = strata_models::load(&ModelDir::open(folder)?, &composition)?;
        Ok(Self { graph, composition })
    }

    /// Reads and steps as the oracle did, and gives the rows it should have got.
    ///
    /// # Errors
    /// What the state or the graph reports.
    pub fn run(&self, oracle: &Results) -> Result<Vec<Row>, DriveError> {
        let empty = self.state(oracle.kv_bits)?;
        let (mut state, mut pieces) = match oracle.batch {
            Batch::None => {
                let (state, pieces) = self.read(&oracle.rows[0], &oracle.chunks, empty)?;
                (state, vec![pieces])
            }
            Batch::Merge => {
                let read = |row: &Row| self.read(row, &[row.tokens.len()], empty.clone());
                let read = oracle.rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                let (states, pieces): (Vec<_>, Vec<_>) = read.into_iter().unzip();
                (State::merge(&states.iter().collect::<Vec<_>>())?, pieces)
            }
            Batch::Padded => self.read_padded(oracle, empty)?,
        };
        for step in 0..oracle.rows[0].decode_tokens.len() {
            let fed: Vec<Vec<i32>> = oracle.rows.iter().map(|row| vec![row.decode_tokens[step]]).collect();
            let logits = self.forward(&fed, &mut state)?;
            for (row, pieces) in pieces.iter_mut().enumerate() {
                pieces.push(row_of(&logits, row)?);
            }
        }
        let rows = oracle.rows.iter().zip(&pieces).enumerate().map(|(index, (row, pieces))| {
            let mut alone = if oracle.batch == Batch::None { state.clone() } else { state.extract(index)? };
            Ok(Row {
                tokens: row.tokens.clone(),
                decode_tokens: row.decode_tokens.clone(),
                logits: join(pieces)?,
                cache: live(&mut alone)?,
            })
        });
        rows.collect()
    }

    /// One row's prompt in pieces: its state, and the logits `[L, V]` of each piece.
    fn read(&self, row: &Row, chunks: &[usize], mut state: State) -> Result<(State, Vec<Array>), DriveError> {
        let (mut pieces, mut start) = (Vec::new(), 0);
        for length in chunks {
            let logits = self.forward(&[row.tokens[start..start + length].to_vec()], &mut state)?;
            pieces.push(row_of(&logits, 0)?);
            start += length;
        }
        Ok((state, pieces))
    }

    /// All rows' prompts together, padded on the right with token 0.
    fn read_padded(
        &self,
        oracle: &Results,
        mut state: State,
    ) -> Result<(State, Vec<Vec<Array>>), DriveError> {
        let lengths: Vec<usize> = oracle.rows.iter().map(|row| row.tokens.len()).collect();
        state.begin_padded(&lengths, Side::Right)?;
        let mut pieces = vec![Vec::new(); lengths.len()];
        let mut start = 0;
        for length in &oracle.chunks {
            let fed = oracle
                .rows
                .iter()
                .map(|row| row.tokens.iter().copied().chain(repeat(0)).skip(start).take(*length));
            let logits = self.forward(&fed.map(Iterator::collect).collect::<Vec<_>>(), &mut state)?;
            for (row, pieces) in pieces.iter_mut().enumerate() {
                let real = lengths[row].saturating_sub(start).min(*length);
                pieces.push(row_of(&logits, row)?.slice_axis(0, 0, real as i32)?);
            }
            start += length;
        }
        state.end_padded()?;
        Ok((state, pieces))
    }

    /// A sequence of its own, empty yet.
    ///
    /// # Errors
    /// What the state reports.
    pub fn sequence(&self) -> Result<Sequence<'_>, DriveError> {
        Ok(Sequence { model: self, state: self.state(None)? })
    }

    /// Empty state, quantized from the end of the first forward pass on if `kv_bits` are given.
    fn state(&self, kv_bits: Option<u32>) -> Result<State, DriveError> {
        let mut composition = self.composition.clone();
        if let Some(bits) = kv_bits {
            composition.kv.format = KvFormat::Affine(QuantScheme::affine(bits, KV_GROUP)?);
        }
        Ok(State::compose(&self.graph.declaration().layers, &composition)?)
    }

    /// Logits `[R, L, V]` of the next `L` tokens of `R` rows, evaluated together with the state.
    fn forward(&self, tokens: &[Vec<i32>], state: &mut State) -> Result<Array, DriveError> {
        let shape = [tokens.len() as i32, tokens[0].len() as i32];
        let phase = if shape[1] == 1 { Phase::Decode } else { Phase::Window };
        let tokens = Array::from_slice(&tokens.concat(), shape)?;
        let logits = self.graph.logits(&self.graph.hidden(&tokens, state, phase)?)?;
        let mut all = state.arrays();
        all.push(&logits);
        eval(all)?;
        Ok(logits)
    }
}

/// One row that is read on, piece by piece.
pub struct Sequence<'m> {
    model: &'m Model,
    state: State,
}

impl Sequence<'_> {
    /// Float32 logits `[L, V]` after each of the next `L` tokens, read in one forward pass.
    ///
    /// # Errors
    /// What the graph reports.
    pub fn read(&mut self, tokens: &[i32]) -> Result<Array, DriveError> {
        let logits = self.model.forward(&[tokens.to_vec()], &mut self.state)?;
        Ok(row_of(&logits, 0)?.astype(Dtype::Float32)?)
    }
}

/// `[L, V]` of one row.
fn row_of(logits: &Array, row: usize) -> Result<Array, DriveError> {
    Ok(logits.slice_axis(0, row as i32, row as i32 + 1)?.squeeze(&[0])?)
}

/// A single sequence's live cache entries by name, `[H, T, D]` each.
fn live(state: &mut State) -> Result<BTreeMap<String, Tensor>, DriveError> {
    let mut cache = BTreeMap::new();
    for index in 0..state.len() {
        for (name, part) in state.layer(index).live_parts()? {
            cache.insert(format!("{index}.{name}"), tensor(&part.squeeze(&[0])?)?);
        }
    }
    Ok(cache)
}

pub(super) fn join(pieces: &[Array]) -> Result<Tensor, DriveError> {
    tensor(&strata_tensor::ops::concatenate(&pieces.iter().collect::<Vec<_>>(), 0)?)
}

fn tensor(array: &Array) -> Result<Tensor, DriveError> {
    let shape = array.shape().iter().map(|&length| length as usize).collect();
    Ok(Tensor { dtype: array.dtype(), shape, data: array.to_bytes()? })
}

//! Runs Strata's graph over what the oracle fed its own, the same pieces in the same order.

use super::results::{Batch, Results, Row, Tensor};
use std::collections::BTreeMap;
use std::path::Path;
use strata_artifacts::ModelDir;
use strata_contracts::Composition;
use strata_models::Graph;
use strata_state::{Phase, State};
use strata_tensor::{Array, Dtype, eval};

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
    /// The run asks for something that state has no form of yet.
    #[error("not run: {0}")]
    Unsupported(&'static str),
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
    /// [`DriveError::Unsupported`] for batches and quantized caches; what the graph reports.
    pub fn run(&self, oracle: &Results) -> Result<Vec<Row>, DriveError> {
        match (oracle.batch, oracle.kv_bits, oracle.rows.as_slice()) {
            (Batch::None, None, [row]) => Ok(vec![self.run_one(row, &oracle.chunks)?]),
            (_, Some(_), _) => Err(DriveError::Unsupported("quantized caches")),
            _ => Err(DriveError::Unsupported("batches of rows")),
        }
    }

    fn run_one(&self, oracle: &Row, chunks: &[usize]) -> Result<Row, DriveError> {
        let mut state = self.state()?;
        let mut pieces = Vec::new();
        let mut start = 0;
        for length in chunks {
            pieces.push(self.forward(&oracle.tokens[start..start + length], &mut state)?);
            start += length;
        }
        for token in &oracle.decode_tokens {
            pieces.push(self.forward(&[*token], &mut state)?);
        }
        let logits = join(&pieces)?;
        let mut cache = BTreeMap::new();
        for index in 0..state.len() {
            if let Some((keys, values)) = state.layer(index).live()? {
                cache.insert(format!("{index}.keys"), tensor(&keys.squeeze(&[0])?)?);
                cache.insert(format!("{index}.values"), tensor(&values.squeeze(&[0])?)?);
            }
        }
        Ok(Row { tokens: oracle.tokens.clone(), decode_tokens: oracle.decode_tokens.clone(), logits, cache })
    }

    /// Negative log likelihood, in nats, of every token after the first, read in pieces of `chunk` tokens, and the logits
    /// that give them: float32 `[P - 1]` and `[P - 1, V]`.
    ///
    /// # Errors
    /// What the graph reports.
    pub fn score(&self, tokens: &[i32], chunk: usize) -> Result<(Tensor, Tensor), DriveError> {
        let mut state = self.state()?;
        let (mut nll, mut all) = (Vec::new(), Vec::new());
        for (inputs, targets) in tokens[..tokens.len() - 1].chunks(chunk).zip(tokens[1..].chunks(chunk)) {
            let logits = self.forward(inputs, &mut state)?.astype(Dtype::Float32)?;
            let targets = Array::from_slice(targets, [targets.len() as i32])?.expand_dims(&[-1])?;
            let chosen = logits.take_along_axis(&targets, -1)?.squeeze(&[-1])?;
            nll.push(logits.logsumexp(-1, false)?.subtract(&chosen)?);
            all.push(logits);
        }
        Ok((join(&nll)?, join(&all)?))
    }

    fn state(&self) -> Result<State, DriveError> {
        Ok(State::compose(&self.graph.declaration().layers, &self.composition)?)
    }

    /// Logits `[L, V]` of the next `L` tokens, evaluated together with the state.
    fn forward(&self, tokens: &[i32], state: &mut State) -> Result<Array, DriveError> {
        let phase = if tokens.len() == 1 { Phase::Decode } else { Phase::Window };
        let tokens = Array::from_slice(tokens, [1, tokens.len() as i32])?;
        let logits = self.graph.logits(&self.graph.hidden(&tokens, state, phase)?)?;
        let mut all = state.arrays();
        all.push(&logits);
        eval(all)?;
        Ok(logits.squeeze(&[0])?)
    }
}

fn join(pieces: &[Array]) -> Result<Tensor, DriveError> {
    tensor(&strata_tensor::ops::concatenate(&pieces.iter().collect::<Vec<_>>(), 0)?)
}

fn tensor(array: &Array) -> Result<Tensor, DriveError> {
    let shape = array.shape().iter().map(|&length| length as usize).collect();
    Ok(Tensor { dtype: array.dtype(), shape, data: array.to_bytes()? })
}

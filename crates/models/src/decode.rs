//! The decode step of a graph, recorded once and run for every token.
//!
//! Building a graph costs more than its smaller kernels, and it is the same graph for every token but for a few numbers
//! ([`StandIn`]). Where it consists of host kernels alone, it is recorded as a [`Program`], one node; anything else (other
//! devices, MLX's own operations on the way, a buffer that must grow) is built as ever, with the same results.

use crate::error::Result;
use crate::graph::Graph;
use strata_state::{Phase, StandIn, State};
use strata_tensor::host::{Meta, Program, Recorded};
use strata_tensor::{Array, Dtype};

/// Decode steps of one graph.
pub struct DecodeStep<'a> {
    graph: &'a dyn Graph,
    recorded: Option<(StandIn, Program)>,
    /// Recording has met something that is no host kernel.
    obstacle: bool,
}

impl<'a> DecodeStep<'a> {
    /// Steps of `graph`, none recorded yet.
    pub fn new(graph: &'a dyn Graph) -> Self {
        Self { graph, recorded: None, obstacle: false }
    }

    /// The graph.
    pub fn graph(&self) -> &'a dyn Graph {
        self.graph
    }

    /// True when the last step ran as a recorded one.
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// Logits `[B, V]` behind ids `[B, 1]`, int32 or uint32, which are appended to the state as by [`Graph::hidden`].
    ///
    /// # Errors
    /// What MLX or the state reports; the state must then be dropped or rolled back.
    pub fn logits(&mut self, ids: &Array, state: &mut State) -> Result<Array> {
        if let Some(logits) = self.recorded_logits(ids, state)? {
            return Ok(logits);
        }
        let hidden = self.graph.hidden(ids, state, Phase::Decode)?; // [B, 1, E]
        Ok(self.graph.logits(&hidden)?.squeeze(&[1])?)
    }

    fn recorded_logits(&mut self, ids: &Array, state: &mut State) -> Result<Option<Array>> {
        let mut fitting = self.inputs_of(state)?;
        if fitting.is_none() {
            self.recorded = if self.obstacle { None } else { self.record(ids, state)? };
            fitting = self.inputs_of(state)?;
        }
        let (Some(mut inputs), Some((stand_in, program))) = (fitting, &self.recorded) else {
            return Ok(None);
        };
        inputs.push(ids.astype(Dtype::Uint32)?);
        let mut outputs = program.apply(&inputs.iter().collect::<Vec<_>>())?;
        let logits = outputs.pop();
        stand_in.advance(state, outputs);
        Ok(logits)
    }

    /// What the recorded step reads of a state, if there is one and it fits.
    fn inputs_of(&self, state: &State) -> Result<Option<Vec<Array>>> {
        match &self.recorded {
            Some((stand_in, _)) => Ok(stand_in.inputs_of(state)?),
            None => Ok(None),
        }
    }

    /// Records the step after `state`, if it can be.
    fn record(&mut self, ids: &Array, state: &State) -> Result<Option<(StandIn, Program)>> {
        let Some(mut stand_in) = StandIn::of(state)? else { return Ok(None) };
        let ids = Program::placeholder(&Meta { dtype: Dtype::Uint32, shape: ids.shape() })?;
        let logits = self
            .graph
            .hidden(&ids, stand_in.state(), Phase::Decode)
            .and_then(|hidden| Ok(self.graph.logits(&hidden)?.squeeze(&[1])?));
        let obstacle = match logits {
            Ok(logits) => {
                let mut inputs = stand_in.inputs();
                inputs.push(&ids);
                let mut outputs = stand_in.outputs();
                outputs.push(&logits);
                match Program::record(&inputs, &outputs)? {
                    Recorded::Program(program) => return Ok(Some((stand_in, program))),
                    Recorded::Obstacle(name) => name,
                }
            }
            // A family that computes with positions on the host, say: building the step as ever tells more.
            Err(error) => error.to_string(),
        };
        tracing::debug!(obstacle, "decode steps are not recorded");
        self.obstacle = true;
        Ok(None)
    }
}

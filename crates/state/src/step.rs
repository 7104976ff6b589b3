//! Decode steps that are recorded once and run many times: what changes from one to the next is an input.
//!
//! A graph that is built anew for every token differs from the last one in a few numbers only: the position, and for each
//! layer where it writes and how much of its buffers is live. [`StandIn`] is a state in which these numbers, and the
//! buffers, are placeholders. A pass over it builds a graph that holds for every later step, as long as buffers keep their
//! shapes and each layer's next position can be written in place.

use crate::error::Result;
use crate::layer::LayerState;
use crate::planes::Planes;
use crate::state::State;
use strata_tensor::host::{Meta, Program};
use strata_tensor::{Array, Dtype, Shape};

/// Where a layer's next position goes in its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: usize,
    /// Positions that are live then.
    pub(crate) end: usize,
}

/// The same as inputs of a recorded step: int32, 0-d.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) start: Array,
    pub(crate) end: Array,
}

/// A state to record a decode step with, in place of one that it is like.
#[derive(Debug)]
pub struct StandIn {
    state: State,
    /// Placeholders of the buffers, layer after layer.
    stored: Vec<Array>,
    /// Of each place that layers have in common.
    steps: Vec<Step>,
    positions: Array,
    /// For each layer its place, if it stores anything, and its buffers' count.
    layers: Vec<Option<(usize, usize)>>,
}

impl StandIn {
    /// A stand-in for a state whose next step writes one position a row in place; `None` for any other.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn of(state: &State) -> Result<Option<Self>> {
        let Some(places) = places(state) else { return Ok(None) };
        let number =
            || Program::placeholder(&Meta { dtype: Dtype::Int32, shape: Shape::from([].as_slice()) });
        let mut distinct: Vec<Place> = Vec::new();
        let (mut stored, mut steps, mut layers) = (Vec::new(), Vec::new(), Vec::new());
        let mut of_layers = Vec::new();
        for (layer, place) in state.layers.iter().zip(&places) {
            let Some(place) = place else {
                of_layers.push(layer.clone());
                layers.push(None);
                continue;
            };
            let index = distinct.iter().position(|other| other == place).unwrap_or(distinct.len());
            if index == distinct.len() {
                distinct.push(*place);
                steps.push(Step { start: number()?, end: number()? });
            }
            let planes = layer.arrays().into_iter().map(|array| Program::placeholder(&meta(array)));
            let planes = planes.collect::<strata_tensor::Result<Vec<_>>>()?;
            layers.push(Some((index, planes.len())));
            stored.extend(planes.iter().cloned());
            of_layers.push(layer.stand_in(Planes::new(planes), steps[index].clone()));
        }
        let positions = match state.rows {
            None => number()?,
            Some(_) => {
                Program::placeholder(&Meta { dtype: Dtype::Int32, shape: [state.rows() as i32].into() })?
            }
        };
        let state = State { layers: of_layers, recording: Some(positions.clone()), ..state.clone() };
        Ok(Some(Self { state, stored, steps, positions, layers }))
    }

    /// The state that the step to be recorded passes over, once.
    pub fn state(&mut self) -> &mut State {
        &mut self.state
    }

    /// The placeholders, in the order of [`StandIn::inputs_of`]: first what [`StandIn::outputs`] replace, then what changes.
    pub fn inputs(&self) -> Vec<&Array> {
        let steps = self.steps.iter().flat_map(|step| [&step.start, &step.end]);
        self.stored.iter().chain(steps).chain([&self.positions]).collect()
    }

    /// The buffers after the step.
    pub fn outputs(&self) -> Vec<&Array> {
        self.state.arrays()
    }

    /// What stands for the placeholders in the next step of `state`; `None` when the recorded step does not fit it.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn inputs_of(&self, state: &State) -> Result<Option<Vec<Array>>> {
        let Some(places) = places(state) else { return Ok(None) };
        let Some(places) = self.common(&places) else { return Ok(None) };
        let held = state.arrays();
        let alike = held.len() == self.stored.len()
            && state.rows.is_some() == self.state.rows.is_some()
            && held.iter().zip(&self.stored).all(|(held, stored)| meta(held) == meta(stored));
        if !alike {
            return Ok(None);
        }
        let mut inputs: Vec<Array> = held.into_iter().cloned().collect();
        for place in places {
            inputs.extend([Array::from_i32(place.start as i32), Array::from_i32(place.end as i32)]);
        }
        inputs.push(match &state.rows {
            None => Array::from_i32(state.position as i32),
            Some(rows) => rows.positions(),
        });
        Ok(Some(inputs))
    }

    /// Ends a step of `state`: its buffers are `outputs` now, computed from [`StandIn::inputs_of`] it.
    pub fn advance(&self, state: &mut State, outputs: Vec<Array>) {
        let Some(places) = places(state) else { return };
        let mut outputs = outputs.into_iter();
        for ((layer, place), recorded) in state.layers.iter_mut().zip(places).zip(&self.layers) {
            if let (Some(place), Some((_, planes))) = (place, recorded) {
                layer.stepped(Planes::new(outputs.by_ref().take(*planes).collect()), place);
            }
        }
        state.advance(1);
    }

    /// The places that layers have in common, if they still do.
    fn common(&self, places: &[Option<Place>]) -> Option<Vec<Place>> {
        if places.len() != self.layers.len() {
            return None;
        }
        let mut common: Vec<Option<Place>> = vec![None; self.steps.len()];
        for (place, recorded) in places.iter().zip(&self.layers) {
            match (place, recorded) {
                (None, None) => {}
                (Some(place), Some((index, _))) => {
                    if *common[*index].get_or_insert(*place) != *place {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        common.into_iter().collect()
    }
}

fn meta(array: &Array) -> Meta {
    Meta { dtype: array.dtype(), shape: array.shape() }
}

/// Where each layer's next position goes, `None` for layers that store nothing; `None` unless host kernels can write and
/// read it everywhere.
fn places(state: &State) -> Option<Vec<Option<Place>>> {
    if state.in_round || state.recording.is_some() || !state.host_kernels() {
        return None;
    }
    let places = state.layers.iter().map(|layer| match layer {
        LayerState::Shared(_) => Some(None),
        _ => layer.place().map(Some),
    });
    places.collect()
}

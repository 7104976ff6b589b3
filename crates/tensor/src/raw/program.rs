//! Recorded graphs of host kernels: what lies behind [`crate::host::Program`].

use super::array::{Array, dtype_to_c};
use super::error_slot::{self, status};
use super::handle::{StringHandle, VectorArray};
use super::stream::Stream;
use crate::error::Result;
use crate::host::{Meta, Recorded};
use strata_sys as sys;

/// A recorded graph of host kernels that runs as one node.
pub struct Program(sys::strata_program);

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Program")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: (1) this wrapper owns the handle.
        unsafe { sys::strata_program_free(self.0) };
    }
}

impl Program {
    /// An array without a value: an input of graphs to be recorded. Evaluating what depends on it is an error.
    ///
    /// # Errors
    /// What MLX reports of the stream.
    #[track_caller]
    pub fn placeholder(meta: &Meta) -> Result<Array> {
        let stream = Stream::current_cpu()?;
        Array::filled("placeholder", |res| {
            // SAFETY: (2), (3); the shape is as long as said.
            unsafe {
                sys::strata_placeholder(
                    res,
                    meta.shape.as_ptr(),
                    meta.shape.len(),
                    dtype_to_c(meta.dtype),
                    stream.raw(),
                )
            }
        })
    }

    /// Records the host kernels, and changes of shape, that lead from placeholders to `outputs`. What depends on no
    /// placeholder is computed now and keeps its value in every run.
    ///
    /// # Errors
    /// What MLX reports of computing that.
    #[track_caller]
    pub fn record(inputs: &[&Array], outputs: &[&Array]) -> Result<Recorded> {
        error_slot::install();
        let stream = Stream::current_cpu()?;
        let inputs = VectorArray::from_arrays(inputs.iter().copied());
        let outputs = VectorArray::from_arrays(outputs.iter().copied());
        let mut program = sys::strata_program { ctx: std::ptr::null_mut() };
        let mut obstacle = StringHandle::empty();
        // SAFETY: (2), (3).
        status("record", unsafe {
            sys::strata_program_record(
                &raw mut program,
                &raw mut obstacle.0,
                inputs.0,
                outputs.0,
                stream.raw(),
            )
        })?;
        Ok(if program.ctx.is_null() {
            Recorded::Obstacle(obstacle.to_text())
        } else {
            Recorded::Program(Self(program))
        })
    }

    /// Adds a run to the graph: outputs as they were recorded, for inputs of the placeholders' shapes and types. An output
    /// that took over an input's memory in the recorded graph does so here, when nobody else needs the input.
    ///
    /// # Errors
    /// Inputs that are not as recorded.
    #[track_caller]
    pub fn apply(&self, inputs: &[&Array]) -> Result<Vec<Array>> {
        let inputs = VectorArray::from_arrays(inputs.iter().copied());
        let mut outputs = VectorArray::empty();
        // SAFETY: (2), (3); the handle is live as long as `self`.
        status("program", unsafe { sys::strata_program_apply(&raw mut outputs.0, inputs.0, self.0) })?;
        outputs.to_arrays()
    }
}

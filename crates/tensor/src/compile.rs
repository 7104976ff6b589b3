//! Compiled functions: MLX traces a closure once for each set of input shapes and runs the fused graph afterwards.
//!
//! What changes between calls must be an input: a host value that the closure reads is baked into the trace. Pass
//! positions and counters as 0-d arrays. [`CompiledFunction::traces`] counts how often the closure really ran, so a
//! test can insist that it does not run again.

use crate::error::Result;
use crate::raw::{self, Array};
use std::cell::Cell;
use std::rc::Rc;

/// A compiled closure. Its traces are freed with it.
pub struct CompiledFunction {
    inner: raw::Compiled,
    traces: Rc<Cell<usize>>,
}

/// Compiles `function` at its first call. With `shapeless`, one trace serves inputs of all shapes (of the same rank and
/// types): the closure must then not read lengths.
///
/// ```
/// use strata_tensor::{Array, compile::compile};
/// let double = compile(|x: &[Array]| Ok(vec![x[0].add(&x[0])?]), true);
/// for n in 1..4 {
///     let x = Array::from_slice(&vec![1.5f32; n], [n as i32])?;
///     assert_eq!(double.call(&[&x])?[0].to_vec::<f32>()?, vec![3.0; n]);
/// }
/// assert_eq!(double.traces(), 1);
/// # Ok::<(), strata_tensor::Error>(())
/// ```
pub fn compile(
    mut function: impl FnMut(&[Array]) -> Result<Vec<Array>> + 'static,
    shapeless: bool,
) -> CompiledFunction {
    let traces = Rc::new(Cell::new(0));
    let count = Rc::clone(&traces);
    let inner = raw::Compiled::new(
        move |inputs| {
            count.set(count.get() + 1);
            function(inputs)
        },
        shapeless,
    );
    CompiledFunction { inner, traces }
}

impl CompiledFunction {
    /// Runs the function.
    ///
    /// # Errors
    /// The closure's own error when it had to be traced, or what MLX reports.
    #[track_caller]
    pub fn call(&self, inputs: &[&Array]) -> Result<Vec<Array>> {
        self.inner.call(inputs)
    }

    /// How often the closure has been traced.
    pub fn traces(&self) -> usize {
        self.traces.get()
    }
}

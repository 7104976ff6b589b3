//! Rust closures as MLX functions, compiled.

use super::array::Array;
use super::error_slot::{self, status};
use super::handle::{VectorArray, borrowed_arrays, owned_handle};
use crate::error::{Error, Result};
use std::cell::{OnceCell, RefCell};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use strata_sys as sys;

owned_handle!(
    /// An MLX function.
    Closure, mlx_closure, mlx_closure_new, mlx_closure_free
);

type Function = dyn FnMut(&[Array]) -> Result<Vec<Array>>;

/// What MLX keeps for us behind the function.
struct Payload(RefCell<Box<Function>>);

thread_local! {
    /// The error of the closure that is running; MLX itself only learns that it failed.
    static FAILURE: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// A function, compiled when it is first called.
pub(crate) struct Compiled {
    made: OnceCell<Closure>,
    source: Closure,
    shapeless: bool,
}

impl Compiled {
    pub(crate) fn new(
        function: impl FnMut(&[Array]) -> Result<Vec<Array>> + 'static,
        shapeless: bool,
    ) -> Self {
        error_slot::install();
        let payload = Box::into_raw(Box::new(Payload(RefCell::new(Box::new(function)))));
        // SAFETY: (1) the closure owns the payload from here on and drops it once with `release`.
        let source =
            Closure(unsafe { sys::mlx_closure_new_func_payload(Some(call), payload.cast(), Some(release)) });
        Self { made: OnceCell::new(), source, shapeless }
    }

    #[track_caller]
    pub(crate) fn call(&self, inputs: &[&Array]) -> Result<Vec<Array>> {
        let compiled = match self.made.get() {
            Some(compiled) => compiled,
            None => self.compile()?,
        };
        let inputs = VectorArray::from_arrays(inputs.iter().copied());
        let mut out = VectorArray::empty();
        FAILURE.take();
        // SAFETY: (2), (3), (5).
        let code = unsafe { sys::mlx_closure_apply(&raw mut out.0, compiled.0, inputs.0) };
        if code != 0
            && let Some(error) = FAILURE.take()
        {
            let _ = error_slot::taken("compiled function");
            return Err(error);
        }
        status("compiled function", code)?;
        out.to_arrays()
    }

    /// On a CPU the first compilation of a process starts the system's C++ compiler, to see whether there is one: some 20 ms.
    #[track_caller]
    fn compile(&self) -> Result<&Closure> {
        let mut compiled = Closure::empty();
        // SAFETY: (2), (3).
        status("compile", unsafe { sys::mlx_compile(&raw mut compiled.0, self.source.0, self.shapeless) })?;
        Ok(self.made.get_or_init(|| compiled))
    }
}

unsafe extern "C" fn call(
    out: *mut sys::mlx_vector_array,
    inputs: sys::mlx_vector_array,
    payload: *mut c_void,
) -> c_int {
    // SAFETY: MLX passes the payload given in `new`, alive as long as the closure.
    let payload = unsafe { &*payload.cast::<Payload>() };
    let result = catch_unwind(AssertUnwindSafe(|| {
        let inputs = borrowed_arrays(inputs)?;
        let mut function = payload
            .0
            .try_borrow_mut()
            .map_err(|_| Error::Closure { message: "it called itself".to_owned() })?;
        function(&inputs)
    }))
    .unwrap_or_else(|panic| Err(Error::Closure { message: panic_message(panic.as_ref()) }));
    match result {
        Ok(arrays) => {
            let arrays = VectorArray::from_arrays(&arrays);
            // SAFETY: (2) `out` is MLX's own handle, filled with copies of our references.
            unsafe { sys::mlx_vector_array_set(out, arrays.0) }
        }
        Err(error) => {
            FAILURE.set(Some(error));
            1
        }
    }
}

unsafe extern "C" fn release(payload: *mut c_void) {
    // SAFETY: `new` made this pointer with `Box::into_raw`, and MLX drops it once. Panics stop here (5).
    let payload = unsafe { Box::from_raw(payload.cast::<Payload>()) };
    let _ = catch_unwind(AssertUnwindSafe(move || drop(payload)));
}

pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it panicked".to_owned())
}

//! THE FENCE: the only `unsafe` of this crate, and the only place that sees `strata_sys`.
//!
//! What every block in here relies on, cited as (1) … (5) in the SAFETY notes:
//!
//! 1. A handle is one owning pointer made by mlx-c. The wrappers here free it exactly once and never hand it out.
//! 2. A call that returns `int` reads its arguments during the call only and writes at most its `res` handles.
//! 3. The error handler is installed before the first call that can fail ([`error_slot::install`] in every door).
//! 4. Handles hold a raw pointer, so no wrapper is `Send` or `Sync`: whatever MLX keeps per thread stays on its thread.
//! 5. Nothing that MLX calls back (closures, host kernels, destructors) unwinds: panics are caught and become errors.
#![allow(unsafe_code)]

mod array;
mod closure;
mod error_slot;
mod handle;
mod host_kernel;
mod io;
mod kernel;
mod memory;
mod ops;
mod program;
mod stream;

pub use array::{Array, Element};
pub(crate) use closure::Compiled;
pub(crate) use error_slot::{calls_left, fail_call};

pub(crate) use host_kernel::apply as apply_host_kernel;
pub(crate) use io::{Gguf, load_gguf, load_safetensors, save_safetensors};
pub(crate) use kernel::{CudaKernel, MetalKernel, Source as KernelSource};
pub use kernel::{Launch, TemplateValue};
pub(crate) use ops::*;
pub use program::Program;
pub use stream::{Device, Stream};
pub(crate) mod counters {
    //! Memory limits and counters.
    pub use super::memory::*;
}

#![doc = include_str!("../README.md")]
//! # What C promises
//!
//! * A handle (`mlx_array`, `mlx_vector_array`, …) is one owning pointer; it is freed once with its `_free` function. A
//!   function that returns through `mlx_array* res` replaces what `res` held.
//! * A function that returns `int` gives 0, or 1 after passing a message to the process-wide error handler. **The
//!   default handler prints and exits**, so a handler must be installed before the first call that can fail.
//! * Arrays, and the streams made on a thread, belong to that thread.
//!
//! The functions of our own shim start with `strata_` and are described in `src/shim/host.h`.
#![allow(missing_docs, reason = "generated from C headers, which hold the documentation")]

mod bindings;

pub use bindings::*;

/// Which libmlx this was built against: `cpu`, `cuda-12`, `cuda-13`, `metal` or `custom`.
pub const BACKEND: &str = env!("STRATA_MLX_BACKEND_BUILT");

/// Folder of the libmlx this was built against, outside the build folder.
pub const LIB_DIR: &str = env!("STRATA_MLX_LIB_DIR");

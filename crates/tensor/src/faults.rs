//! Failures to order: what is built on arrays promises to survive a failure anywhere, and tests ask for one everywhere.
//! Nothing fails unless it is asked for.

use crate::raw::{calls_left, fail_call};

/// Runs `f` so that the `nth` call of MLX in it, from 1 on, fails on this thread: an operation or an evaluation, which
/// reports an error after it has run. Gives what `f` gives, and whether there were so many calls.
///
/// ```
/// use strata_tensor::{Array, faults};
/// let x = Array::from_f32(1.0);
/// let (second, failed) = faults::at_call(2, || x.exp()?.sqrt());
/// assert!(failed && second.unwrap_err().to_string().contains("failed to order"));
/// assert!(x.exp().is_ok());
/// ```
pub fn at_call<T>(nth: u64, f: impl FnOnce() -> T) -> (T, bool) {
    fail_call(nth);
    let out = f();
    let failed = nth > 0 && calls_left() == 0;
    fail_call(0);
    (out, failed)
}

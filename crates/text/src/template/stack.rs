//! Work on a stack that hostile templates cannot exhaust.
//!
//! minijinja parses chains of operators and drops nested values recursively, without a limit of its own (3.1). Depth
//! is bounded by the size of the template and by the fuel of a render, so a stack that fits both makes an overflow,
//! which would end the process, impossible. The memory is only reserved: what a render does not touch costs nothing.

use std::io;
use std::thread;

/// Bytes of stack. The deepest values that the fuel pays for overflow 64 MiB and fit 128.
const STACK: usize = 512 << 20;

/// Runs `work` on its own thread and waits for it.
pub(super) fn with_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("template".to_owned()).stack_size(STACK);
        match thread.spawn_scoped(scope, work)?.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

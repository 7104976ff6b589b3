//! mlx-c's process-wide error handler, and the message it leaves for the calling thread.

use crate::error::Error;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::Location;
use std::sync::Once;

thread_local! {
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
    /// Calls until one is to fail; 0: none is.
    static CALLS_LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Installs our handler once per process. mlx-c's own handler prints and exits, so every door passes here first.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `keep` has the expected signature and lives as long as the process; there is no payload to drop.
        unsafe { strata_sys::mlx_set_error_handler(Some(keep), std::ptr::null_mut(), None) };
        stand_in_for_main();
    });
}

/// Lets MLX take a thread that never evaluates anything for its main one. On that thread it reports a failed task in the
/// middle of queueing another evaluation (mlx/scheduler.cpp, 0.32.2, `StreamThread::enqueue`): what comes behind is left
/// half evaluated, and now and then a count of running tasks stays too high, for which evaluations later wait for ever.
/// On any other thread a failure is reported once everything has been queued and run.
fn stand_in_for_main() {
    let (started, starts) = std::sync::mpsc::channel();
    let stand_in = move || {
        // SAFETY: makes a process-wide object and remembers the thread's id.
        unsafe { strata_sys::strata_start_scheduler() };
        let _ = started.send(());
        // A thread that ended would leave its id to the next one.
        loop {
            std::thread::park();
        }
    };
    let thread = std::thread::Builder::new().name("strata-mlx-main".to_owned()).stack_size(256 << 10);
    if thread.spawn(stand_in).is_ok() {
        let _ = starts.recv();
    }
}

extern "C" fn keep(message: *const c_char, _data: *mut c_void) {
    if message.is_null() {
        return;
    }
    // SAFETY: mlx-c passes a NUL-terminated string that lives during this call (mlx/c/error.cpp).
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    // mlx-c appends the place in its own sources, which tells a user nothing.
    let text = text.rfind(" at /").map_or(text.as_ref(), |at| &text[..at]).to_owned();
    // At thread exit the slot may be gone; then nobody is left to read the message.
    let _ = MESSAGE.try_with(|slot| slot.replace(Some(text)));
}

/// Turns a status into a result, taking this thread's message.
#[track_caller]
pub(crate) fn status(op: &'static str, code: c_int) -> Result<(), Error> {
    if code != 0 {
        return Err(taken(op));
    }
    match CALLS_LEFT.get() {
        0 => Ok(()),
        left => {
            CALLS_LEFT.set(left - 1);
            if left == 1 {
                Err(Error::mlx(op, "failed to order".to_owned(), Location::caller()))
            } else {
                Ok(())
            }
        }
    }
}

/// Has the `nth` call from now on fail on this thread; 0: none.
pub(crate) fn fail_call(nth: u64) {
    CALLS_LEFT.set(nth);
}

/// Calls until one is to fail on this thread; 0: none is.
pub(crate) fn calls_left() -> u64 {
    CALLS_LEFT.get()
}

/// The error that the failed call `op` left on this thread.
#[track_caller]
pub(crate) fn taken(op: &'static str) -> Error {
    let message = MESSAGE.take().unwrap_or_else(|| "failed without a message".to_owned());
    Error::mlx(op, message, Location::caller())
}

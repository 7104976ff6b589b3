//! MLX's memory limits and counters, in bytes.

use super::error_slot::{self, status};
use crate::error::Result;
use std::sync::OnceLock;
use strata_sys as sys;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident => $f:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// None in practice; MLX's status is passed on.
        pub fn $name() -> Result<usize> {
            error_slot::install();
            let mut out = 0;
            // SAFETY: (2), (3).
            status(stringify!($name), unsafe { sys::$f(&raw mut out) })?;
            Ok(out)
        }
    )*};
}

counters! {
    /// Bytes held by live arrays.
    active_memory => mlx_get_active_memory;
    /// Bytes of freed buffers kept for reuse.
    cache_memory => mlx_get_cache_memory;
    /// Highest value of [`active_memory`] since the start or the last [`reset_peak_memory`].
    peak_memory => mlx_get_peak_memory;
    /// Bytes MLX may hold before it waits for running work.
    memory_limit => mlx_get_memory_limit;
}

/// Sets [`memory_limit`] and gives the previous one.
///
/// # Errors
/// What MLX reports.
pub fn set_memory_limit(bytes: usize) -> Result<usize> {
    error_slot::install();
    let mut previous = 0;
    // SAFETY: (2), (3).
    status("set_memory_limit", unsafe { sys::mlx_set_memory_limit(&raw mut previous, bytes) })?;
    Ok(previous)
}

/// Sets how many bytes of freed buffers are kept, and gives the previous limit.
///
/// # Errors
/// What MLX reports.
pub fn set_cache_limit(bytes: usize) -> Result<usize> {
    error_slot::install();
    let mut previous = 0;
    // SAFETY: (2), (3).
    status("set_cache_limit", unsafe { sys::mlx_set_cache_limit(&raw mut previous, bytes) })?;
    Ok(previous)
}

/// Gives back the buffers kept for reuse.
///
/// # Errors
/// What MLX reports.
pub fn clear_cache() -> Result<()> {
    error_slot::install();
    // SAFETY: (2), (3).
    status("clear_cache", unsafe { sys::mlx_clear_cache() })
}

/// Starts a new measurement of [`peak_memory`].
///
/// # Errors
/// What MLX reports.
pub fn reset_peak_memory() -> Result<()> {
    error_slot::install();
    // SAFETY: (2), (3).
    status("reset_peak_memory", unsafe { sys::mlx_reset_peak_memory() })
}

/// Bytes that one array may have: all memory and swap. Linux refuses a larger allocation, and MLX's CPU allocator
/// writes through the null pointer that it then gets. No limit where the kernel does not tell.
pub(super) fn most_bytes() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = |name: &str| -> Option<usize> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        kib("MemTotal:")
            .and_then(|memory| memory.checked_add(kib("SwapTotal:").unwrap_or(0))?.checked_mul(1024))
            .unwrap_or(usize::MAX)
    })
}

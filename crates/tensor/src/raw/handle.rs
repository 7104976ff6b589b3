//! Owned handles: made by mlx-c, freed once when dropped.

use super::array::Array;
use super::error_slot::status;
use crate::error::Result;
use smallvec::SmallVec;
use std::ffi::{CStr, CString};

/// Declares a wrapper that owns one mlx-c handle.
macro_rules! owned_handle {
    ($(#[$doc:meta])* $name:ident, $raw:ident, $new:ident, $free:ident) => {
        $(#[$doc])*
        pub(crate) struct $name(pub(super) strata_sys::$raw);

        impl $name {
            /// An empty handle for a call to fill.
            pub(super) fn empty() -> Self {
                $crate::raw::error_slot::install();
                // SAFETY: (1) makes an empty handle.
                Self(unsafe { strata_sys::$new() })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: (1) this wrapper owns the handle.
                unsafe { strata_sys::$free(self.0) };
            }
        }
    };
}
pub(super) use owned_handle;

owned_handle!(
    /// A vector of arrays on its way into or out of a call.
    VectorArray, mlx_vector_array, mlx_vector_array_new, mlx_vector_array_free
);
owned_handle!(
    /// A vector of strings on its way into a call.
    VectorString, mlx_vector_string, mlx_vector_string_new, mlx_vector_string_free
);
owned_handle!(
    /// A string that mlx-c fills.
    StringHandle, mlx_string, mlx_string_new, mlx_string_free
);

impl VectorArray {
    pub(crate) fn from_arrays<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Self {
        crate::raw::error_slot::install();
        let raw: SmallVec<[_; 16]> = arrays.into_iter().map(Array::raw).collect();
        // SAFETY: (2) makes a vector of copies of the arrays' references.
        Self(unsafe { strata_sys::mlx_vector_array_new_data(raw.as_ptr(), raw.len()) })
    }

    pub(crate) fn to_arrays(&self) -> Result<Vec<Array>> {
        borrowed_arrays(self.0)
    }
}

/// References of their own to the arrays of a vector that somebody else owns.
pub(super) fn borrowed_arrays(vector: strata_sys::mlx_vector_array) -> Result<Vec<Array>> {
    // SAFETY: (2) reads the length.
    let len = unsafe { strata_sys::mlx_vector_array_size(vector) };
    (0..len)
        .map(|i| {
            Array::filled("vector_array_get", |res| {
                // SAFETY: (2) and `i` is below the length.
                unsafe { strata_sys::mlx_vector_array_get(res, vector, i) }
            })
        })
        .collect()
}

impl VectorString {
    pub(crate) fn from_strings(strings: &[&str]) -> Result<Self> {
        let vector = Self::empty();
        for s in strings {
            let text = c_string(s)?;
            // SAFETY: (2) copies the string.
            status("vector_string", unsafe {
                strata_sys::mlx_vector_string_append_value(vector.0, text.as_ptr())
            })?;
        }
        Ok(vector)
    }
}

impl StringHandle {
    pub(crate) fn to_text(&self) -> String {
        // SAFETY: (1) the pointer is null or a NUL-terminated string that lives as long as the handle.
        unsafe {
            let data = strata_sys::mlx_string_data(self.0);
            if data.is_null() { String::new() } else { CStr::from_ptr(data).to_string_lossy().into_owned() }
        }
    }
}

/// A C string, or an error naming the text that holds a NUL.
pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| crate::Error::NulInText { text: text.replace('\0', "\\0") })
}

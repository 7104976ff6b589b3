//! MLX's own readers and writers of safetensors and GGUF.

use super::array::Array;
use super::error_slot::status;
use super::handle::{StringHandle, VectorString, c_string, owned_handle};
use super::stream::Stream;
use crate::error::Result;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::path::Path;
use strata_sys as sys;

owned_handle!(
    /// Arrays by name.
    ArrayMap, mlx_map_string_to_array, mlx_map_string_to_array_new, mlx_map_string_to_array_free
);
owned_handle!(
    /// Strings by name.
    StringMap, mlx_map_string_to_string, mlx_map_string_to_string_new, mlx_map_string_to_string_free
);
owned_handle!(
    /// A GGUF file that MLX has read.
    Gguf, mlx_io_gguf, mlx_io_gguf_new, mlx_io_gguf_free
);

/// Arrays and metadata of a safetensors file.
type Contents = (BTreeMap<String, Array>, BTreeMap<String, String>);

/// MLX has readers for the CPU only.
fn cpu() -> Result<Stream> {
    Stream::default_of(super::Device::Cpu)
}

fn path_text(path: &Path) -> Result<std::ffi::CString> {
    c_string(&path.to_string_lossy())
}

#[track_caller]
pub(crate) fn load_safetensors(path: &Path) -> Result<Contents> {
    let file = path_text(path)?;
    let (mut arrays, mut strings) = (ArrayMap::empty(), StringMap::empty());
    let stream = cpu()?;
    // SAFETY: (2), (3).
    status("load_safetensors", unsafe {
        sys::mlx_load_safetensors(&raw mut arrays.0, &raw mut strings.0, file.as_ptr(), stream.raw())
    })?;
    Ok((arrays.entries()?, strings.entries()))
}

#[track_caller]
pub(crate) fn save_safetensors<'a>(
    path: &Path,
    arrays: impl IntoIterator<Item = (&'a str, &'a Array)>,
    metadata: &[(&str, &str)],
) -> Result<()> {
    let file = path_text(path)?;
    let (array_map, string_map) = (ArrayMap::empty(), StringMap::empty());
    for (name, array) in arrays {
        let name = c_string(name)?;
        // SAFETY: (2), (3).
        status("save_safetensors", unsafe {
            sys::mlx_map_string_to_array_insert(array_map.0, name.as_ptr(), array.raw())
        })?;
    }
    for (key, value) in metadata {
        let (key, value) = (c_string(key)?, c_string(value)?);
        // SAFETY: (2), (3).
        status("save_safetensors", unsafe {
            sys::mlx_map_string_to_string_insert(string_map.0, key.as_ptr(), value.as_ptr())
        })?;
    }
    // SAFETY: (2), (3).
    status("save_safetensors", unsafe { sys::mlx_save_safetensors(file.as_ptr(), array_map.0, string_map.0) })
}

#[track_caller]
pub(crate) fn load_gguf(path: &Path) -> Result<Gguf> {
    let file = path_text(path)?;
    let mut out = Gguf::empty();
    let stream = cpu()?;
    // SAFETY: (2), (3).
    status("load_gguf", unsafe { sys::mlx_load_gguf(&raw mut out.0, file.as_ptr(), stream.raw()) })?;
    Ok(out)
}

impl Gguf {
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut keys = VectorString::empty();
        // SAFETY: (2), (3).
        status("gguf_keys", unsafe { sys::mlx_io_gguf_get_keys(&raw mut keys.0, self.0) })?;
        keys.to_strings()
    }

    pub(crate) fn array(&self, name: &str) -> Result<Array> {
        let name = c_string(name)?;
        Array::filled("gguf_array", |out| {
            // SAFETY: (2), (3).
            unsafe { sys::mlx_io_gguf_get_array(out, self.0, name.as_ptr()) }
        })
    }

    pub(crate) fn metadata_text(&self, key: &str) -> Result<Option<String>> {
        let key = c_string(key)?;
        let mut found = false;
        // SAFETY: (2), (3).
        let code = unsafe { sys::mlx_io_gguf_has_metadata_string(&raw mut found, self.0, key.as_ptr()) };
        // 2 says that there is no such key.
        status("gguf_metadata", i32::from(code == 1))?;
        if !found {
            return Ok(None);
        }
        let mut out = StringHandle::empty();
        // SAFETY: (2), (3).
        status("gguf_metadata", unsafe {
            sys::mlx_io_gguf_get_metadata_string(&raw mut out.0, self.0, key.as_ptr())
        })?;
        Ok(Some(out.to_text()))
    }
}

impl VectorString {
    fn to_strings(&self) -> Result<Vec<String>> {
        // SAFETY: (2) reads the length.
        let len = unsafe { sys::mlx_vector_string_size(self.0) };
        (0..len)
            .map(|i| {
                let mut text: *mut c_char = std::ptr::null_mut();
                // SAFETY: (2); `i` is below the length.
                status("vector_string", unsafe { sys::mlx_vector_string_get(&raw mut text, self.0, i) })?;
                // SAFETY: the vector owns the string, which outlives this borrow of it.
                Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
            })
            .collect()
    }
}

impl ArrayMap {
    fn entries(&self) -> Result<BTreeMap<String, Array>> {
        let mut out = BTreeMap::new();
        // SAFETY: (1); freed below.
        let iterator = unsafe { sys::mlx_map_string_to_array_iterator_new(self.0) };
        let mut failure = Ok(());
        loop {
            let mut key: *const c_char = std::ptr::null();
            let mut more = false;
            let value = Array::filled("map_next", |value| {
                // SAFETY: (2); 2 means the end.
                let code =
                    unsafe { sys::mlx_map_string_to_array_iterator_next(&raw mut key, value, iterator) };
                more = code == 0;
                i32::from(code == 1)
            });
            match value {
                Ok(array) if more => {
                    // SAFETY: the map owns the key.
                    out.insert(unsafe { CStr::from_ptr(key) }.to_string_lossy().into_owned(), array);
                }
                Ok(_) => break,
                Err(e) => {
                    failure = Err(e);
                    break;
                }
            }
        }
        // SAFETY: (1).
        unsafe { sys::mlx_map_string_to_array_iterator_free(iterator) };
        failure.map(|()| out)
    }
}

impl StringMap {
    fn entries(&self) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        // SAFETY: (1); freed below. Keys and values belong to the map.
        unsafe {
            let iterator = sys::mlx_map_string_to_string_iterator_new(self.0);
            let (mut key, mut value): (*const c_char, *const c_char) = (std::ptr::null(), std::ptr::null());
            while sys::mlx_map_string_to_string_iterator_next(&raw mut key, &raw mut value, iterator) == 0 {
                let text = |p| CStr::from_ptr(p).to_string_lossy().into_owned();
                out.insert(text(key), text(value));
            }
            sys::mlx_map_string_to_string_iterator_free(iterator);
        }
        out
    }
}

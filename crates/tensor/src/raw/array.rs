//! The array handle: made from host data, read back, cloned and dropped.

use super::error_slot::{self, status, taken};
use super::handle::StringHandle;
use super::memory::most_bytes;
use crate::error::{Error, Result};
use crate::shape::Shape;
use std::any::Any;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::panic::Location;
use strata_contracts::Dtype;
use strata_sys as sys;

/// A lazy n-dimensional array: a cheap, reference-counted handle to a node of MLX's graph.
///
/// Cloning copies the reference, never the data. An operation only records what to compute; [`Array::eval`], reading
/// the data, or [`crate::eval`] computes it. Arrays stay on the thread that made them: they are neither `Send` nor
/// `Sync`.
///
/// ```compile_fail,E0277
/// let x = strata_tensor::Array::from_f32(1.0);
/// std::thread::spawn(move || drop(x));
/// ```
pub struct Array {
    handle: sys::mlx_array,
}

/// Rust types that are elements of arrays.
pub trait Element: bytemuck::AnyBitPattern + private::Sealed {
    /// The matching element type.
    const DTYPE: Dtype;
}

mod private {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        impl private::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}
elements! {
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    half::f16 => Float16, half::bf16 => Bfloat16, f32 => Float32, f64 => Float64,
}

pub(super) const fn dtype_to_c(dtype: Dtype) -> sys::mlx_dtype {
    match dtype {
        Dtype::Bool => sys::MLX_BOOL,
        Dtype::Uint8 => sys::MLX_UINT8,
        Dtype::Uint16 => sys::MLX_UINT16,
        Dtype::Uint32 => sys::MLX_UINT32,
        Dtype::Uint64 => sys::MLX_UINT64,
        Dtype::Int8 => sys::MLX_INT8,
        Dtype::Int16 => sys::MLX_INT16,
        Dtype::Int32 => sys::MLX_INT32,
        Dtype::Int64 => sys::MLX_INT64,
        Dtype::Float16 => sys::MLX_FLOAT16,
        Dtype::Bfloat16 => sys::MLX_BFLOAT16,
        Dtype::Float32 => sys::MLX_FLOAT32,
        Dtype::Float64 => sys::MLX_FLOAT64,
        Dtype::Complex64 => sys::MLX_COMPLEX64,
    }
}

pub(super) fn dtype_from_c(dtype: sys::mlx_dtype) -> Dtype {
    match dtype {
        sys::MLX_BOOL => Dtype::Bool,
        sys::MLX_UINT8 => Dtype::Uint8,
        sys::MLX_UINT16 => Dtype::Uint16,
        sys::MLX_UINT32 => Dtype::Uint32,
        sys::MLX_UINT64 => Dtype::Uint64,
        sys::MLX_INT8 => Dtype::Int8,
        sys::MLX_INT16 => Dtype::Int16,
        sys::MLX_INT32 => Dtype::Int32,
        sys::MLX_INT64 => Dtype::Int64,
        sys::MLX_FLOAT16 => Dtype::Float16,
        sys::MLX_BFLOAT16 => Dtype::Bfloat16,
        sys::MLX_FLOAT32 => Dtype::Float32,
        sys::MLX_FLOAT64 => Dtype::Float64,
        // MLX has no further types; its enum is closed at the pinned version.
        _ => Dtype::Complex64,
    }
}

impl Array {
    /// Runs a call that fills a fresh handle, and refuses an array that could never be computed.
    #[track_caller]
    pub(super) fn filled(op: &'static str, call: impl FnOnce(*mut sys::mlx_array) -> c_int) -> Result<Self> {
        error_slot::install();
        let mut out = Self::empty();
        status(op, call(&raw mut out.handle))?;
        out.of_possible_size(op)
    }

    /// Takes over a handle that a call has filled.
    #[track_caller]
    pub(super) fn owning(op: &'static str, handle: sys::mlx_array) -> Result<Self> {
        Self { handle }.of_possible_size(op)
    }

    #[track_caller]
    fn of_possible_size(self, op: &'static str) -> Result<Self> {
        let (bytes, most) = (self.nbytes(), most_bytes());
        if bytes <= most {
            return Ok(self);
        }
        let (shape, dtype) = (self.shape(), self.dtype());
        let message = format!("shape {shape} of {dtype} takes {bytes} bytes, but there are {most}");
        Err(Error::mlx(op, message, Location::caller()))
    }

    fn empty() -> Self {
        // SAFETY: (1) makes an empty handle.
        Self { handle: unsafe { sys::mlx_array_new() } }
    }

    pub(super) fn raw(&self) -> sys::mlx_array {
        self.handle
    }

    /// The null handle that stands for an absent optional argument.
    pub(super) fn raw_or_null(array: Option<&Self>) -> sys::mlx_array {
        array.map_or(sys::mlx_array { ctx: std::ptr::null_mut() }, Self::raw)
    }

    #[track_caller]
    fn made(op: &'static str, make: impl FnOnce() -> sys::mlx_array) -> Result<Self> {
        error_slot::install();
        let handle = make();
        if handle.ctx.is_null() { Err(taken(op)) } else { Ok(Self { handle }) }
    }

    /// An array with a copy of `data`, which must hold `shape`'s elements of `dtype`.
    #[track_caller]
    pub(crate) fn copied(data: &[u8], shape: &Shape, dtype: Dtype) -> Result<Self> {
        shape.check_bytes(dtype, data.len())?;
        let dims = shape.as_slice();
        Self::made("from_slice", || {
            // SAFETY: (2), (3); `data` holds as many bytes as the call copies, checked above.
            unsafe {
                sys::mlx_array_new_data(
                    data.as_ptr().cast(),
                    dims.as_ptr(),
                    dims.len() as c_int,
                    dtype_to_c(dtype),
                )
            }
        })
    }

    /// An array over bytes that `owner` keeps alive and unchanged; MLX copies them where its allocator can't adopt them.
    #[track_caller]
    pub(crate) fn adopted<O: AsRef<[u8]> + Send + Sync + 'static>(
        owner: O,
        range: std::ops::Range<usize>,
        shape: &Shape,
        dtype: Dtype,
    ) -> Result<Self> {
        let bytes = owner.as_ref().get(range.clone()).ok_or(Error::HostRange {
            start: range.start,
            end: range.end,
            len: owner.as_ref().len(),
        })?;
        shape.check_bytes(dtype, bytes.len())?;
        if !(bytes.as_ptr() as usize).is_multiple_of(dtype.size()) {
            return Self::copied(bytes, shape, dtype);
        }
        let data = bytes.as_ptr().cast_mut().cast::<c_void>();
        let payload: Box<Box<dyn Any + Send + Sync>> = Box::new(Box::new(owner));
        let payload = Box::into_raw(payload);
        let dims = shape.as_slice();
        Self::made("from_bytes", || {
            // SAFETY: (2), (3); the bytes live until `release` drops their owner, which MLX calls once, from whichever
            // thread drops the last reference: the owner is Send. MLX never writes to them: an input's buffer is reused
            // for an output only when MLX's own allocator made it or the array is donated, and mapped files are mapped
            // copy-on-write (strata-artifacts).
            unsafe {
                sys::mlx_array_new_data_managed_payload(
                    data,
                    dims.as_ptr(),
                    dims.len() as c_int,
                    dtype_to_c(dtype),
                    payload.cast(),
                    Some(release),
                )
            }
        })
    }

    /// Number of dimensions.
    pub fn ndim(&self) -> usize {
        // SAFETY: (1) reads the header.
        unsafe { sys::mlx_array_ndim(self.handle) }
    }

    /// Number of elements.
    pub fn size(&self) -> usize {
        // SAFETY: (1) reads the header.
        unsafe { sys::mlx_array_size(self.handle) }
    }

    /// Bytes of all elements.
    pub fn nbytes(&self) -> usize {
        // SAFETY: (1) reads the header.
        unsafe { sys::mlx_array_nbytes(self.handle) }
    }

    /// Length of each dimension.
    pub fn shape(&self) -> Shape {
        self.dims().into()
    }

    fn dims(&self) -> &[i32] {
        let ndim = self.ndim();
        if ndim == 0 {
            return &[];
        }
        // SAFETY: (1) the pointer has `ndim` entries and lives as long as this reference of the array.
        unsafe { std::slice::from_raw_parts(sys::mlx_array_shape(self.handle), ndim) }
    }

    /// Length of dimension `axis`; negative axes count from the end. 0 for an axis that does not exist.
    pub fn dim(&self, axis: i32) -> i32 {
        let dims = self.dims();
        let index = if axis < 0 { axis + dims.len() as i32 } else { axis };
        usize::try_from(index).ok().and_then(|i| dims.get(i)).copied().unwrap_or(0)
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        // SAFETY: (1) reads the header.
        dtype_from_c(unsafe { sys::mlx_array_dtype(self.handle) })
    }

    /// Computes this array and everything it needs, and waits.
    ///
    /// # Errors
    /// What MLX reports: out of memory, a failed kernel.
    #[track_caller]
    pub fn eval(&self) -> Result<()> {
        // SAFETY: (2).
        status("eval", unsafe { sys::mlx_array_eval(self.handle) })
    }

    /// True when the data has been computed.
    ///
    /// # Errors
    /// None in practice; MLX's status is passed on.
    pub fn is_available(&self) -> Result<bool> {
        let mut out = false;
        // SAFETY: (2).
        status("is_available", unsafe { sys::_mlx_array_is_available(&raw mut out, self.handle) })?;
        Ok(out)
    }

    /// Of the operation that will compute this array, the operand in the array's place among its results: of an update, what
    /// is updated. `None` when the array has been computed or is being computed, and when it was made of nothing.
    ///
    /// # Errors
    /// None in practice; MLX's status is passed on.
    pub fn pending_source(&self) -> Result<Option<Self>> {
        let mut out = Self::empty();
        // SAFETY: (2).
        status("pending_source", unsafe { sys::strata_array_source(&raw mut out.handle, self.handle) })?;
        Ok((!out.handle.ctx.is_null()).then_some(out))
    }

    /// True when the elements lie in memory in row-major order without gaps; evaluates the array.
    pub(crate) fn is_row_contiguous(&self) -> Result<bool> {
        self.eval()?;
        let mut out = false;
        // SAFETY: (2).
        status("is_row_contiguous", unsafe { sys::_mlx_array_is_row_contiguous(&raw mut out, self.handle) })?;
        Ok(out)
    }

    /// Runs `read` over the elements, which must be row-contiguous.
    #[track_caller]
    pub(crate) fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        if !self.is_row_contiguous()? {
            return Err(Error::NotContiguous { shape: self.shape() });
        }
        if self.size() == 0 {
            return Ok(read(&[]));
        }
        // SAFETY: (2); evaluated just above.
        let data = unsafe { sys::strata_array_data(self.handle) };
        if data.is_null() {
            return Err(taken("data"));
        }
        // SAFETY: a row-contiguous, evaluated array has `nbytes` bytes from here on, which nobody writes while `self`
        // is borrowed: MLX reuses a buffer only when no other reference to it is left.
        Ok(read(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), self.nbytes()) }))
    }

    fn text(&self) -> Result<String> {
        let mut out = StringHandle::empty();
        // SAFETY: (2).
        status("to_string", unsafe { sys::mlx_array_tostring(&raw mut out.0, self.handle) })?;
        Ok(out.to_text())
    }
}

unsafe extern "C" fn release(payload: *mut c_void) {
    // SAFETY: `adopted` made this pointer with `Box::into_raw`, and MLX calls the destructor once. A panicking owner
    // must not unwind into C++ (5).
    let owner = unsafe { Box::from_raw(payload.cast::<Box<dyn Any + Send + Sync>>()) };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(owner)));
}

impl Clone for Array {
    fn clone(&self) -> Self {
        let mut out = Self::empty();
        // SAFETY: (1), (2) copies the reference; it fails only for an empty source, which a wrapper never holds.
        unsafe { sys::mlx_array_set(&raw mut out.handle, self.handle) };
        out
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: (1) this wrapper owns the handle.
        unsafe { sys::mlx_array_free(self.handle) };
    }
}

/// Shape and dtype only: printing values would evaluate the array.
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} {})", self.dtype(), self.shape())
    }
}

/// Evaluates the array and prints its values as MLX does.
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Ok(text) => f.write_str(&text),
            Err(e) => write!(f, "<{e}>"),
        }
    }
}

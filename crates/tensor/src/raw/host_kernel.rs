//! Rust functions as primitives of MLX's graph: the trampolines behind [`crate::host::HostKernel`].

use super::array::{Array, dtype_from_c, dtype_to_c};
use super::closure::panic_message;
use super::error_slot::{self, status};
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::host::{HostKernel, Meta, Output, View, ViewMut};
use smallvec::SmallVec;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use strata_sys as sys;

const MAX_NDIM: usize = sys::STRATA_MAX_NDIM as usize;

/// Adds `kernel` to the graph, on this thread's current stream if that is a CPU's, else on its default CPU stream.
#[track_caller]
pub(crate) fn apply<K: HostKernel>(kernel: K, inputs: &[&Array]) -> Result<Vec<Array>> {
    error_slot::install();
    let stream = Stream::current_cpu()?;
    let inputs: SmallVec<[_; 16]> = inputs.iter().map(|input| input.raw()).collect();
    let donations: SmallVec<[c_int; 4]> = K::OUTPUTS
        .iter()
        .map(|o| match o {
            Output::Fresh => -1,
            Output::TakesOver(input) => *input as c_int,
        })
        .collect();
    let kernel = Box::into_raw(Box::new(kernel)).cast::<c_void>();
    let name = K::NAME.to_str().unwrap_or("host kernel");
    let mut outputs: SmallVec<[_; 4]> =
        SmallVec::from_elem(sys::mlx_array { ctx: std::ptr::null_mut() }, K::OUTPUTS.len());
    // SAFETY: (2), (3), (5); the shim owns `kernel` from here on and drops it once; the vtable is a static; there are as
    // many outputs as it says.
    let code = unsafe {
        sys::strata_host_apply(
            outputs.as_mut_ptr(),
            inputs.as_ptr(),
            inputs.len(),
            const { &Vtable::<K>::VTABLE },
            kernel,
            donations.as_ptr(),
            stream.raw(),
        )
    };
    // All handles that were filled get an owner before anything is refused.
    let filled = outputs.into_iter().filter(|handle| !handle.ctx.is_null());
    let outputs: SmallVec<[_; 4]> = filled.map(|handle| Array::owning(name, handle)).collect();
    status(name, code)?;
    outputs.into_iter().collect()
}

struct Vtable<K>(std::marker::PhantomData<K>);

impl<K: HostKernel> Vtable<K> {
    const VTABLE: sys::strata_host_vtable = sys::strata_host_vtable {
        name: K::NAME.as_ptr(),
        n_outputs: K::OUTPUTS.len(),
        infer: Some(infer::<K>),
        run: Some(run::<K>),
        equivalent: Some(equivalent::<K>),
        drop: Some(release::<K>),
    };
}

/// Runs `work` with panics turned into errors, and leaves the error's text in C's buffer.
fn guarded(error: *mut c_char, capacity: usize, work: impl FnOnce() -> Result<(), String>) -> c_int {
    let result =
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panic_message(panic.as_ref())));
    let Err(message) = result else { return 0 };
    let end = message.floor_char_boundary(capacity.saturating_sub(1));
    // SAFETY: the shim gives a buffer of `capacity` bytes; `end` leaves room for the NUL.
    unsafe {
        std::ptr::copy_nonoverlapping(message.as_ptr(), error.cast::<u8>(), end);
        error.add(end).write(0);
    }
    1
}

unsafe extern "C" fn infer<K: HostKernel>(
    kernel: *const c_void,
    inputs: *const sys::strata_view,
    n_inputs: usize,
    outputs: *mut sys::strata_view,
    error: *mut c_char,
    capacity: usize,
) -> c_int {
    // SAFETY: the shim passes the kernel and `n_inputs` views; output views are as many as the vtable says.
    let (kernel, inputs, outputs) = unsafe {
        (
            &*kernel.cast::<K>(),
            views(inputs, n_inputs),
            std::slice::from_raw_parts_mut(outputs, K::OUTPUTS.len()),
        )
    };
    guarded(error, capacity, || {
        let metas: SmallVec<[Meta; 8]> = inputs
            .iter()
            .map(|v| Meta { dtype: dtype_from_c(v.dtype), shape: v.shape[..v.ndim as usize].into() })
            .collect();
        let found = kernel.outputs(&metas)?;
        if found.len() != outputs.len() {
            return Err(format!("declares {} outputs but describes {}", outputs.len(), found.len()));
        }
        for (view, meta) in outputs.iter_mut().zip(found) {
            if meta.shape.len() > MAX_NDIM {
                return Err(format!("an output of shape {} has more than {MAX_NDIM} dimensions", meta.shape));
            }
            meta.shape.elements().map_err(|e| e.to_string())?;
            view.dtype = dtype_to_c(meta.dtype);
            view.ndim = meta.shape.len() as c_int;
            view.shape[..meta.shape.len()].copy_from_slice(&meta.shape);
        }
        Ok(())
    })
}

unsafe extern "C" fn run<K: HostKernel>(
    kernel: *const c_void,
    inputs: *const sys::strata_view,
    n_inputs: usize,
    outputs: *const sys::strata_view,
    error: *mut c_char,
    capacity: usize,
) -> c_int {
    // SAFETY: as in `infer`.
    let (kernel, inputs, outputs) =
        unsafe { (&*kernel.cast::<K>(), views(inputs, n_inputs), views(outputs, K::OUTPUTS.len())) };
    guarded(error, capacity, || {
        let mut read: SmallVec<[View<'_>; 8]> = SmallVec::with_capacity(inputs.len());
        for raw in inputs {
            read.push(input_view(raw)?);
        }
        let mut write: SmallVec<[ViewMut<'_>; 4]> = SmallVec::with_capacity(outputs.len());
        for (raw, output) in outputs.iter().zip(K::OUTPUTS) {
            if let Output::TakesOver(input) = output {
                if raw.data != inputs[*input].data {
                    read[*input].copy_to(output_view(raw).bytes_mut());
                }
                // Input and output may be the same memory now: only the output may be seen.
                read[*input].forget_data();
            }
            write.push(output_view(raw));
        }
        kernel.run(&read, &mut write)
    })
}

unsafe extern "C" fn equivalent<K: HostKernel>(a: *const c_void, b: *const c_void) -> bool {
    // SAFETY: the shim compares kernels of one vtable only, so both are `K`.
    let (a, b) = unsafe { (&*a.cast::<K>(), &*b.cast::<K>()) };
    catch_unwind(AssertUnwindSafe(|| a == b)).unwrap_or(false)
}

unsafe extern "C" fn release<K: HostKernel>(kernel: *mut c_void) {
    // SAFETY: `apply` made this pointer with `Box::into_raw`, and the shim drops it once. Panics stop here (5).
    let kernel = unsafe { Box::from_raw(kernel.cast::<K>()) };
    let _ = catch_unwind(AssertUnwindSafe(move || drop(kernel)));
}

/// The views of a call.
///
/// # Safety
/// `first` must point to `n` views that live during the call.
unsafe fn views<'a>(first: *const sys::strata_view, n: usize) -> &'a [sys::strata_view] {
    // SAFETY: the caller's promise; a slice of length 0 needs no valid pointer but a non-null one.
    if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, n) } }
}

/// The bytes from an input's first element to its last, whatever its strides.
fn input_view(raw: &sys::strata_view) -> Result<View<'_>, String> {
    let ndim = raw.ndim as usize;
    let (shape, strides) = (&raw.shape[..ndim], &raw.strides[..ndim]);
    let dtype = dtype_from_c(raw.dtype);
    let elements = if shape.contains(&0) {
        0
    } else {
        let mut last = 0usize;
        for (&n, &stride) in shape.iter().zip(strides) {
            let stride = usize::try_from(if n == 1 { 0 } else { stride })
                .map_err(|_| "an input has negative strides; call `contiguous` first".to_owned())?;
            last += (n as usize - 1) * stride;
        }
        last + 1
    };
    let bytes = if elements == 0 {
        &[]
    } else {
        // SAFETY: first and last element lie in one buffer, which MLX keeps alive during the task (host.cpp); nobody
        // writes to it meanwhile, since a buffer is reused only when no reader is left.
        unsafe { std::slice::from_raw_parts(raw.data.cast::<u8>().cast_const(), elements * dtype.size()) }
    };
    Ok(View::new(dtype, shape, strides, bytes))
}

fn output_view(raw: &sys::strata_view) -> ViewMut<'_> {
    let shape = &raw.shape[..raw.ndim as usize];
    let dtype = dtype_from_c(raw.dtype);
    let elements: usize = shape.iter().map(|&n| n as usize).product();
    let bytes = if elements == 0 {
        &mut []
    } else {
        // SAFETY: the shim allocated (or took over) a row-contiguous buffer of exactly this size for this output alone.
        unsafe { std::slice::from_raw_parts_mut(raw.data.cast::<u8>(), elements * dtype.size()) }
    };
    ViewMut::new(dtype, shape, bytes)
}

impl Stream {
    /// The current stream if it is a CPU's, else this thread's default CPU stream.
    pub(super) fn current_cpu() -> Result<Self, Error> {
        thread_local! {
            static CPU: std::cell::RefCell<Option<Stream>> = const { std::cell::RefCell::new(None) };
        }
        let current = Self::current()?;
        if current.device()? == super::Device::Cpu {
            return Ok(current);
        }
        CPU.with(|slot| {
            if let Some(stream) = slot.borrow().as_ref() {
                return Ok(stream.clone());
            }
            let stream = Self::default_of(super::Device::Cpu)?;
            slot.replace(Some(stream.clone()));
            Ok(stream)
        })
    }
}

//! Devices and streams.

use super::error_slot::{self, status};
use super::handle::owned_handle;
use crate::error::Result;
use std::cell::RefCell;
use strata_sys as sys;

owned_handle!(
    /// A queue of work on one device, bound to the thread that made it.
    StreamHandle, mlx_stream, mlx_stream_new, mlx_stream_free
);
owned_handle!(
    /// mlx-c's device.
    DeviceHandle, mlx_device, mlx_device_new, mlx_device_free
);

/// Where operations run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    /// The host's processors.
    Cpu,
    /// The GPU with this index.
    Gpu(u16),
}

impl Device {
    fn handle(self) -> DeviceHandle {
        error_slot::install();
        let (kind, index) = match self {
            Self::Cpu => (sys::MLX_CPU, 0),
            Self::Gpu(index) => (sys::MLX_GPU, i32::from(index)),
        };
        // SAFETY: (1) makes a handle.
        DeviceHandle(unsafe { sys::mlx_device_new_type(kind, index) })
    }

    /// True when this device exists and libmlx can use it.
    ///
    /// # Errors
    /// What MLX reports while asking the driver.
    pub fn is_available(self) -> Result<bool> {
        let mut out = false;
        // SAFETY: (2).
        status("device_is_available", unsafe {
            sys::mlx_device_is_available(&raw mut out, self.handle().0)
        })?;
        Ok(out)
    }

    /// True when this is an NVIDIA GPU.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn is_cuda(self) -> Result<bool> {
        let mut out = false;
        // SAFETY: (2).
        status("cuda_is_available", unsafe { sys::mlx_cuda_is_available(&raw mut out) })?;
        Ok(out && self != Self::Cpu)
    }

    /// The device that operations use unless a stream is chosen: the first GPU where there is one.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn current() -> Result<Self> {
        Stream::current()?.device()
    }

    /// Makes this the default device of the process.
    ///
    /// # Errors
    /// MLX's message when the device does not exist.
    pub fn make_default(self) -> Result<()> {
        // SAFETY: (2).
        status("set_default_device", unsafe { sys::mlx_set_default_device(self.handle().0) })?;
        CURRENT.with(|slot| slot.replace(None));
        Ok(())
    }
}

thread_local! {
    /// The stream this thread's operations go to; found on first use.
    static CURRENT: RefCell<Option<Stream>> = const { RefCell::new(None) };
}

/// A queue of work on one device. Like arrays, streams stay on their thread.
pub struct Stream(StreamHandle);

impl Stream {
    /// A new stream on `device`.
    ///
    /// # Errors
    /// MLX's message when the device does not exist.
    pub fn new(device: Device) -> Result<Self> {
        let device = device.handle();
        // SAFETY: (1), (3) makes a handle; null when MLX refused.
        let handle = unsafe { sys::mlx_stream_new_device(device.0) };
        if handle.ctx.is_null() {
            Err(error_slot::taken("stream_new"))
        } else {
            Ok(Self(StreamHandle(handle)))
        }
    }

    /// This thread's default stream on `device`.
    ///
    /// # Errors
    /// MLX's message when the device does not exist.
    pub fn default_of(device: Device) -> Result<Self> {
        let mut out = StreamHandle::empty();
        // SAFETY: (2).
        status("get_default_stream", unsafe {
            sys::mlx_get_default_stream(&raw mut out.0, device.handle().0)
        })?;
        Ok(Self(out))
    }

    /// The stream that this thread's operations go to.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn current() -> Result<Self> {
        let mut device = DeviceHandle::empty();
        // SAFETY: (2).
        status("get_default_device", unsafe { sys::mlx_get_default_device(&raw mut device.0) })?;
        CURRENT.with(|slot| {
            if let Some(stream) = slot.borrow().as_ref() {
                return Ok(stream.clone());
            }
            let mut out = StreamHandle::empty();
            // SAFETY: (2).
            status("get_default_stream", unsafe { sys::mlx_get_default_stream(&raw mut out.0, device.0) })?;
            slot.replace(Some(Self(out)));
            slot.borrow().clone().ok_or_else(|| error_slot::taken("stream"))
        })
    }

    /// Runs `work` with this stream as the one its operations go to.
    pub fn scope<R>(&self, work: impl FnOnce() -> R) -> R {
        struct Restore(Option<Stream>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.with(|slot| slot.replace(self.0.take()));
            }
        }
        let _restore = Restore(CURRENT.with(|slot| slot.replace(Some(self.clone()))));
        work()
    }

    pub(super) fn raw(&self) -> sys::mlx_stream {
        self.0.0
    }

    /// The device this stream feeds.
    ///
    /// # Errors
    /// What MLX reports.
    pub fn device(&self) -> Result<Device> {
        let mut device = DeviceHandle::empty();
        let mut kind = sys::MLX_CPU;
        let mut index = 0;
        // SAFETY: (2), three times.
        unsafe {
            status("stream_get_device", sys::mlx_stream_get_device(&raw mut device.0, self.0.0))?;
            status("device_get_type", sys::mlx_device_get_type(&raw mut kind, device.0))?;
            status("device_get_index", sys::mlx_device_get_index(&raw mut index, device.0))?;
        }
        Ok(if kind == sys::MLX_GPU { Device::Gpu(index as u16) } else { Device::Cpu })
    }

    /// Waits until everything queued here has run.
    ///
    /// # Errors
    /// The first failure of a queued task.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: (2).
        status("synchronize", unsafe { sys::mlx_synchronize(self.0.0) })
    }
}

impl Clone for Stream {
    fn clone(&self) -> Self {
        let mut out = StreamHandle::empty();
        // SAFETY: (2) copies the handle.
        unsafe { sys::mlx_stream_set(&raw mut out.0, self.0.0) };
        Self(out)
    }
}

/// The current stream's handle, valid until the current stream of this thread changes.
#[track_caller]
pub(super) fn current_raw() -> Result<sys::mlx_stream> {
    let known = CURRENT.with(|slot| slot.borrow().as_ref().map(Stream::raw));
    if let Some(raw) = known {
        return Ok(raw);
    }
    Stream::current()?;
    CURRENT.with(|slot| slot.borrow().as_ref().map(Stream::raw)).ok_or_else(|| error_slot::taken("stream"))
}

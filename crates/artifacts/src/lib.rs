#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod gguf;

mod error;
mod mmap;
mod progress;
mod safetensors;
mod write;

pub use error::{Error, Result};
pub use mmap::Mapped;
pub use progress::{Progress, Stage};
pub use safetensors::{HeaderError, SafetensorsFile, TensorInfo, TensorView};
pub use write::{TensorSpec, WeightsWriter, write_bytes, write_json};

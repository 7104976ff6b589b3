#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod gguf;

mod config;
mod error;
mod fetch;
mod json;
mod mmap;
mod model_dir;
mod names;
mod progress;
mod quantization;
mod safetensors;
mod shards;
mod store;
mod weights;
mod write;

pub use config::{ConfigValue, RawConfig, Section, Settings};
pub use error::{Error, Result};
pub use fetch::{Hub, HubError, Pip, Sources, Starter};
pub use mmap::Mapped;
pub use model_dir::ModelDir;
pub use names::{ModelName, RepositoryId};
pub use progress::{Progress, Stage};
pub use quantization::{Quantization, ResolvedQuantization, infer_scheme};
pub use safetensors::{HeaderError, SafetensorsFile, TensorInfo, TensorView};
pub use shards::{ShardError, ShardSet};
pub use store::{Store, StoredModel};
pub use weights::Weights;
pub use write::{TensorSpec, WeightsWriter, write_bytes, write_json};

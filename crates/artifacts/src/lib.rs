#![doc = include_str!("../README.md")]
//!
//! **Why this shape.** Files come from anywhere, so every check stands before the first use of what it protects, in
//! the one file that reads the format, and the types that pass it carry the proof: a [`TensorInfo`] can't name bytes
//! outside its file, a [`ModelDir`] can't lack a shard, a [`Store`] can't hold half a model. Arrays are made from
//! [`Mapped`] bytes by strata-models, so that all of this is tested without a native library.
//!
//! Reading order: a model's folder ([`ModelDir`], [`RawConfig`], [`Quantization`], [`read_kv_config`]), its tensors ([`ShardSet`],
//! [`SafetensorsFile`], [`Weights`]), writing ([`WeightsWriter`]), GGUF ([`gguf`]), and where models come from
//! ([`Sources`], [`ModelName`], [`Store`], [`Starter`], [`Hub`]).
#![deny(unsafe_code)]

pub mod gguf;
pub mod quantize;

mod config;
mod error;
mod fetch;
mod json;
mod kv_config;
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
pub use kv_config::read_kv_config;
pub use mmap::Mapped;
pub use model_dir::ModelDir;
pub use names::{ModelName, RepositoryId};
pub use progress::{Progress, Stage};
pub use quantization::{Quantization, ResolvedQuantization, infer_scheme};
pub use safetensors::{HeaderError, SafetensorsFile, TensorInfo, TensorView};
pub use shards::{ShardError, ShardSet};
pub use store::{Store, StoredModel};
pub use weights::Weights;
pub use write::{MAX_SHARD_BYTES, TensorSpec, WeightsWriter, write_bytes, write_json};

//! GGUF files: read with every bound proven, and converted to a folder in Hugging Face layout.
//!
//! [`Gguf::parse`] checks a file's bytes, [`dequantize`] gives the values of its blocks, and [`convert`] writes the
//! folder that the rest of Strata, mlx-lm and transformers read.

mod affine;
mod architecture;
mod config;
mod convert;
mod dequant;
mod error;
mod metadata;
mod nearest;
mod reader;
mod tokenizer;
mod types;

pub use convert::{ConvertOptions, Inexact, Summary, convert};
pub use dequant::dequantize;
pub use error::GgufError;
pub use metadata::{Array, Metadata, Value};
pub use reader::{Gguf, Tensor};
pub use tokenizer::TokenizerFiles;
pub use types::{Block, TensorType};

//! One file a family. A family never uses another family.

pub(crate) mod gemma;
pub(crate) mod gemma2;
pub(crate) mod gemma3_text;
pub(crate) mod llama;
pub(crate) mod phi3;
pub(crate) mod qwen2;
pub(crate) mod qwen3;
pub(crate) mod qwen3_moe;

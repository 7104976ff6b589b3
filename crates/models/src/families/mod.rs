//! One file a family. A family never uses another family.

pub(crate) mod llama;

//! What can be wrong with a GGUF file, one sentence each: where, what was found, what would be right.

/// An error of reading or converting a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file does not begin with `GGUF`.
    #[error("not a GGUF file: it begins with the bytes {found:02x?} instead of \"GGUF\"")]
    Magic {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// The file was written for big-endian machines.
    #[error("this GGUF file is big endian; only little-endian files are read, so convert it first")]
    BigEndian,
    /// A version of the format that is not read.
    #[error("GGUF version {found} is not supported; versions 2 and 3 are")]
    Version {
        /// The version field.
        found: u32,
    },
    /// A length or a count reaches past the end of the file.
    #[error("the file ends early: {what} at byte {at} needs {wanted} bytes but {available} are left")]
    Truncated {
        /// What was being read.
        what: String,
        /// Byte offset of its start.
        at: usize,
        /// Bytes it needs.
        wanted: u64,
        /// Bytes left in the file.
        available: usize,
    },
    /// A string is not UTF-8.
    #[error("{what} at byte {at} is not valid UTF-8")]
    Utf8 {
        /// What was being read.
        what: String,
        /// Byte offset of the text.
        at: usize,
    },
    /// A metadata key of no characters.
    #[error("metadata entry {index} has an empty key")]
    EmptyKey {
        /// Index of the entry.
        index: u64,
    },
    /// The same metadata key twice.
    #[error("metadata key `{key}` appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type that the format does not have.
    #[error("metadata key `{key}` has value type {code}, which does not exist")]
    ValueType {
        /// The key.
        key: String,
        /// The type code.
        code: u32,
    },
    /// Arrays within arrays, too many of them.
    #[error("metadata key `{key}` nests arrays more than {limit} deep")]
    ArrayDepth {
        /// The key.
        key: String,
        /// The deepest nesting that is read.
        limit: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key `{key}` holds the boolean {found}, which is neither 0 nor 1")]
    Boolean {
        /// The key.
        key: String,
        /// The byte found.
        found: u8,
    },
    /// An alignment that cannot be one.
    #[error("`general.alignment` is {found} but must be a power of two of at least 8")]
    Alignment {
        /// The value found.
        found: u64,
    },
    /// A tensor of no name.
    #[error("tensor {index} has an empty name")]
    EmptyTensorName {
        /// Index of the tensor.
        index: u64,
    },
    /// The same tensor name twice.
    #[error("tensor `{tensor}` appears twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// A number of dimensions that tensors do not have.
    #[error("tensor `{tensor}` has {found} dimensions but must have 1 to 4")]
    Rank {
        /// The name.
        tensor: String,
        /// Dimensions found.
        found: u32,
    },
    /// A dimension of no elements.
    #[error("tensor `{tensor}` has the shape {dims:?}; every dimension must be at least 1")]
    ZeroDimension {
        /// The name.
        tensor: String,
        /// Dimensions as stored, fastest first.
        dims: Vec<u64>,
    },
    /// More elements than a number of bytes can express.
    #[error("tensor `{tensor}` has the shape {dims:?}, more elements than a file can hold")]
    TooLarge {
        /// The name.
        tensor: String,
        /// Dimensions as stored, fastest first.
        dims: Vec<u64>,
    },
    /// A tensor type that is not read.
    #[error("tensor `{tensor}` has type {code} ({name}), which is not supported; supported are {supported}")]
    TensorType {
        /// The name.
        tensor: String,
        /// The type code.
        code: u32,
        /// The format's name of the type.
        name: &'static str,
        /// Names of the supported types.
        supported: String,
    },
    /// A row that is not a whole number of blocks.
    #[error("tensor `{tensor}` has rows of {columns} values, not a whole number of {kind} blocks of {block}")]
    Blocks {
        /// The name.
        tensor: String,
        /// Values in one row.
        columns: usize,
        /// Name of the tensor type.
        kind: &'static str,
        /// Values in one block.
        block: usize,
    },
    /// An offset that breaks the file's alignment.
    #[error(
        "tensor `{tensor}` starts at offset {offset}, which is not a multiple of the alignment {alignment}"
    )]
    Misaligned {
        /// The name.
        tensor: String,
        /// Offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Tensor data past the end of the file.
    #[error(
        "tensor `{tensor}` needs {bytes} bytes at offset {offset} but the data section has {available} bytes"
    )]
    OutOfRange {
        /// The name.
        tensor: String,
        /// Offset in the data section.
        offset: u64,
        /// Bytes of the tensor.
        bytes: usize,
        /// Bytes of the data section.
        available: usize,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
    },
    /// A vector in a type made for matrices.
    #[error("tensor `{tensor}` is a vector of type {kind}; vectors must be F32, F16 or BF16")]
    QuantizedVector {
        /// The name.
        tensor: String,
        /// Name of the tensor type.
        kind: &'static str,
    },
    /// One file of several.
    #[error(
        "this is one of {count} files of a split model; join them first, as `llama-gguf-split --merge` does"
    )]
    Split {
        /// Files of the model.
        count: u32,
    },
    /// A metadata key that the conversion needs.
    #[error("the file has no metadata key `{key}`")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata value of another type.
    #[error("metadata key `{key}` must be {expected} but is {found}")]
    KeyType {
        /// The key.
        key: String,
        /// The type that was needed, in words.
        expected: &'static str,
        /// The type found, in words.
        found: &'static str,
    },
    /// A metadata value outside its range.
    #[error("metadata key `{key}` is {found} but must be {requirement}")]
    KeyValue {
        /// The key.
        key: String,
        /// The value found.
        found: String,
        /// The legal values in words.
        requirement: String,
    },
    /// An architecture that is not converted.
    #[error("architecture `{found}` is not supported; supported are {supported}")]
    Architecture {
        /// Value of `general.architecture`.
        found: String,
        /// Names of the supported architectures.
        supported: String,
    },
    /// A tensor that the architecture does not have.
    #[error("tensor `{tensor}` has no place in a {architecture} model of {layers} layers")]
    UnknownTensor {
        /// The name.
        tensor: String,
        /// The architecture.
        architecture: &'static str,
        /// Layers of the model.
        layers: usize,
    },
    /// A tensor that the architecture needs.
    #[error("the file has no tensor `{tensor}`")]
    MissingTensor {
        /// The name.
        tensor: String,
    },
    /// A tensor of another shape than the metadata says.
    #[error("tensor `{tensor}` has the shape {found:?} but the metadata asks for {expected:?}")]
    TensorShape {
        /// The name.
        tensor: String,
        /// Rows first.
        found: Vec<usize>,
        /// Rows first.
        expected: Vec<usize>,
    },
    /// Rope factors that no Hugging Face rope type describes.
    #[error(
        "tensor `rope_freqs.weight` holds factors that differ from the llama3 rule at index {index}: {found} instead of {expected}"
    )]
    RopeFactors {
        /// Index of the frequency.
        index: usize,
        /// The stored factor.
        found: f32,
        /// The factor by the rule.
        expected: f32,
    },
    /// A tokenizer model that is not converted.
    #[error("tokenizer model `{found}` is not supported; supported are `gpt2` and `llama`")]
    TokenizerModel {
        /// Value of `tokenizer.ggml.model`.
        found: String,
    },
    /// A pre-tokenizer that is not known.
    #[error("pre-tokenizer `{found}` is not supported; supported are {supported}")]
    PreTokenizer {
        /// Value of `tokenizer.ggml.pre`.
        found: String,
        /// Names of the supported pre-tokenizers.
        supported: String,
    },
    /// A vocabulary in which two ids have one text.
    #[error("tokens {first} and {second} have the same text {text:?}")]
    DuplicateToken {
        /// The lower id.
        first: usize,
        /// The higher id.
        second: usize,
        /// Their text.
        text: String,
    },
    /// Two token tables of different length.
    #[error("`{key}` has {found} entries but the vocabulary has {expected} tokens")]
    TableLength {
        /// Key of the table.
        key: &'static str,
        /// Its entries.
        found: usize,
        /// Tokens in the vocabulary.
        expected: usize,
    },
    /// A merge that is not two tokens whose concatenation is a token.
    #[error("merge {index} is {text:?}, which is not two tokens that join to a third")]
    Merge {
        /// Index of the merge.
        index: usize,
        /// Its text.
        text: String,
    },
}

impl GgufError {
    /// The remedy in one sentence, where there is one.
    pub(crate) const fn help(&self) -> Option<&'static str> {
        match self {
            Self::Magic { .. }
            | Self::Truncated { .. }
            | Self::OutOfRange { .. }
            | Self::Overlap { .. }
            | Self::Utf8 { .. }
            | Self::ValueType { .. } => Some("the file is damaged or incomplete: download it again"),
            Self::TensorType { .. } => Some("choose a file of another type, such as Q8_0 or Q4_K_M"),
            Self::Architecture { .. } | Self::TokenizerModel { .. } | Self::PreTokenizer { .. } => {
                Some("use the original model in Hugging Face format instead")
            }
            _ => None,
        }
    }
}

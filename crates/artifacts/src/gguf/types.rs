//! The tensor types that are read, and the sizes of their blocks.
//!
//! Codes and sizes are facts of the format (ggml's `enum ggml_type`; `GGML_QUANT_SIZES` of the Python package
//! `gguf` 0.19). What the bits of a block mean stands in `dequant/`.

/// Element type of a GGUF tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types, reason = "the names are the format's own")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

/// Size of the unit in which a type is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Values in one block.
    pub values: usize,
    /// Bytes of one block.
    pub bytes: usize,
}

impl TensorType {
    /// All types that are read.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
    ];

    /// The type with this code, if it is read.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The code in the file.
    pub const fn code(self) -> u32 {
        self.row().0
    }

    /// The format's name.
    pub const fn name(self) -> &'static str {
        self.row().1
    }

    /// Values and bytes of one block.
    pub const fn block(self) -> Block {
        let (_, _, values, bytes) = self.row();
        Block { values, bytes }
    }

    const fn row(self) -> (u32, &'static str, usize, usize) {
        match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::BF16 => (30, "BF16", 1, 2),
            Self::Q4_0 => (2, "Q4_0", 32, 18),
            Self::Q4_1 => (3, "Q4_1", 32, 20),
            Self::Q5_0 => (6, "Q5_0", 32, 22),
            Self::Q5_1 => (7, "Q5_1", 32, 24),
            Self::Q8_0 => (8, "Q8_0", 32, 34),
            Self::Q2_K => (10, "Q2_K", 256, 84),
            Self::Q3_K => (11, "Q3_K", 256, 110),
            Self::Q4_K => (12, "Q4_K", 256, 144),
            Self::Q5_K => (13, "Q5_K", 256, 176),
            Self::Q6_K => (14, "Q6_K", 256, 210),
            Self::IQ4_NL => (20, "IQ4_NL", 32, 18),
            Self::IQ4_XS => (23, "IQ4_XS", 256, 136),
        }
    }
}

/// The format's name of any code, for messages about types that are not read.
pub(super) const fn name_of_code(code: u32) -> &'static str {
    match code {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => "unknown",
    }
}

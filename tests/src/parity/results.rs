//! A results file of the oracle: what was fed to a model, and every logit and cache entry that came out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use strata_artifacts::{SafetensorsFile, TensorView};
use strata_contracts::Dtype;

/// One run of the oracle.
#[derive(Debug)]
pub struct Results {
    /// How rows were put together.
    pub batch: Batch,
    /// Bits of caches that are quantized after the first chunk; `None` for plain ones.
    pub kv_bits: Option<u32>,
    /// Lengths of the pieces in which the prompt was read.
    pub chunks: Vec<usize>,
    /// The rows, in order.
    pub rows: Vec<Row>,
}

/// How the rows of a run were put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// One row.
    None,
    /// Prompts read alone, then joined to decode together.
    Merge,
    /// Prompts padded on the right and read together.
    Padded,
}

/// One sequence: its tokens, and what the model made of them.
#[derive(Debug)]
pub struct Row {
    /// The prompt, `P` ids.
    pub tokens: Vec<i32>,
    /// The `D` ids fed after it, one a step.
    pub decode_tokens: Vec<i32>,
    /// `[P + D, V]`.
    pub logits: Tensor,
    /// Live cache entries at the end, by name: `0.keys`, `0.values`, …, each `[H, T, D]`, oldest first.
    pub cache: BTreeMap<String, Tensor>,
}

/// An array as bytes, row-major and little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Element type.
    pub dtype: Dtype,
    /// Sizes of the axes, outermost first.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Vec<u8>,
}

/// Why a results file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// It is no safetensors file.
    #[error(transparent)]
    File(#[from] strata_artifacts::Error),
    /// It is not what `tests/oracle/README.md` describes.
    #[error("{path}: {problem}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is missing or wrong.
        problem: String,
    },
}

impl Results {
    /// Reads a results file.
    ///
    /// # Errors
    /// [`ResultsError`] when it is not a results file.
    pub fn read(path: &Path) -> Result<Self, ResultsError> {
        let file = SafetensorsFile::open(path)?;
        let wrong = |problem: String| ResultsError::Format { path: path.to_owned(), problem };
        let mut tensors: BTreeMap<&str, TensorView> =
            file.tensors().iter().map(|info| (info.name.as_str(), file.view(info))).collect();
        let metadata = |key: &str| file.metadata().get(key).map(String::as_str);

        let batch = match metadata("batch") {
            Some("none") => Batch::None,
            Some("merge") => Batch::Merge,
            Some("padded") => Batch::Padded,
            other => return Err(wrong(format!("its batch is {other:?}, not none, merge or padded"))),
        };
        let kv_bits = match metadata("kv_bits").unwrap_or("0").parse() {
            Ok(0) => None,
            Ok(bits) => Some(bits),
            Err(_) => return Err(wrong("its kv_bits is no number".into())),
        };
        let mut take = |name: &str| tensors.remove(name).ok_or_else(|| wrong(format!("it has no `{name}`")));
        let chunks =
            Tensor::of(&take("chunks")?).integers().into_iter().map(|length| length as usize).collect();
        let mut rows = Vec::new();
        while file.tensors().iter().any(|info| info.name == format!("row.{}.tokens", rows.len())) {
            let prefix = format!("row.{}.", rows.len());
            let mut cache = BTreeMap::new();
            for info in file.tensors() {
                if let Some(name) = info.name.strip_prefix(&format!("{prefix}cache.")) {
                    cache.insert(name.to_owned(), Tensor::of(&take(&info.name)?));
                }
            }
            rows.push(Row {
                tokens: Tensor::of(&take(&format!("{prefix}tokens"))?).integers(),
                decode_tokens: Tensor::of(&take(&format!("{prefix}decode_tokens"))?).integers(),
                logits: Tensor::of(&take(&format!("{prefix}logits"))?),
                cache,
            });
        }
        match (rows.is_empty(), tensors.keys().next()) {
            (true, _) => Err(wrong("it has no rows".into())),
            (false, Some(name)) => Err(wrong(format!("it holds `{name}`, which no row explains"))),
            (false, None) => Ok(Self { batch, kv_bits, chunks, rows }),
        }
    }
}

impl Tensor {
    /// A copy of a stored tensor.
    pub fn of(view: &TensorView) -> Self {
        Self { dtype: view.dtype, shape: view.shape.clone(), data: view.data.to_vec() }
    }

    /// The elements of an int32 array.
    pub fn integers(&self) -> Vec<i32> {
        self.data.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// The elements of a float array, widened without loss.
    pub fn floats(&self) -> Vec<f32> {
        let half = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
        match self.dtype {
            Dtype::Float16 => {
                self.data.chunks_exact(2).map(|b| half::f16::from_bits(half(b)).to_f32()).collect()
            }
            Dtype::Bfloat16 => {
                self.data.chunks_exact(2).map(|b| half::bf16::from_bits(half(b)).to_f32()).collect()
            }
            _ => self.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        }
    }
}

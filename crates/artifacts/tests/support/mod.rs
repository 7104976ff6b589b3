//! Builds GGUF files byte by byte, well-formed or not.
#![allow(dead_code, reason = "each test file uses its own part")]

/// One metadata value, written as its type says.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Strings(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// Type code and bytes as they are.
    Raw(u32, Vec<u8>),
}

/// One tensor: name, dimensions fastest first, type code, data.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
}

/// A file under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Builder {
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

impl Builder {
    pub(crate) fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.retain(|(other, _)| other != key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    pub(crate) fn tensor(&mut self, name: &str, dims: &[u64], kind: u32, data: Vec<u8>) -> &mut Self {
        self.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), kind, data });
        self
    }

    /// A tensor of float32 values; `dims` fastest first.
    pub(crate) fn floats(&mut self, name: &str, dims: &[u64], values: &[f32]) -> &mut Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, dims, 0, data)
    }

    /// The file, data aligned to 32.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3_u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            file.extend(text(key));
            file.extend(encode(value));
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            file.extend(text(&tensor.name));
            file.extend((tensor.dims.len() as u32).to_le_bytes());
            file.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            file.extend(tensor.kind.to_le_bytes());
            file.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.data.len()).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(&tensor.data);
        }
        file
    }
}

/// A string with its length.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn encode(value: &Value) -> Vec<u8> {
    fn array<T>(code: u32, items: &[T], bytes: impl Fn(&T) -> Vec<u8>) -> (u32, Vec<u8>) {
        let mut out = code.to_le_bytes().to_vec();
        out.extend((items.len() as u64).to_le_bytes());
        out.extend(items.iter().flat_map(bytes));
        (9, out)
    }
    let (code, bytes) = match value {
        Value::U32(value) => (4, value.to_le_bytes().to_vec()),
        Value::I32(value) => (5, value.to_le_bytes().to_vec()),
        Value::F32(value) => (6, value.to_le_bytes().to_vec()),
        Value::Bool(value) => (7, vec![u8::from(*value)]),
        Value::Text(value) => (8, text(value)),
        Value::Strings(values) => array(8, values, |value| text(value)),
        Value::I32s(values) => array(5, values, |value| value.to_le_bytes().to_vec()),
        Value::F32s(values) => array(6, values, |value| value.to_le_bytes().to_vec()),
        Value::Raw(code, bytes) => (*code, bytes.clone()),
    };
    [&code.to_le_bytes()[..], &bytes].concat()
}

/// A whole llama model of one layer: 2 query heads and 1 key head of 32, hidden 64, intermediate 96, vocabulary 259.
///
/// Matrices are float32 and count up from 0 in steps of `1/64`, so that every row differs.
pub(crate) fn llama() -> Builder {
    let mut file = Builder::default();
    file.set("general.architecture", Value::Text("llama".into()))
        .set("llama.block_count", Value::U32(1))
        .set("llama.context_length", Value::U32(128))
        .set("llama.embedding_length", Value::U32(64))
        .set("llama.feed_forward_length", Value::U32(96))
        .set("llama.attention.head_count", Value::U32(2))
        .set("llama.attention.head_count_kv", Value::U32(1))
        .set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5))
        .set("llama.rope.dimension_count", Value::U32(32))
        .set("llama.rope.freq_base", Value::F32(10_000.0));
    byte_level_vocabulary(&mut file);
    let matrix = |rows: u64, columns: u64| -> Vec<f32> {
        (0..rows * columns).map(|index| index as f32 / 64.0).collect()
    };
    for (name, rows, columns) in [
        ("token_embd.weight", 259, 64),
        ("blk.0.attn_q.weight", 64, 64),
        ("blk.0.attn_k.weight", 32, 64),
        ("blk.0.attn_v.weight", 32, 64),
        ("blk.0.attn_output.weight", 64, 64),
        ("blk.0.ffn_gate.weight", 96, 64),
        ("blk.0.ffn_up.weight", 96, 64),
        ("blk.0.ffn_down.weight", 64, 96),
    ] {
        file.floats(name, &[columns, rows], &matrix(rows, columns));
    }
    for name in ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"] {
        file.floats(name, &[64], &vec![1.0; 64]);
    }
    file
}

/// The 256 byte tokens, `<|end|>` (256), `he` (257), and `hello` (258), which no merges make.
fn byte_level_vocabulary(file: &mut Builder) {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut shifted = 256;
    let mut tokens: Vec<String> = (0..256_u32)
        .map(|byte| {
            let code = if printable(byte) { byte } else { shifted };
            shifted += u32::from(!printable(byte));
            char::from_u32(code).unwrap().to_string()
        })
        .collect();
    tokens.extend(["<|end|>", "he", "hello"].map(String::from));
    let mut kinds = vec![1; 259];
    kinds[256] = 3;
    file.set("tokenizer.ggml.model", Value::Text("gpt2".into()))
        .set("tokenizer.ggml.pre", Value::Text("gpt-2".into()))
        .set("tokenizer.ggml.tokens", Value::Strings(tokens))
        .set("tokenizer.ggml.token_type", Value::I32s(kinds))
        .set("tokenizer.ggml.merges", Value::Strings(vec!["h e".into()]))
        .set("tokenizer.ggml.bos_token_id", Value::U32(256))
        .set("tokenizer.ggml.eos_token_id", Value::U32(256));
}

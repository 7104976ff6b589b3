//! Model folders for tests: a committed tiny model (`tests/fixtures/parity`) with changes.
#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use strata_artifacts::ModelDir;
use strata_contracts::{Composition, GraphDeclaration, KernelSet};
use strata_models::{Error, Graph};
use strata_state::{Phase, State};
use strata_tensor::{Array, io};
use tempfile::TempDir;

/// A model that is going to be written.
#[derive(Clone)]
pub(crate) struct Tiny {
    pub(crate) config: Map<String, Value>,
    pub(crate) tensors: BTreeMap<String, Array>,
}

impl Tiny {
    /// A committed model, such as `llama/f32`.
    pub(crate) fn of(variant: &str) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity");
        let folder = fixtures.join(variant).join("model");
        let config = std::fs::read_to_string(folder.join("config.json")).expect("a configuration");
        let (tensors, _) = io::load_safetensors(&folder.join("model.safetensors")).expect("weights");
        let mut config: Map<String, Value> = serde_json::from_str(&config).expect("an object");
        // A copy of `quantization`, which the tests would have to change too.
        config.remove("quantization_config");
        Self { config, tensors }
    }

    pub(crate) fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.config.insert(key.to_owned(), value.into());
        self
    }

    pub(crate) fn unset(mut self, key: &str) -> Self {
        self.config.remove(key).expect("the key is there");
        self
    }

    pub(crate) fn with(mut self, name: &str, tensor: Array) -> Self {
        self.tensors.insert(name.to_owned(), tensor);
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.tensors.remove(name).expect("the tensor is there");
        self
    }

    pub(crate) fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        self.tensors = self.tensors.into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
        self
    }

    /// As a part of a larger model: everything but the weights' settings goes to `text_config`.
    pub(crate) fn nested(mut self, model_type: &str) -> Self {
        let mut outer = Map::new();
        outer.insert("model_type".to_owned(), model_type.into());
        for key in ["quantization", "vocab_size"] {
            if let Some(value) = self.config.remove(key) {
                outer.insert(key.to_owned(), value);
            }
        }
        outer.insert("text_config".to_owned(), Value::Object(self.config));
        self.config = outer;
        self
    }

    fn write(&self) -> TempDir {
        let folder = TempDir::new().expect("a folder");
        let config = serde_json::to_string(&self.config).expect("JSON");
        std::fs::write(folder.path().join("config.json"), config).expect("writes");
        let tensors = self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        io::save_safetensors(&folder.path().join("model.safetensors"), tensors, &[]).expect("writes");
        folder
    }

    pub(crate) fn load(&self) -> Result<Box<dyn Graph>, Error> {
        self.load_with(&composition())
    }

    pub(crate) fn load_with(&self, composition: &Composition) -> Result<Box<dyn Graph>, Error> {
        let folder = self.write();
        strata_models::load(&ModelDir::open(folder.path())?, composition)
    }

    pub(crate) fn declare(&self) -> Result<GraphDeclaration, Error> {
        let folder = self.write();
        strata_models::declare(&ModelDir::open(folder.path())?)
    }

    /// The error of loading, as text.
    pub(crate) fn refusal(&self) -> String {
        match self.load() {
            Ok(_) => panic!("the model loads"),
            Err(error) => error.to_string(),
        }
    }

    /// Bytes of the logits of a fixed prompt.
    pub(crate) fn logits(&self) -> Vec<u8> {
        let graph = self.load().expect("the model loads");
        logits(graph.as_ref(), &[[3, 1, 4, 1, 5, 92, 65, 35, 89, 79, 32]])
    }
}

pub(crate) fn composition() -> Composition {
    Composition { kernels: KernelSet::Reference, ..Composition::default() }
}

/// Bytes of the logits of rows of tokens, read in one pass.
pub(crate) fn logits<const L: usize>(graph: &dyn Graph, rows: &[[i32; L]]) -> Vec<u8> {
    let tokens = Array::from_slice(&rows.concat(), [rows.len() as i32, L as i32]).expect("tokens");
    let mut state = State::compose(&graph.declaration().layers, &composition()).expect("a state");
    let hidden = graph.hidden(&tokens, &mut state, Phase::Window).expect("runs");
    graph.logits(&hidden).expect("runs").to_bytes().expect("bytes")
}

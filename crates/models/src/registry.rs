//! Which file of `families/` serves which `model_type`.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::families;
use crate::graph::Graph;
use crate::weights::Source;
use strata_artifacts::ModelDir;
use strata_contracts::{Composition, GraphDeclaration};
use strata_tensor::eval;

/// One family.
struct Family {
    /// Name of the file.
    name: &'static str,
    /// Values of `model_type` that mean it.
    model_types: &'static [&'static str],
    /// What the graph of a configuration would say of itself.
    declare: fn(&Config<'_>) -> Result<GraphDeclaration>,
    /// Binds configuration and weights.
    bind: fn(&Config<'_>, &Source<'_>) -> Result<Box<dyn Graph>>,
    /// The graph's name of a tensor or module in the file; `None` drops it.
    rename: fn(&str) -> Option<String>,
}

macro_rules! family {
    ($name:ident: $($model_type:literal),+) => {
        family!($name: $($model_type),+; |name: &str| Some(name.to_owned()))
    };
    ($name:ident: $($model_type:literal),+; $rename:expr) => {
        Family {
            name: stringify!($name),
            model_types: &[$($model_type),+],
            declare: families::$name::declare,
            bind: families::$name::bind,
            rename: $rename,
        }
    };
}

const FAMILIES: &[Family] = &[
    family!(gemma: "gemma"),
    family!(gemma2: "gemma2"),
    family!(gemma3_text: "gemma3_text", "gemma3"; families::gemma3_text::rename),
    family!(llama: "llama", "mistral", "smollm", "minicpm5"),
    family!(phi3: "phi3"),
    family!(qwen2: "qwen2"),
    family!(qwen3: "qwen3"),
    family!(qwen3_moe: "qwen3_moe"),
];

/// Loads the model of a folder: configuration read strictly, every tensor placed, weights evaluated.
///
/// # Errors
/// Everything of [`Error`]; nothing is loaded then.
pub fn load(folder: &ModelDir, composition: &Composition) -> Result<Box<dyn Graph>> {
    let (family, config) = family_of(folder)?;
    let weights = folder.weights()?;
    let source =
        Source::new(family.name, &weights, family.rename, folder.quantization()?.as_ref(), composition)?;
    let graph = (family.bind)(&config, &source)?;
    source.finish()?;
    eval(graph.weights())?;
    Ok(graph)
}

/// What the model of a folder is, from its configuration alone.
///
/// # Errors
/// [`Error::UnknownModelType`], [`Error::Unsupported`] and [`Error::Artifacts`] for the configuration.
pub fn declare(folder: &ModelDir) -> Result<GraphDeclaration> {
    let (family, config) = family_of(folder)?;
    (family.declare)(&config)
}

fn family_of(folder: &ModelDir) -> Result<(&'static Family, Config<'_>)> {
    let config = folder.config();
    let model_type = config.model_type();
    let family = FAMILIES.iter().find(|f| f.model_types.contains(&model_type)).ok_or_else(|| {
        Error::UnknownModelType { model_type: model_type.to_owned(), supported: supported_model_types() }
    })?;
    Ok((family, Config::new(family.name, config)?))
}

/// Every `model_type` that [`load`] knows.
pub fn supported_model_types() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|f| f.model_types).copied().collect()
}

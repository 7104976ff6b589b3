//! Which file of `families/` serves which `model_type`.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::families;
use crate::graph::Graph;
use crate::weights::Source;
use strata_artifacts::ModelDir;
use strata_contracts::Composition;
use strata_tensor::eval;

/// One family.
struct Family {
    /// Name of the file.
    name: &'static str,
    /// Values of `model_type` that mean it.
    model_types: &'static [&'static str],
    /// Binds configuration and weights.
    bind: fn(&Config<'_>, &Source<'_>) -> Result<Box<dyn Graph>>,
}

const FAMILIES: &[Family] = &[Family {
    name: "llama",
    model_types: &["llama", "mistral", "smollm", "minicpm5"],
    bind: families::llama::bind,
}];

/// Loads the model of a folder: configuration read strictly, every tensor placed, weights evaluated.
///
/// # Errors
/// Everything of [`Error`]; nothing is loaded then.
pub fn load(folder: &ModelDir, composition: &Composition) -> Result<Box<dyn Graph>> {
    let config = folder.config();
    let model_type = config.model_type();
    let family = FAMILIES.iter().find(|f| f.model_types.contains(&model_type)).ok_or_else(|| {
        Error::UnknownModelType { model_type: model_type.to_owned(), supported: supported_model_types() }
    })?;
    let config = Config::new(family.name, config.text()?);
    let weights = folder.weights()?;
    let source = Source::new(family.name, &weights, folder.quantization()?.as_ref(), composition)?;
    let graph = (family.bind)(&config, &source)?;
    source.finish()?;
    eval(graph.weights())?;
    Ok(graph)
}

/// Every `model_type` that [`load`] knows.
pub fn supported_model_types() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|f| f.model_types).copied().collect()
}

//! `strata inspect`: what a model is and what it will need, from its files alone: no weights are loaded.

use crate::args::InspectArgs;
use crate::output::bytes;
use crate::session::{open_model, write_stdout};
use anyhow::Result;
use serde_json::json;
use strata_artifacts::{TensorInfo, Weights};
use strata_contracts::Dtype;

/// Bytes of one cached value in the usual 16-bit types.
const KV_BYTES: u64 = 2;

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let folder = open_model(&args.name, args.json)?;
    let declaration = strata_models::declare(&folder)?;
    let weights = folder.weights()?;
    let quantization = folder.quantization()?;
    let parameters = parameters(&weights);
    let kv_per_1k = 1000 * KV_BYTES * declaration.layers.iter().map(|l| l.values_per_position()).sum::<u64>();
    let scheme = quantization.as_ref().map_or_else(
        || "none".to_owned(),
        |q| {
            let s = q.default_scheme();
            let exceptions = q.exceptions().count();
            let more = if exceptions == 0 { String::new() } else { format!(", {exceptions} exceptions") };
            format!("{} {}-bit, groups of {}{more}", s.mode().name(), s.bits(), s.group_size())
        },
    );
    if args.json {
        let object = json!({
            "path": folder.path(),
            "family": declaration.family,
            "model_type": folder.config().model_type(),
            "parameters": parameters,
            "quantization": scheme,
            "layers": declaration.layers.len(),
            "vocab_size": declaration.vocab_size,
            "context_length": declaration.context_length,
            "weight_bytes": weights.total_bytes(),
            "kv_bytes_per_1k_tokens": kv_per_1k,
        });
        write_stdout(&format!("{object}\n"))?;
        return Ok(());
    }
    let rows = [
        ("path", folder.path().display().to_string()),
        ("family", format!("{} (model_type {})", declaration.family, folder.config().model_type())),
        ("parameters", format!("{:.1} million", parameters as f64 / 1e6)),
        ("quantization", scheme),
        ("layers", declaration.layers.len().to_string()),
        ("vocabulary", declaration.vocab_size.to_string()),
        ("context", format!("{} tokens", declaration.context_length)),
        ("weights", bytes(weights.total_bytes())),
        ("KV per 1k tokens", format!("{} (16-bit)", bytes(kv_per_1k))),
    ];
    for (name, value) in rows {
        write_stdout(&format!("{name:>16}  {value}\n"))?;
    }
    Ok(())
}

/// Values of the model, packed ones counted as what they stand for. A tied head counts once.
fn parameters(weights: &Weights) -> u64 {
    weights
        .infos()
        .filter(|t| !t.name.ends_with(".scales") && !t.name.ends_with(".biases"))
        .map(|t| {
            let elements = elements(t);
            let path = t.name.strip_suffix(".weight").filter(|_| t.dtype == Dtype::Uint32);
            let scales = path.and_then(|path| weights.info(&format!("{path}.scales")));
            // A packed matrix: 32-bit words of values of some width, of which the settings know only the default.
            scales.map_or(elements, |scales| elements * 32 / bits_of(t, scales))
        })
        .sum()
}

fn elements(tensor: &TensorInfo) -> u64 {
    tensor.shape.iter().map(|&n| n as u64).product()
}

/// Bits of one packed value: the only width for which the groups come out at a size that exists.
fn bits_of(packed: &TensorInfo, scales: &TensorInfo) -> u64 {
    let words_per_group = elements(packed) as f64 / elements(scales).max(1) as f64;
    [32, 64, 128, 16]
        .iter()
        .find_map(|&group| {
            let bits = words_per_group * 32.0 / f64::from(group);
            [2.0, 3.0, 4.0, 5.0, 6.0, 8.0].contains(&bits).then_some(bits as u64)
        })
        .unwrap_or(4)
}

//! Quantizing on the host equals `mlx.core.quantize` byte for byte, and a quantized folder is a whole model. Truth:
//! `fixtures/quantize.safetensors`, made by `fixtures/make_quantize_fixture.py`.

use serde_json::{Value, json};
use std::path::Path;
use strata_artifacts::quantize::{
    Packed, QuantRule, QuantRules, QuantizeError, QuantizeOptions, quantize, quantize_folder,
};
use strata_artifacts::{Error, ModelDir, SafetensorsFile, TensorSpec, WeightsWriter, write_json};
use strata_contracts::{Dtype, QuantMode, QuantScheme};

fn fixture() -> SafetensorsFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/quantize.safetensors");
    SafetensorsFile::open(&path).unwrap()
}

fn bytes(file: &SafetensorsFile, name: &str) -> Vec<u8> {
    let info = file.tensors().iter().find(|info| info.name == name);
    file.view(info.unwrap_or_else(|| panic!("no `{name}`"))).data.to_vec()
}

fn floats(dtype: Dtype, data: &[u8]) -> Vec<f32> {
    let pair = |b: &[u8]| [b[0], b[1]];
    match dtype {
        Dtype::Bfloat16 => {
            data.chunks_exact(2).map(|b| half::bf16::from_le_bytes(pair(b)).to_f32()).collect()
        }
        Dtype::Float16 => data.chunks_exact(2).map(|b| half::f16::from_le_bytes(pair(b)).to_f32()).collect(),
        _ => data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
    }
}

#[test]
fn every_scheme_gives_mlx_quantizes_bytes_for_every_type() {
    let file = fixture();
    let affine = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group)));
    let mut schemes: Vec<_> = affine.map(|(bits, group)| (QuantMode::Affine, bits, group)).collect();
    schemes.extend([(QuantMode::Mxfp4, 4, 32), (QuantMode::Mxfp8, 8, 32), (QuantMode::Nvfp4, 4, 16)]);
    let mut wrong = Vec::new();
    for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
        let values = floats(dtype, &bytes(&file, &format!("{dtype}.values")));
        for &(mode, bits, group) in &schemes {
            let scheme = QuantScheme::new(mode, bits, group).unwrap();
            let packed = quantize(scheme, dtype, &values).unwrap();
            let name = format!("{dtype}.{}.{bits}.{group}", mode.name());
            for (part, found) in
                [("weight", &packed.weight), ("scales", &packed.scales), ("biases", &packed.biases)]
            {
                if part == "biases" && !scheme.has_biases() {
                    continue;
                }
                let expected = bytes(&file, &format!("{name}.{part}"));
                let differing = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
                if (differing, found.len()) != (0, expected.len()) {
                    let first = found.iter().zip(&expected).position(|(a, b)| a != b);
                    wrong
                        .push(format!("{name}.{part}: {differing} of {} bytes, from {first:?}", found.len()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn many_groups_on_all_cores_equal_the_groups_one_by_one() {
    let scheme = QuantScheme::affine(4, 32).unwrap();
    let values: Vec<f32> = (0..32 * 20_000).map(|i| (i % 1009 * 7919 % 1009) as f32 / 97.0 - 5.0).collect();
    let mut expected = Packed::default();
    for group in values.chunks_exact(32) {
        let packed = quantize(scheme, Dtype::Float32, group).unwrap();
        expected.weight.extend(packed.weight);
        expected.scales.extend(packed.scales);
        expected.biases.extend(packed.biases);
    }
    assert!(quantize(scheme, Dtype::Float32, &values).unwrap() == expected);
}

#[test]
fn values_that_have_no_quantized_form_are_refused() {
    let scheme = QuantScheme::affine(4, 32).unwrap();
    let mut values = vec![0.0; 64];
    values[40] = f32::NAN;
    let error = quantize(scheme, Dtype::Float32, &values).unwrap_err();
    assert!(matches!(error, QuantizeError::NotFinite { index: 40, .. }), "{error}");
    assert!(matches!(quantize(scheme, Dtype::Int8, &[0.0; 32]), Err(QuantizeError::Dtype { .. })));
    assert!(matches!(
        quantize(scheme, Dtype::Float32, &[0.0; 48]),
        Err(QuantizeError::Groups { values: 48, group_size: 32 })
    ));
}

/// A model folder with a head, one layer, a norm, and a projection whose rows divide into no group.
fn model(folder: &Path) {
    write_model(
        folder,
        &[
            ("lm_head.weight", &[8, 128]),
            ("model.layers.0.mlp.up_proj.weight", &[6, 128]),
            ("model.layers.0.odd.weight", &[4, 40]),
            ("model.norm.weight", &[128]),
        ],
    );
}

/// A model folder with these float32 tensors, the elements of each counted up from -3.
fn write_model(folder: &Path, tensors: &[(&str, &[usize])]) {
    let spec = |&(name, shape): &(&str, &[usize])| TensorSpec {
        name: name.to_owned(),
        dtype: Dtype::Float32,
        shape: shape.to_vec(),
    };
    let specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
    let mut writer = WeightsWriter::create(folder, specs.clone(), u64::MAX).unwrap();
    for spec in specs {
        let count = spec.shape.iter().product::<usize>();
        let values = (0..count).flat_map(|i| (i as f32 / 64.0 - 3.0).to_le_bytes());
        writer.append(&values.collect::<Vec<u8>>()).unwrap();
    }
    writer.finish().unwrap();
    let config = json!({ "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 128 });
    write_json(&folder.join("config.json"), &config).unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
}

fn options(rules: &[&str], max_shard_bytes: u64) -> QuantizeOptions {
    let rules: Vec<QuantRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let rules = QuantRules::new(QuantScheme::affine(4, 64).unwrap(), rules);
    QuantizeOptions { rules, dtype: None, max_shard_bytes }
}

/// Quantizes that model with `rules` over 4-bit groups of 64.
fn quantized(rules: &[&str], max_shard_bytes: u64) -> Result<(tempfile::TempDir, ModelDir, Value), Error> {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    model(&from);
    let mut last = 0;
    quantize_folder(&from, &to, &options(rules, max_shard_bytes), &mut |report| last = report.done)?;
    assert_eq!(last, (8 * 128 + 6 * 128 + 4 * 40 + 128) * 4);
    let model = ModelDir::open(&to)?;
    let config = model.json("config.json")?.unwrap();
    Ok((folder, model, config))
}

#[test]
fn a_folder_is_quantized_by_its_rules_and_says_so_in_its_configuration() {
    let (_folder, model, config) = quantized(&["lm_head=8"], u64::MAX).unwrap();
    let weights = model.weights().unwrap();
    let info = |name: &str| {
        let info = weights.info(name).unwrap_or_else(|| panic!("no `{name}`"));
        (info.dtype, info.shape.clone())
    };
    assert_eq!(info("lm_head.weight"), (Dtype::Uint32, vec![8, 32]));
    assert_eq!(info("lm_head.scales"), (Dtype::Bfloat16, vec![8, 2]));
    assert_eq!(info("model.layers.0.mlp.up_proj.weight"), (Dtype::Uint32, vec![6, 16]));
    assert_eq!(info("model.layers.0.mlp.up_proj.biases"), (Dtype::Bfloat16, vec![6, 2]));
    assert_eq!(info("model.layers.0.odd.weight"), (Dtype::Bfloat16, vec![4, 40]));
    assert_eq!(info("model.norm.weight"), (Dtype::Bfloat16, vec![128]));
    let expected = json!({
        "group_size": 64, "bits": 4, "mode": "affine",
        "lm_head": { "group_size": 64, "bits": 8, "mode": "affine" },
    });
    assert_eq!(config["quantization"], expected);
    assert_eq!(config["hidden_size"], 128);
    assert!(model.file("tokenizer.json").is_some());
    let quantization = model.quantization().unwrap().unwrap();
    assert_eq!(quantization.default_scheme(), QuantScheme::affine(4, 64).unwrap());
}

#[test]
fn weights_are_cast_before_they_are_packed() {
    let (_folder, model, _) = quantized(&["lm_head=none"], u64::MAX).unwrap();
    let values: Vec<f32> =
        (0..6 * 128).map(|i| half::bf16::from_f32(i as f32 / 64.0 - 3.0).to_f32()).collect();
    let expected = quantize(QuantScheme::affine(4, 64).unwrap(), Dtype::Bfloat16, &values).unwrap();
    let weights = model.weights().unwrap();
    let found = weights.require("model.layers.0.mlp.up_proj.weight").unwrap();
    assert!(found.data[..] == expected.weight[..]);
    assert_eq!(weights.info("lm_head.weight").unwrap().dtype, Dtype::Bfloat16);
}

#[test]
fn shards_stay_below_their_limit() {
    let (_folder, model, _) = quantized(&[], 600).unwrap();
    assert!(model.shards().files.len() > 1);
    assert_eq!(model.weights().unwrap().len(), 8);
}

#[test]
fn a_quantized_model_and_one_that_nothing_fits_are_refused() {
    let (folder, _, _) = quantized(&[], u64::MAX).unwrap();
    let options = options(&["*=none"], u64::MAX);
    let again = folder.path().join("again");
    std::fs::create_dir(&again).unwrap();
    let problem = |from: &str| match quantize_folder(&folder.path().join(from), &again, &options, &mut |_| ())
        .unwrap_err()
    {
        Error::Quantize { problem, .. } => problem,
        other => panic!("{other}"),
    };
    assert_eq!(problem("to"), QuantizeError::AlreadyQuantized);
    assert_eq!(problem("from"), QuantizeError::NothingFits { group_size: 64 });
    assert!(std::fs::read_dir(&again).unwrap().next().is_none(), "a refused model leaves nothing behind");
}

#[test]
fn a_rule_that_fits_no_module_is_refused_by_name() {
    let Err(Error::Quantize { problem, .. }) = quantized(&["lm_head=8", "model.layer.0.*=8"], u64::MAX)
    else {
        panic!("the rule was passed over");
    };
    assert_eq!(problem, QuantizeError::IdleRule { pattern: "model.layer.0.*".into() });
}

/// Quantizes a model with these tensors to 4-bit groups of 64.
fn with_tensors(tensors: &[(&str, &[usize])]) -> Result<(tempfile::TempDir, ModelDir), Error> {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    write_model(&from, tensors);
    quantize_folder(&from, &to, &options(&[], u64::MAX), &mut |_| ())?;
    let model = ModelDir::open(&to)?;
    Ok((folder, model))
}

#[test]
fn experts_are_stacked_and_their_router_keeps_eight_bits() {
    let names: Vec<String> =
        (0..11).map(|n| format!("model.layers.0.mlp.experts.{n}.up_proj.weight")).collect();
    let mut tensors: Vec<(&str, &[usize])> =
        names.iter().map(|name| (name.as_str(), &[6, 128][..])).collect();
    tensors.push(("model.layers.0.mlp.gate.weight", &[11, 128]));
    let (_folder, model) = with_tensors(&tensors).unwrap();
    let weights = model.weights().unwrap();
    let stacked = weights.require("model.layers.0.mlp.switch_mlp.up_proj.weight").unwrap();
    assert_eq!(stacked.shape, [11, 6, 16]);
    let biases = weights.info("model.layers.0.mlp.switch_mlp.up_proj.biases").unwrap();
    assert_eq!(biases.shape, [11, 6, 2]);
    let values: Vec<f32> =
        (0..6 * 128).map(|i| half::bf16::from_f32(i as f32 / 64.0 - 3.0).to_f32()).collect();
    let one = quantize(QuantScheme::affine(4, 64).unwrap(), Dtype::Bfloat16, &values).unwrap();
    assert!(stacked.data[..] == one.weight.repeat(11)[..]);
    assert_eq!(weights.len(), 6);
    assert_eq!(weights.info("model.layers.0.mlp.gate.weight").unwrap().shape, [11, 32]);
    let block = &model.json("config.json").unwrap().unwrap()["quantization"];
    let router = json!({ "group_size": 64, "bits": 8, "mode": "affine" });
    assert_eq!((&block["model.layers.0.mlp.gate"], &block["bits"]), (&router, &json!(4)));
}

#[test]
fn experts_that_do_not_belong_together_are_refused() {
    let problem = |tensors: &[(&str, &[usize])]| match with_tensors(tensors) {
        Err(Error::Quantize { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    let [first, second, third] = [0, 1, 2].map(|n| format!("model.layers.0.mlp.experts.{n}.up_proj.weight"));
    let tensor = "model.layers.0.mlp.switch_mlp.up_proj.weight".to_owned();
    assert_eq!(
        problem(&[(&first, &[6, 128]), (&third, &[6, 128])]),
        QuantizeError::MissingExpert { tensor, missing: 1 }
    );
    assert_eq!(
        problem(&[(&first, &[6, 128]), (&second, &[5, 128])]),
        QuantizeError::ExpertShape { tensor: second, found: vec![5, 128], expected: vec![6, 128] }
    );
}

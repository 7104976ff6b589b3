//! Blocks of every type against the Python package `gguf` and MLX's own loader, byte for byte. Truth:
//! `fixtures/gguf_blocks.safetensors` and `gguf_affine.safetensors`, made by `fixtures/make_gguf_fixtures.py`.

use crate::convert::Converted;
use crate::support::{Builder, llama};
use std::path::Path;
use strata_artifacts::SafetensorsFile;
use strata_artifacts::gguf::{ConvertOptions, Inexact, TensorType, dequantize};
use strata_artifacts::quantize::quantize;
use strata_contracts::{Dtype, QuantScheme};

fn fixture(name: &str) -> SafetensorsFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    SafetensorsFile::open(&path).unwrap()
}

fn bytes(file: &SafetensorsFile, name: &str) -> Vec<u8> {
    let info = file.tensors().iter().find(|info| info.name == name);
    file.view(info.unwrap_or_else(|| panic!("no `{name}`"))).data.to_vec()
}

#[test]
fn values_of_every_type_equal_the_gguf_packages() {
    let file = fixture("gguf_blocks.safetensors");
    for kind in TensorType::ALL {
        let mut values = Vec::new();
        dequantize(kind, &bytes(&file, &format!("{}.blocks", kind.name())), &mut values);
        let found: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(found == bytes(&file, &format!("{}.values", kind.name())), "{} differs", kind.name());
    }
}

/// `part`, the bytes of 5 rows, as 64 rows by repetition.
fn repeated(part: &[u8]) -> Vec<u8> {
    part.chunks_exact(part.len() / 5).cycle().take(64).flatten().copied().collect()
}

/// The tiny model, converted with `data` as the 64 rows of 96 values of its `down_proj`.
fn converted(kind: TensorType, data: Vec<u8>) -> (Converted, String) {
    (Converted::new(&model(kind, data)), "model.layers.0.mlp.down_proj".to_owned())
}

fn model(kind: TensorType, data: Vec<u8>) -> Builder {
    let mut model = llama();
    let tensor = model.tensors.iter_mut().find(|tensor| tensor.name == "blk.0.ffn_down.weight").unwrap();
    (tensor.kind, tensor.data) = (kind.code(), data);
    model
}

#[test]
fn types_that_mlx_holds_exactly_are_repacked_as_mlx_repacks_them() {
    let (blocks, affine) = (fixture("gguf_blocks.safetensors"), fixture("gguf_affine.safetensors"));
    for kind in [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q5_0, TensorType::Q5_1, TensorType::Q8_0] {
        let data = bytes(&blocks, &format!("{}.blocks", kind.name()));
        let (model, module) = converted(kind, repeated(&data));
        for part in ["weight", "scales", "biases"] {
            let expected = bytes(&affine, &format!("{}.{part}", kind.name()));
            let found = model.bytes(&format!("{module}.{part}"));
            assert!(found == repeated(&expected), "{} {part} differs", kind.name());
        }
        let bits = if kind == TensorType::Q8_0 { 8 } else { 4 + u32::from(kind.name().starts_with("Q5")) };
        assert_eq!(model.config["quantization"]["bits"], bits, "{}", kind.name());
        assert_eq!(model.config["quantization"]["group_size"], 32);
    }
}

#[test]
fn types_that_mlx_does_not_hold_become_bfloat16() {
    let blocks = fixture("gguf_blocks.safetensors");
    let (kind, name) = (TensorType::IQ4_NL, "IQ4_NL");
    let (model, module) = converted(kind, repeated(&bytes(&blocks, &format!("{name}.blocks"))));
    let expected: Vec<u8> = bytes(&blocks, &format!("{name}.values"))
        .chunks_exact(4)
        .map(|value| f32::from_le_bytes(value.try_into().unwrap()))
        .flat_map(|value| half::bf16::from_f32(value).to_le_bytes())
        .collect();
    assert!(model.bytes(&format!("{module}.weight")) == repeated(&expected));
    assert!(model.config.get("quantization").is_none());
}

#[test]
fn types_that_mlx_does_not_hold_are_quantized_on_request() {
    let blocks = fixture("gguf_blocks.safetensors");
    let scheme = QuantScheme::affine(6, 32).unwrap();
    let mut options = ConvertOptions::default();
    options.inexact = Inexact::Quantized(scheme);
    let model = model(TensorType::IQ4_NL, repeated(&bytes(&blocks, "IQ4_NL.blocks")));
    let model = Converted::with(&model, &options).unwrap();
    let values: Vec<f32> = bytes(&blocks, "IQ4_NL.values")
        .chunks_exact(4)
        .map(|value| half::f16::from_f32(f32::from_le_bytes(value.try_into().unwrap())).to_f32())
        .collect();
    let expected = quantize(scheme, Dtype::Float16, &values).unwrap();
    assert!(model.bytes("model.layers.0.mlp.down_proj.weight") == repeated(&expected.weight));
    assert!(model.bytes("model.layers.0.mlp.down_proj.biases") == repeated(&expected.biases));
    assert_eq!(model.config["quantization"]["bits"], 6);
    // The float32 matrices are packed too; vectors never are.
    assert_eq!(model.bytes("model.layers.0.self_attn.q_proj.weight").len(), 64 * 64 * 6 / 8);
    assert_eq!(model.bytes("model.norm.weight").len(), 64 * 4);
}

#[test]
fn a_rule_for_a_module_comes_before_exactness() {
    let data = bytes(&fixture("gguf_blocks.safetensors"), "Q8_0.blocks");
    let mut values = Vec::new();
    dequantize(TensorType::Q8_0, &repeated(&data), &mut values);
    let converted = |rules: &[&str]| {
        let mut options = ConvertOptions::default();
        options.layers = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let model = Converted::with(&model(TensorType::Q8_0, repeated(&data)), &options).unwrap();
        model.bytes("model.layers.0.mlp.down_proj.weight")
    };
    let halves: Vec<f32> = values.iter().map(|&value| half::f16::from_f32(value).to_f32()).collect();
    let packed =
        |bits| quantize(QuantScheme::affine(bits, 32).unwrap(), Dtype::Float16, &halves).unwrap().weight;
    assert!(converted(&["model.layers.0.mlp.down_proj=6:32"]) == packed(6));
    // Bits alone mean the exact groups' size.
    assert!(converted(&["*.up_proj=8", "*=4"]) == packed(4));
    let plain: Vec<u8> = values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect();
    assert!(converted(&["*.down_proj=none", "*=4"]) == plain);
    // Rows of 96 values are no whole number of groups of 64.
    assert!(converted(&["*=4:64"]) == converted(&[]));
}

#[test]
fn a_scale_whose_bias_overflows_float16_becomes_bfloat16() {
    let mut data = vec![0x21; 64 * 3 * 18];
    data[36..38].copy_from_slice(&half::f16::from_f32(9000.0).to_le_bytes());
    let (model, module) = converted(TensorType::Q4_0, data);
    assert_eq!(model.bytes(&format!("{module}.weight")).len(), 64 * 96 * 2);
}

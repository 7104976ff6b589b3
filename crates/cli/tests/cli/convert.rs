//! `convert`: GGUF files, and folders whose quantized form is compared with what mlx-lm makes of the same weights
//! (`tests/fixtures/parity`, where all variants of a family have one set of random weights).

use crate::support::{Home, gguf, tiny_gguf};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use strata_artifacts::{SafetensorsFile, TensorSpec, WeightsWriter};

/// The quantization of the fixtures named `mixed`, from the most special rule to the most general.
const MIXED: [&str; 6] = [
    "lm_head=8",
    "*embed_tokens=8:32",
    "*.layers.0.*=8",
    "*.layers.1.self_attn.o_proj=5",
    "*.layers.1.mlp.down_proj=none",
    "*.layers.1.mlp.*=6",
];

fn fixture(family: &str, variant: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity");
    fixtures.join(family).join(variant).join("model")
}

fn config(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// Every tensor of one folder is in the other, with the same type, shape and bytes, and so are bits and groups.
#[track_caller]
fn same_model(found: &Path, expected: &Path) {
    let [found_file, expected_file] =
        [found, expected].map(|folder| SafetensorsFile::open(&folder.join("model.safetensors")).unwrap());
    let names = |file: &SafetensorsFile| file.tensors().iter().map(|t| t.name.clone()).collect::<Vec<_>>();
    let (mut ours, mut theirs) = (names(&found_file), names(&expected_file));
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
    for tensor in expected_file.tensors() {
        let other = found_file.tensors().iter().find(|t| t.name == tensor.name).unwrap();
        assert_eq!((other.dtype, &other.shape), (tensor.dtype, &tensor.shape), "{}", tensor.name);
        assert!(found_file.view(other).data[..] == expected_file.view(tensor).data[..], "{}", tensor.name);
    }
    let settings = |folder: &Path| {
        let mut block = config(folder)["quantization"].take();
        let object = block.as_object_mut().unwrap();
        object.retain(|key, _| key != "mode");
        for entry in object.values_mut().filter_map(Value::as_object_mut) {
            entry.remove("mode");
        }
        // mlx-lm also names the modules whose settings are the default's.
        let default = json!({ "bits": object["bits"], "group_size": object["group_size"] });
        object.retain(|_, entry| *entry != default);
        block
    };
    assert_eq!(settings(found), settings(expected));
}

/// Converts a folder with these flags and gives the folder made.
#[track_caller]
fn quantized(home: &Home, from: &Path, flags: &[&str]) -> PathBuf {
    let out = home.path("quantized");
    let args = [&["convert", from.to_str().unwrap(), out.to_str().unwrap()], flags].concat();
    let run = home.run(&args);
    assert!(run.err.contains("bits a weight"), "{run:?}");
    assert_eq!(run.ok(), "");
    out
}

#[test]
fn a_quantized_folder_has_mlx_lms_bytes() {
    for family in ["llama", "qwen3_moe", "gemma3_text", "phi3", "qwen2"] {
        let home = Home::new();
        let out = quantized(&home, &fixture(family, "f32"), &["--quantize", "4:32"]);
        same_model(&out, &fixture(family, "q4g32"));
    }
}

#[test]
fn layers_with_rules_of_their_own_have_mlx_lms_bytes() {
    // A rule names modules that there are: tied models have no head, mixtures no matrix of this name.
    for (family, absent) in
        [("llama", "lm_head"), ("gemma3_text", "lm_head"), ("qwen3_moe", "*.layers.1.mlp.down_proj")]
    {
        let home = Home::new();
        let rules = MIXED.into_iter().filter(|rule| rule.split('=').next() != Some(absent));
        let flags: Vec<&str> =
            ["--quantize", "4:32"].into_iter().chain(rules.flat_map(|rule| ["--layer", rule])).collect();
        let out = quantized(&home, &fixture(family, "f32"), &flags);
        same_model(&out, &fixture(family, "mixed"));
    }
}

#[test]
fn experts_of_an_original_checkpoint_have_mlx_lms_bytes() {
    let (home, from) = (Home::new(), fixture("qwen3_moe", "f32"));
    let original = home.path("original");
    fs::create_dir(&original).unwrap();
    fs::copy(from.join("config.json"), original.join("config.json")).unwrap();
    let file = SafetensorsFile::open(&from.join("model.safetensors")).unwrap();
    let (mut specs, mut data) = (Vec::new(), Vec::new());
    for tensor in file.tensors() {
        let bytes = file.view(tensor).data.to_vec();
        let Some((prefix, module)) = tensor.name.split_once(".switch_mlp.") else {
            specs.push(TensorSpec {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
            });
            data.push(bytes);
            continue;
        };
        for (number, one) in bytes.chunks_exact(bytes.len() / tensor.shape[0]).enumerate() {
            let name = format!("{prefix}.experts.{number}.{module}");
            specs.push(TensorSpec { name, dtype: tensor.dtype, shape: tensor.shape[1..].to_vec() });
            data.push(one.to_vec());
        }
    }
    let mut writer = WeightsWriter::create(&original, specs, u64::MAX).unwrap();
    for bytes in &data {
        writer.append(bytes).unwrap();
    }
    writer.finish().unwrap();
    same_model(&quantized(&home, &original, &["--quantize", "4:32"]), &fixture("qwen3_moe", "q4g32"));
}

#[test]
fn a_quantized_folder_answers_and_keeps_its_tokenizer() {
    for scheme in ["4:32", "8", "mxfp4", "nvfp4"] {
        let home = Home::new();
        let out = quantized(&home, &home.model(), &["--quantize", scheme, "--layer", "*.down_proj=none"]);
        let model = out.to_str().unwrap();
        home.run(&[
            "generate",
            "--kernels",
            "reference",
            "--temp",
            "0",
            "-n",
            "3",
            "--model",
            model,
            "hello",
        ])
        .ok();
        assert!(home.run(&["inspect", model]).ok().contains("-bit"), "{scheme}");
    }
}

#[test]
fn a_gguf_file_becomes_a_folder_that_answers() {
    let home = Home::new();
    let (file, out) = (tiny_gguf(&home), home.path("new/out").to_str().unwrap().to_owned());
    let run = home.run(&["convert", &file, &out]);
    assert!(run.err.contains("llama"), "{run:?}");
    run.ok();
    home.run(&["generate", "--raw", "--temp", "0", "-n", "3", "--model", &out, "hello"]).ok();
    assert!(config(Path::new(&out)).get("quantization").is_none());
}

#[test]
fn a_gguf_file_is_quantized_on_request() {
    let home = Home::new();
    let (file, out) = (tiny_gguf(&home), home.path("out").to_str().unwrap().to_owned());
    let layer = ["--layer", "model.layers.0.mlp.*=4"];
    home.run(&[&["convert", "--quiet", &file, &out, "--quantize", "8:32"], &layer[..]].concat()).ok();
    let found = config(Path::new(&out));
    let of = |module: &str| {
        let path = Path::new(&out).join("model.safetensors");
        let weights = SafetensorsFile::open(&path).unwrap();
        let name = format!("{module}.weight");
        weights.tensors().iter().find(|tensor| tensor.name == name).unwrap().shape.clone()
    };
    // Rows of 64 values: sixteen 32-bit words of 8 bits each, eight of 4 bits.
    assert_eq!(
        (of("model.layers.0.self_attn.q_proj"), of("model.layers.0.mlp.up_proj")),
        (vec![64, 16], vec![96, 8])
    );
    assert_eq!(found["quantization"]["group_size"], json!(32));
    home.run(&["generate", "--raw", "--temp", "0", "-n", "3", "--model", &out, "hello"]).ok();
}

#[test]
fn a_gguf_file_keeps_its_size_on_request_and_rules_come_first() {
    let home = Home::new();
    let (file, out) = (home.path("k.gguf").to_str().unwrap().to_owned(), home.path("out"));
    let mut model = gguf::llama();
    for (name, code, data) in [
        // Q8_0 of two blocks a row, which MLX holds exactly, and IQ4_NL of three, which it does not.
        (
            "token_embd.weight",
            8,
            [0x00, 0x20].into_iter().chain([3; 32]).collect::<Vec<u8>>().repeat(259 * 2),
        ),
        (
            "blk.0.ffn_down.weight",
            20,
            [0x00, 0x20].into_iter().chain([0x5a; 16]).collect::<Vec<u8>>().repeat(64 * 3),
        ),
    ] {
        let tensor = model.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
        (tensor.kind, tensor.data) = (code, data);
    }
    fs::write(&file, model.build()).unwrap();
    let args = ["convert", &file, out.to_str().unwrap(), "--quantize", "nearest"];
    let run = home.run(&[&args[..], &["--layer", "model.embed_tokens=6:64"]].concat());
    assert!(
        run.err.contains("1 matrices have no exact MLX form") && run.err.contains("1 matrices quantized"),
        "{run:?}"
    );
    run.ok();
    let found = config(&out)["quantization"].take();
    assert_eq!((&found["bits"], &found["group_size"]), (&json!(6), &json!(32)), "{found}");
    let table = &found["model.embed_tokens"];
    assert_eq!((&table["bits"], &table["group_size"]), (&json!(6), &json!(64)), "{found}");
    home.run(&["generate", "--raw", "--temp", "0", "-n", "3", "--model", out.to_str().unwrap(), "hello"])
        .ok();
}

/// Converts what can't be converted; nothing may be left.
#[track_caller]
fn refused(home: &Home, args: &[&str], words: &[&str]) {
    let before = names(&home.path("."));
    home.run(&[&["convert"], args].concat()).refused(words);
    assert_eq!(names(&home.path(".")), before);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_cannot_be_converted_is_refused_and_leaves_nothing() {
    let home = Home::new();
    let file = tiny_gguf(&home);
    let (model, out) =
        (home.model().to_str().unwrap().to_owned(), home.path("out").to_str().unwrap().to_owned());
    refused(&home, &[&model, &out], &["model folder"]);
    refused(&home, &[&model, &out, "--quantize", "nearest"], &["model folder"]);
    refused(&home, &["no-such.gguf", &out], &["no-such.gguf"]);
    refused(&home, &[&file, &file], &["little.gguf", "exists"]);
    refused(&home, &[&file, &model], &["exists"]);
    refused(&home, &[&file, &format!("{file}/below")], &["below"]);
    refused(&home, &[&file, "/"], &["/"]);
    for from in [&model, &file] {
        refused(
            &home,
            &[from, &out, "--quantize", "4", "--layer", "lm_haed=8"],
            &["`lm_haed`", "fits no module"],
        );
    }
    let quantized = fixture("llama", "q4g32");
    refused(&home, &[quantized.to_str().unwrap(), &out, "--quantize", "8"], &["quantized already"]);
    home.configure("torch_dtype", json!("float16"));
    home.reheader(|header: &mut Map<String, Value>| {
        header.remove("model.norm.weight");
    });
    refused(&home, &[&model, &out, "--quantize", "4:32"], &["model.safetensors"]);
}

#[test]
fn weights_that_are_not_finite_are_refused_by_name_and_leave_nothing() {
    let home = Home::new();
    let path = home.model().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let (model, out) =
        (home.model().to_str().unwrap().to_owned(), home.path("out").to_str().unwrap().to_owned());
    let file = SafetensorsFile::open(&path).unwrap();
    let last = file.tensors().iter().max_by_key(|tensor| file.view(tensor).data.as_ptr() as usize).unwrap();
    assert_eq!(last.shape.len(), 2, "the last tensor is a matrix");
    refused(&home, &[&model, &out, "--quantize", "4:32"], &[&last.name, "NaN"]);
}

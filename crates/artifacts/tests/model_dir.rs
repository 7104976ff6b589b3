//! Model folders: the sharding rule, absent and broken files, and what the writer makes. Truth is the rule in
//! `shards.rs`.

use std::fs;
use std::path::Path;
use strata_artifacts::{Error, ModelDir, ShardError, TensorSpec, Weights, WeightsWriter};
use strata_contracts::Dtype;
use tempfile::TempDir;

/// A folder with a configuration and the given files; a name ending in .safetensors gets the tensors that the text
/// lists, each of one byte.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        if name.ends_with(".safetensors") { shard(&path, content) } else { fs::write(path, content).unwrap() }
    }
    folder
}

fn shard(path: &Path, tensors: &str) {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<_> = tensors.split_whitespace().collect();
    let spec = |name: &&str| TensorSpec { name: (*name).into(), dtype: Dtype::Uint8, shape: vec![1] };
    let mut writer =
        WeightsWriter::create(folder.path(), names.iter().map(spec).collect(), u64::MAX).unwrap();
    for name in &names {
        writer.append(&name.as_bytes()[..1]).unwrap();
    }
    writer.finish().unwrap();
    fs::copy(folder.path().join("model.safetensors"), path).unwrap();
}

fn load(folder: &TempDir) -> Result<Weights, Error> {
    ModelDir::open(folder.path())?.weights()
}

fn refused(files: &[(&str, &str)]) -> ShardError {
    match load(&folder(files)) {
        Err(Error::Shards { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const MAP: &str = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}}"#;

#[test]
fn a_complete_sharding_is_loaded_with_an_index_and_without() {
    for files in [&[(FIRST, "a"), (SECOND, "b c"), (INDEX, MAP)][..], &[(FIRST, "a"), (SECOND, "b c")]] {
        let weights = load(&folder(files)).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((weights.len(), weights.total_bytes()), (3, 3));
        assert_eq!(&*weights.require("c").unwrap().data, b"c");
        assert!(weights.get("d").is_none());
        let missing = weights.require("d").unwrap_err();
        assert!(missing.to_string().contains("`d`"), "{missing}");
    }
}

#[test]
fn b41_an_absent_shard_is_refused_by_name_before_anything_is_read() {
    let missing = ShardError::MissingShard { file: SECOND.into() };
    assert_eq!(refused(&[(FIRST, "a"), (INDEX, MAP)]), missing);
    assert_eq!(refused(&[(FIRST, "a")]), missing);
    let folder = folder(&[(FIRST, "a"), (INDEX, MAP)]);
    assert!(ModelDir::open(folder.path()).is_err(), "found before the weights are opened");
}

#[test]
fn b41_an_index_from_another_sharding_is_refused() {
    // Its files are absent.
    let other = r#"{"weight_map": {"a": "model-00001-of-00003.safetensors"}}"#;
    let problem = refused(&[(FIRST, "a"), (SECOND, "b c"), (INDEX, other)]);
    assert_eq!(problem, ShardError::MissingShard { file: "model-00001-of-00003.safetensors".into() });
    // Its files are there and hold other tensors.
    let problem = refused(&[(FIRST, "a b"), (SECOND, "c"), (INDEX, MAP)]);
    assert_eq!(problem, ShardError::UnlistedTensor { tensor: "b".into(), file: FIRST.into() });
    let problem = refused(&[(FIRST, ""), (SECOND, "a b c"), (INDEX, MAP)]);
    assert_eq!(problem, ShardError::MissingTensor { tensor: "a".into(), file: FIRST.into() });
}

#[test]
fn b41_a_stray_file_beside_the_shards_is_left_alone_and_noted() {
    let folder = folder(&[(FIRST, "a"), (SECOND, "b c"), (INDEX, MAP), ("model.safetensors", "a x")]);
    let model = ModelDir::open(folder.path()).unwrap();
    assert_eq!(model.shards().ignored, ["model.safetensors"]);
    assert_eq!(model.weights().unwrap().names().collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn b41_without_an_index_a_single_file_wins_and_shards_are_noted() {
    let folder = folder(&[(FIRST, "a"), ("model.safetensors", "a x"), ("consolidated.safetensors", "y")]);
    let model = ModelDir::open(folder.path()).unwrap();
    assert_eq!(model.shards().ignored, ["consolidated.safetensors", FIRST]);
    assert_eq!(model.weights().unwrap().names().collect::<Vec<_>>(), ["a", "x"]);
}

#[test]
fn b41_two_sets_of_shards_without_an_index_are_refused() {
    let other = "model-00001-of-00003.safetensors";
    let problem = refused(&[(FIRST, "a"), (SECOND, "b"), (other, "a")]);
    assert_eq!(problem, ShardError::TwoSets { first: FIRST.into(), second: other.into() });
}

#[test]
fn b41_a_tensor_in_two_shards_is_refused() {
    let problem = refused(&[(FIRST, "a b"), (SECOND, "b c")]);
    assert_eq!(
        problem,
        ShardError::TensorTwice { tensor: "b".into(), first: FIRST.into(), second: SECOND.into() }
    );
}

#[test]
fn an_index_may_name_only_files_beside_it() {
    for file in ["../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..", "", "model.bin"] {
        let index = format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#);
        let problem = refused(&[("model.safetensors", "a"), (INDEX, &index)]);
        assert_eq!(problem, ShardError::FileName { tensor: "a".into(), file: file.into() });
    }
}

#[test]
fn folders_without_weights_under_a_known_name_are_refused() {
    assert_eq!(refused(&[]), ShardError::NoWeights);
    let problem = refused(&[("weights.safetensors", "a")]);
    assert_eq!(problem, ShardError::UnknownNames { found: "weights.safetensors".into() });
    let problem = refused(&[("model-1-of-2.safetensors", "a")]);
    assert_eq!(problem, ShardError::UnknownNames { found: "model-1-of-2.safetensors".into() });
    let problem = refused(&[("model-00000-of-00000.safetensors", "a")]);
    assert_eq!(problem, ShardError::UnknownNames { found: "model-00000-of-00000.safetensors".into() });
    assert_eq!(
        refused(&[("model.safetensors", "a"), (INDEX, r#"{"weight_map": {}}"#)]),
        ShardError::EmptyIndex
    );
}

#[test]
fn a_broken_index_or_shard_is_an_error_and_not_a_reason_to_look_elsewhere() {
    for index in ["", "{", "[]", "{}", r#"{"weight_map": []}"#, r#"{"weight_map": {"a": 3}}"#] {
        let folder = folder(&[("model.safetensors", "a"), (INDEX, index)]);
        assert!(matches!(load(&folder), Err(Error::Json { path, .. }) if path.ends_with(INDEX)), "{index}");
    }
    let folder = folder(&[(FIRST, "a"), (SECOND, "b c"), (INDEX, MAP)]);
    let cut = fs::read(folder.path().join(SECOND)).unwrap();
    fs::write(folder.path().join(SECOND), &cut[..cut.len() - 1]).unwrap();
    let error = load(&folder).unwrap_err();
    assert!(matches!(&error, Error::Safetensors { path, .. } if path.ends_with(SECOND)), "{error}");
    assert!(error.help().is_some());
}

#[test]
fn what_is_absent_is_named() {
    let empty = tempfile::tempdir().unwrap();
    assert!(
        matches!(ModelDir::open(empty.path()), Err(Error::MissingFile { file, .. }) if file == "config.json")
    );
    assert!(matches!(ModelDir::open(&empty.path().join("x")), Err(Error::NoFolder { .. })));
    let folder = folder(&[("model.safetensors", "a")]);
    let model = ModelDir::open(folder.path()).unwrap();
    assert!(model.file("tokenizer.json").is_none());
    let missing = model.require_file("tokenizer.json").unwrap_err();
    assert!(matches!(&missing, Error::MissingFile { file, .. } if file == "tokenizer.json"));
    assert!(missing.help().is_some());
    assert_eq!(model.json("tokenizer_config.json").unwrap(), None);
    assert!(model.generation_config().is_none());
}

#[test]
fn b34_a_broken_generation_config_is_reported_and_not_skipped() {
    for text in ["", "{\"eos_token_id\": [1,", "[]", "not json"] {
        let folder = folder(&[("model.safetensors", "a"), ("generation_config.json", text)]);
        let error = ModelDir::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("generation_config.json"), "{text}: {error}");
    }
    let folder =
        folder(&[("model.safetensors", "a"), ("generation_config.json", r#"{"eos_token_id": "x"}"#)]);
    let error = ModelDir::open(folder.path()).unwrap().end_tokens().unwrap_err().to_string();
    assert!(error.contains("`eos_token_id`") && error.contains("generation_config.json"), "{error}");
}

#[test]
fn b21_end_tokens_are_the_union_of_all_that_is_listed() {
    let folder =
        folder(&[("model.safetensors", "a"), ("generation_config.json", r#"{"eos_token_id": [1, 106]}"#)]);
    let config = r#"{"model_type": "gemma3", "eos_token_id": 1, "text_config": {"eos_token_id": [1, 7]}}"#;
    fs::write(folder.path().join("config.json"), config).unwrap();
    assert_eq!(ModelDir::open(folder.path()).unwrap().end_tokens().unwrap(), [1, 7, 106]);
}

#[test]
fn the_writer_makes_shards_that_the_reader_accepts() {
    let folder = folder(&[]);
    let spec =
        |name: &str, axis| TensorSpec { name: name.into(), dtype: Dtype::Float32, shape: vec![axis, 2] };
    let specs = vec![spec("a", 3), spec("b", 2), spec("wide", 9), spec("c", 1), spec("d", 1)];
    let mut writer = WeightsWriter::create(folder.path(), specs.clone(), 40).unwrap();
    for (value, spec) in specs.iter().enumerate() {
        assert!(
            fs::read_dir(folder.path())
                .unwrap()
                .all(|entry| { !entry.unwrap().file_name().to_string_lossy().ends_with(".safetensors") })
        );
        writer.append(&vec![value as u8; spec.bytes() as usize]).unwrap();
    }
    writer.finish().unwrap();

    let model = ModelDir::open(folder.path()).unwrap();
    let weights = model.weights().unwrap();
    let shards: Vec<Vec<_>> =
        weights.files().iter().map(|file| file.tensors().iter().map(|t| t.name.as_str()).collect()).collect();
    assert_eq!(shards, [vec!["a", "b"], vec!["wide"], vec!["c", "d"]]);
    assert_eq!(weights.files()[0].metadata()["format"], "mlx");
    let wide = weights.require("wide").unwrap();
    assert_eq!((wide.shape.as_slice(), &*wide.data), (&[9, 2][..], &[2; 72][..]));
    let index = model.json(INDEX).unwrap().unwrap();
    assert_eq!(index["metadata"]["total_size"], 128);
    let again = WeightsWriter::create(folder.path(), specs, 40);
    assert!(matches!(again, Err(Error::AlreadyExists { .. })));
}

#[test]
fn a_writer_that_is_dropped_or_fed_the_wrong_bytes_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let spec = |name: &str| TensorSpec { name: name.into(), dtype: Dtype::Float16, shape: vec![2] };
    let mut writer = WeightsWriter::create(folder.path(), vec![spec("a"), spec("b")], u64::MAX).unwrap();
    assert!(
        matches!(writer.append(&[0; 3]), Err(Error::WrittenBytes { tensor, expected: 4, found: 3 }) if tensor == "a")
    );
    drop(writer);
    let mut writer = WeightsWriter::create(folder.path(), vec![spec("a"), spec("b")], u64::MAX).unwrap();
    writer.append(&[0; 4]).unwrap();
    assert!(matches!(writer.finish(), Err(Error::WrittenBytes { tensor, .. }) if tensor == "b"));
    let twice = WeightsWriter::create(folder.path(), vec![spec("a"), spec("a")], u64::MAX);
    assert!(matches!(twice, Err(Error::Safetensors { .. })));
    let mut writer = WeightsWriter::create(folder.path(), vec![spec("a")], u64::MAX).unwrap();
    writer.append(&[0; 4]).unwrap();
    assert!(writer.append(&[0; 4]).is_err());
    drop(writer);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn kv_config_json_is_read_where_there_is_one() {
    let layers = |files: &[(&str, &str)]| {
        let files: Vec<_> = [("model.safetensors", "a")].iter().chain(files).copied().collect();
        ModelDir::open(folder(&files).path()).unwrap().kv_config()
    };
    assert!(layers(&[]).unwrap().is_none());
    let text = r#"[{"layer_idx": 3, "bits": 4, "group_size": 32}, {"layer_idx": 0, "bits": 8}]"#;
    let found = layers(&[("kv_config.json", text)]).unwrap().unwrap();
    let found = found.iter().map(|l| (l.layer, l.scheme.bits(), l.scheme.group_size()));
    assert_eq!(found.collect::<Vec<_>>(), [(3, 4, 32), (0, 8, 64)]);
    for (text, words) in [
        ("[", "is not valid JSON"),
        ("{}", "must be a list of layers but is an object"),
        ("8", "must be a list of layers but is a single value"),
        ("[]", "must be a list of at least one layer but is empty"),
        ("[8]", "entry 0: invalid type"),
        (r#"[{"bits": 8}]"#, "entry 0: missing field `layer_idx`"),
        (r#"[{"layer_idx": 0}]"#, "entry 0: missing field `bits`"),
        (r#"[{"layer_idx": -1, "bits": 8}]"#, "entry 0: invalid value"),
        (r#"[{"layer_idx": 1, "bits": 7}]"#, "entry 0: affine quantization has no 7-bit form"),
        (r#"[{"layer_idx": 0, "bits": 8}, {"layer_idx": 1, "bits": 8, "group_size": 48}]"#, "entry 1: "),
        (
            r#"[{"layer_idx": 2, "bits": 8}, {"layer_idx": 2, "bits": 4}]"#,
            "that no earlier entry names but is 2",
        ),
        (r#"[{"layer_idx": 0, "bits": NaN}]"#, "the value NaN"),
    ] {
        let error = layers(&[("kv_config.json", text)]).unwrap_err().to_string();
        assert!(error.contains("kv_config.json") && error.contains(words), "{text}: {error}");
    }
}

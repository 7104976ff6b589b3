//! The model store and what names mean: whole models or nothing, one installation at a time, errors that say why.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use strata_artifacts::{Error, ModelName, RepositoryId, Stage, Store, TensorSpec, WeightsWriter};
use strata_contracts::Dtype;
use tempfile::TempDir;

fn store() -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::at(folder.path().join("strata"));
    (folder, store)
}

/// Writes a model of one tensor.
fn model(folder: &Path) -> Result<(), Error> {
    fs::write(folder.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    let spec = TensorSpec { name: "a".into(), dtype: Dtype::Uint8, shape: vec![3] };
    let mut writer = WeightsWriter::create(folder, vec![spec], u64::MAX)?;
    writer.append(&[1, 2, 3])?;
    writer.finish()
}

fn install(store: &Store, name: &str) -> Result<std::path::PathBuf, Error> {
    store.install(name, "a test", &mut |_| (), |folder, _, _| model(folder))
}

#[test]
fn an_installed_model_is_found_listed_and_removed() {
    let (_folder, store) = store();
    assert!(store.list().unwrap().is_empty());
    assert_eq!(store.find("one").unwrap(), None);
    let path = install(&store, "two").unwrap();
    install(&store, "one").unwrap();
    assert_eq!(store.find("two").unwrap(), Some(path.clone()));
    let listed = store.list().unwrap();
    assert_eq!(listed.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!((listed[1].path.as_path(), listed[1].origin.as_str()), (path.as_path(), "a test"));
    let bytes: u64 = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(listed[1].bytes, bytes);

    store.remove("two").unwrap();
    assert!(!path.exists());
    assert!(matches!(store.remove("two"), Err(Error::NotStored { name }) if name == "two"));
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn a_model_is_built_once() {
    let (_folder, store) = store();
    let path = install(&store, "one").unwrap();
    let again = store.install("one", "", &mut |_| (), |_, _, _| panic!("built again"));
    assert_eq!(again.unwrap(), path);
}

#[test]
fn a_failed_or_unsound_build_leaves_nothing() {
    let (_folder, store) = store();
    let failed = store.install("one", "", &mut |_| (), |folder, scratch, _| {
        model(folder)?;
        fs::write(scratch.join("half"), "a download").unwrap();
        Err(Error::NoHome)
    });
    assert!(matches!(failed, Err(Error::NoHome)));
    let incomplete = store.install("one", "", &mut |_| (), |folder, _, _| {
        fs::write(folder.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
        Ok(())
    });
    assert!(matches!(incomplete, Err(Error::Shards { .. })));
    let cut = store.install("one", "", &mut |_| (), |folder, _, _| {
        model(folder)?;
        let path = folder.join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        Ok(())
    });
    assert!(matches!(cut, Err(Error::Safetensors { .. })));
    assert_eq!(store.find("one").unwrap(), None);
    assert_eq!(fs::read_dir(store.root().join("partial/one")).unwrap().count(), 0);
    install(&store, "one").unwrap();
}

#[test]
fn what_a_killed_process_left_is_cleared_and_never_taken_for_a_model() {
    let (_folder, store) = store();
    let left = store.root().join("partial/one/abc/model");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("config.json"), "{\"model_ty").unwrap();
    assert_eq!(store.find("one").unwrap(), None);
    assert!(store.list().unwrap().is_empty());
    let path = install(&store, "one").unwrap();
    assert!(path.join("model.safetensors").exists() && !left.exists());
}

#[test]
fn a_model_of_another_layout_is_made_anew() {
    let (_folder, store) = store();
    let path = install(&store, "one").unwrap();
    fs::write(path.join("strata.json"), r#"{"origin": "a test", "layout": 0}"#).unwrap();
    fs::write(path.join("stale"), "").unwrap();
    assert_eq!(store.find("one").unwrap(), None);
    assert_eq!(install(&store, "one").unwrap(), path);
    assert!(!path.join("stale").exists());
}

#[test]
fn two_installations_of_one_model_wait_for_each_other_and_build_it_once() {
    let (_folder, store) = store();
    let (waiting, waits) = mpsc::channel();
    let first = store.install("one", "", &mut |_| (), |folder, _, _| {
        let second = store.clone();
        thread::spawn(move || {
            let mut report = |progress: strata_artifacts::Progress| waiting.send(progress.stage).unwrap();
            second.install("one", "", &mut report, |_, _, _| panic!("built twice")).unwrap();
        });
        assert_eq!(waits.recv().unwrap(), Stage::Waiting);
        model(folder)
    });
    first.unwrap();
    // The channel closes when the second one is done.
    assert!(waits.recv().is_err());
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn a_store_that_cannot_be_written_is_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = install(&Store::at(file.join("strata")), "one").unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error}");
    assert!(error.to_string().contains("can't be written"), "{error}");
    assert!(error.help().unwrap().contains("STRATA_HOME"));
}

#[test]
fn names_that_would_leave_the_store_are_refused() {
    let (_folder, store) = store();
    for name in ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "ä", &"x".repeat(101)] {
        assert!(matches!(store.find(name), Err(Error::ModelName { .. })), "{name}");
        assert!(matches!(store.remove(name), Err(Error::ModelName { .. })), "{name}");
        assert!(matches!(install(&store, name), Err(Error::ModelName { .. })), "{name}");
    }
}

#[test]
fn names_are_read_in_the_written_order() {
    let (folder, store) = store();
    let parse = |name: &str| ModelName::parse(name, &store);
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    fs::create_dir(path("model")).unwrap();
    fs::write(path("file.gguf"), "").unwrap();
    fs::write(path("file.GGUF"), "").unwrap();
    fs::write(path("file.bin"), "").unwrap();

    assert_eq!(parse(&text("model")).unwrap(), ModelName::Folder(path("model")));
    for name in ["file.gguf", "file.GGUF"] {
        assert_eq!(parse(&text(name)).unwrap(), ModelName::Gguf(path(name)));
    }
    assert!(matches!(parse(&text("file.bin")), Err(Error::NotAModelFile { .. })));
    assert!(matches!(parse("smollm2").unwrap(), ModelName::Starter(starter) if starter.name == "smollm2"));
    install(&store, "smollm2").unwrap();
    assert_eq!(parse("smollm2").unwrap(), ModelName::Stored(store.root().join("models/smollm2")));
    let repository = RepositoryId::parse("org/name@v1").unwrap();
    assert_eq!((repository.id(), repository.revision()), ("org/name", "v1"));
    assert_eq!(parse("org/name@v1").unwrap(), ModelName::Repository(repository));
    for name in ["nothing", "", "nothing.gguf", "org/nothing.gguf", "/no/such/folder", "./nothing", "a b/c"] {
        let error = parse(name).unwrap_err();
        assert!(matches!(error, Error::UnknownModel { .. }), "{name}: {error}");
        assert!(error.help().unwrap().contains("smollm2"));
    }
}

#[test]
fn repository_names_are_plain() {
    assert_eq!(RepositoryId::parse("a/b").unwrap().revision(), "main");
    assert_eq!(RepositoryId::parse("a-1/b_2.x@refs/pr/7").unwrap().revision(), "refs/pr/7");
    for name in ["a", "a/b/c", "/b", "a/", "../b", "a/..", "a/b@", "a/b@../../c", "a/b@x//y", "a/b c", "-a/b"]
    {
        assert_eq!(RepositoryId::parse(name), None, "{name}");
    }
}

//! The committed results of the oracle are readable and complete, so that a comparison with them means something.

use std::fs;
use std::path::{Path, PathBuf};
use strata_tests::parity::{Batch, Results};

#[test]
fn every_committed_results_file_is_sound() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/parity");
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(files.len() >= 9, "at least one results file a family, found {}", files.len());
    for file in files {
        let results = Results::read(&file).unwrap();
        assert_eq!(results.rows.len() == 1, results.batch == Batch::None, "{}", file.display());
        for row in &results.rows {
            let positions = row.tokens.len() + row.decode_tokens.len();
            assert_eq!(row.logits.shape[0], positions, "{}", file.display());
            assert!(!row.cache.is_empty(), "{}", file.display());
            assert!(row.logits.floats().iter().all(|logit| logit.is_finite()), "{}", file.display());
        }
    }
}

/// Results files: safetensors that are not a model's weights.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("model") {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(path);
        }
    }
}

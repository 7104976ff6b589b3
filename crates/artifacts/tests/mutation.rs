//! Randomly damaged safetensors files: an error or tensors within bounds, never a panic, and never more memory than a
//! small multiple of the file. Alone in its binary, since the allocator counts what every thread takes.

use proptest::prelude::*;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::path::Path;
use strata_artifacts::{Error, Mapped, SafetensorsFile, TensorSpec, WeightsWriter};
use strata_contracts::Dtype;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Parses a file and gives the bytes that were taken from the heap for it, those given back included.
fn parse(bytes: Vec<u8>) -> (Result<SafetensorsFile, Error>, usize) {
    let mapped = Mapped::from(bytes);
    let region = Region::new(ALLOCATOR);
    let result = SafetensorsFile::parse(Path::new("x"), mapped);
    (result, region.change().bytes_allocated)
}

/// The bytes of a sound file in which every byte of data is 7.
fn written(tensors: Vec<TensorSpec>) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let sizes: Vec<_> = tensors.iter().map(TensorSpec::bytes).collect();
    let mut writer = WeightsWriter::create(folder.path(), tensors, u64::MAX).unwrap();
    for size in sizes {
        writer.append(&vec![7; size as usize]).unwrap();
    }
    writer.finish().unwrap();
    std::fs::read(folder.path().join("model.safetensors")).unwrap()
}

fn specs() -> impl Strategy<Value = Vec<TensorSpec>> {
    let dtype = prop::sample::select(vec![Dtype::Uint8, Dtype::Bfloat16, Dtype::Float32, Dtype::Int64]);
    let form = (dtype, prop::collection::vec(0usize..5, 0..4));
    prop::collection::btree_map("[a-z.\"\\\\é]{1,8}", form, 1..6).prop_map(|specs| {
        specs.into_iter().map(|(name, (dtype, shape))| TensorSpec { name, dtype, shape }).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_damaged_file_is_refused_or_stays_within_its_bounds_and_memory(
        tensors in specs(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = written(tensors.clone());
        let sound = parse(bytes.clone()).0.unwrap();
        prop_assert_eq!(sound.tensors().len(), tensors.len());
        for tensor in &tensors {
            let info = sound.tensors().iter().find(|info| info.name == tensor.name).unwrap();
            prop_assert_eq!((info.dtype, &info.shape), (tensor.dtype, &tensor.shape));
            prop_assert!(sound.view(info).data.iter().all(|&byte| byte == 7));
        }

        for (place, byte) in edits {
            let place = place.index(bytes.len());
            // Half of the edits put a byte that JSON gives meaning to.
            bytes[place] = if byte < 128 { b"{}[],:\"-0129eE. \\"[usize::from(byte) % 17] } else { byte };
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let length = bytes.len();
        let (damaged, taken) = parse(bytes);
        prop_assert!(taken <= 16 * length + 4096, "{} bytes for a file of {}", taken, length);
        if let Ok(file) = damaged {
            for info in file.tensors() {
                prop_assert!(info.range.end <= length);
                let size = info.shape.iter().product::<usize>() * info.dtype.size();
                prop_assert_eq!(file.view(info).data.len(), size);
            }
        }
    }
}

//! Ten thousand damaged GGUF headers: each is read or refused; none panics, and none makes the reader allocate
//! more, all allocations together, than the file is long (or a page, for a file shorter than that). Alone in its
//! binary, because the allocator counts for the whole process.

#[path = "support/random.rs"]
mod random;
mod support;

use random::Random;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use strata_artifacts::gguf::{ConvertOptions, Gguf, TokenizerFiles, convert, dequantize};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Damages one place of the first `header` bytes, or every other time up to eight, or cuts the file there.
fn damage(file: &mut Vec<u8>, header: usize, random: &mut Random) {
    let places = [1, 1 + random.below(8)][random.below(2)];
    for _ in 0..places {
        let at = random.below(header.min(file.len()).saturating_sub(8).max(1));
        match random.below(6) {
            0 => file[at] = random.next() as u8,
            1 => file[at] ^= 1 << random.below(8),
            2 => {
                let extremes = [0, 1, u64::MAX, u64::MAX / 2, 1 << 63, 1 << 40, 1 << 32, file.len() as u64];
                let extreme = extremes[random.below(extremes.len())];
                file[at..at + 8].copy_from_slice(&extreme.to_le_bytes());
            }
            3 => {
                file.remove(at);
            }
            4 => file.insert(at, random.next() as u8),
            _ if random.below(8) == 0 => file.truncate(at.max(16)),
            _ => file[at..at + 4].copy_from_slice(&(random.next() as u32 % 16).to_le_bytes()),
        }
    }
}

#[test]
fn damaged_headers_give_errors_and_never_a_panic_or_a_large_allocation() {
    let whole = support::llama().build();
    let weights: usize = support::llama().tensors.iter().map(|tensor| tensor.data.len()).sum();
    let header = whole.len() - weights;
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("model.gguf"), folder.path().join("out"));
    let (mut refused, mut read) = (0, 0);
    for seed in 0..10_000 {
        let mut file = whole.clone();
        damage(&mut file, header, &mut Random(seed));

        let before = ALLOCATOR.stats().bytes_allocated;
        let gguf = Gguf::parse(&file);
        let allocated = ALLOCATOR.stats().bytes_allocated - before;
        assert!(allocated <= file.len().max(4096), "seed {seed}: {allocated} bytes for {}", file.len());

        let Ok(gguf) = gguf else {
            refused += 1;
            continue;
        };
        read += 1;
        let _ = TokenizerFiles::new(&gguf.metadata, 259);
        for tensor in gguf.tensors() {
            dequantize(tensor.kind, tensor.row(0), &mut Vec::new());
        }
        if read % 20 == 0 {
            std::fs::write(&path, &file).unwrap();
            std::fs::create_dir(&out).unwrap();
            let _ = convert(&path, &out, &ConvertOptions::default(), &mut |_| ());
            std::fs::remove_dir_all(&out).unwrap();
        }
    }
    assert!(refused > 5_000 && read > 500, "{refused} refused, {read} read: the damage tests nothing");
}

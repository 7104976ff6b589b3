//! Ten thousand damaged safetensors headers: each gives tensors within the file or an error; none panics, and none makes
//! the reader allocate more, all allocations together, than the file is long. Alone in its binary, because the allocator
//! counts for the whole process.

#[path = "support/random.rs"]
mod random;

use random::Random;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::path::Path;
use strata_artifacts::{Mapped, SafetensorsFile, TensorSpec, WeightsWriter};
use strata_contracts::Dtype;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes of data in the whole file: little for a model, and more than its header, as every model has.
const DATA: usize = 96_000;

/// A sound file of several types and ranks, one tensor empty, one a scalar, in which every byte of data is 7.
fn whole() -> Vec<u8> {
    let tensors: [(&str, Dtype, &[usize]); 8] = [
        ("model.embed_tokens.weight", Dtype::Bfloat16, &[151, 64]),
        ("model.layers.0.self_attn.q_proj.weight", Dtype::Uint32, &[96, 8]),
        ("model.layers.0.self_attn.q_proj.scales", Dtype::Float16, &[96, 2]),
        ("model.layers.0.mlp.experts.up_proj.weight", Dtype::Float32, &[3, 32, 64]),
        ("model.layers.0.input_layernorm.weight", Dtype::Float32, &[64]),
        ("quote\"back\\slash\u{e9}", Dtype::Int64, &[5]),
        ("nothing", Dtype::Float32, &[0, 9]),
        ("scalar", Dtype::Int32, &[]),
    ];
    let spec = |&(name, dtype, shape): &(&str, Dtype, &[usize])| TensorSpec {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
    };
    let mut specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
    let rest = DATA - specs.iter().map(|spec| spec.bytes() as usize).sum::<usize>();
    specs.push(TensorSpec { name: "rest".into(), dtype: Dtype::Uint8, shape: vec![rest] });
    let folder = tempfile::tempdir().unwrap();
    let mut writer = WeightsWriter::create(folder.path(), specs.clone(), u64::MAX).unwrap();
    for spec in specs {
        writer.append(&vec![7; spec.bytes() as usize]).unwrap();
    }
    writer.finish().unwrap();
    std::fs::read(folder.path().join("model.safetensors")).unwrap()
}

/// Damages up to four places of the header, or cuts the file.
fn damage(file: &mut Vec<u8>, header: usize, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(header.min(file.len()));
        match random.below(9) {
            0 => file[at] = random.next() as u8,
            1 => file[at] ^= 1 << random.below(8),
            // A byte that JSON gives meaning to.
            2 => file[at] = b"{}[],:\"-0129eE. \\"[random.below(17)],
            3 => {
                file.remove(at);
            }
            4 => file.insert(at, b"{}[]0\","[random.below(7)]),
            5 => {
                let lengths =
                    [0, 1, 2, u64::MAX, u64::MAX / 2, 1 << 63, 1 << 40, 100_000_001, file.len() as u64];
                file[..8].copy_from_slice(&lengths[random.below(lengths.len())].to_le_bytes());
            }
            6 => replace_number(file, at, random),
            7 => {
                // A run of one character: depth, or a name or a number without end.
                let run = vec![b"[{\"9 "[random.below(5)]; random.below(5_000)];
                file.splice(at..at, run);
            }
            _ if random.below(8) == 0 => file.truncate(random.below(file.len())),
            _ => {}
        }
    }
}

/// Puts an extreme where the first number behind `at` is.
fn replace_number(file: &mut Vec<u8>, at: usize, random: &mut Random) {
    let digit = |byte: &u8| byte.is_ascii_digit();
    let Some(start) = file[at..].iter().position(digit).map(|offset| at + offset) else { return };
    let end = file[start..].iter().position(|byte| !digit(byte)).map_or(file.len(), |length| start + length);
    let extremes = [
        "0",
        "-1",
        "18446744073709551615",
        "18446744073709551616",
        "9223372036854775807",
        "4294967296",
        "1e400",
        "1.5",
        "null",
        "[]",
        "1000000000",
    ];
    file.splice(start..end, extremes[random.below(extremes.len())].bytes());
}

#[test]
fn damaged_headers_give_errors_and_never_a_panic_or_a_large_allocation() {
    let whole = whole();
    let header = whole.len() - DATA;
    let sound = SafetensorsFile::parse(Path::new("x"), Mapped::from(whole.clone())).unwrap();
    assert_eq!(sound.tensors().len(), 9);
    assert!(sound.tensors().iter().all(|info| sound.view(info).data.iter().all(|&byte| byte == 7)));

    let (mut refused, mut read) = (0, 0);
    for seed in 0..10_000 {
        let mut file = whole.clone();
        damage(&mut file, header, &mut Random(seed));
        let length = file.len();
        let mapped = Mapped::from(file);

        let before = ALLOCATOR.stats().bytes_allocated;
        let parsed = SafetensorsFile::parse(Path::new("x"), mapped);
        let allocated = ALLOCATOR.stats().bytes_allocated - before;
        assert!(allocated <= length.max(4096), "seed {seed}: {allocated} bytes for {length}");

        let Ok(parsed) = parsed else {
            refused += 1;
            continue;
        };
        read += 1;
        for info in parsed.tensors() {
            assert!(info.range.end <= length, "seed {seed}: {info:?}");
            let size = info.shape.iter().product::<usize>() * info.dtype.size();
            assert_eq!(parsed.view(info).data.len(), size, "seed {seed}: {info:?}");
        }
    }
    assert!(refused > 5_000 && read > 500, "{refused} refused, {read} read: the damage tests nothing");
}

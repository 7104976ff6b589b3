//! MLX's own readers and writers.

use crate::support::{array, close, floats, i32s, numbers};
use half::f16;
use std::fs;
use std::path::Path;
use strata_tensor::io::{load_gguf, load_safetensors, save_safetensors};
use strata_tensor::ops::{Quantized, dequantize};
use strata_tensor::{Array, Dtype};

#[test]
fn safetensors_come_back_with_types_shapes_and_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let halves = array([5, 2]).astype(Dtype::Bfloat16).unwrap();
    // Not in row-major order when it is written.
    let turned = array([3, 4]).transpose(&[1, 0]).unwrap();
    let whole = i32s(&[-1, 2, 3], [3]);
    let arrays = [("halves", &halves), ("turned", &turned), ("whole", &whole)];
    save_safetensors(&path, arrays, &[("format", "mlx"), ("ä", "ö")]).unwrap();
    let (found, metadata) = load_safetensors(&path).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["halves", "turned", "whole"]);
    for (name, array) in arrays {
        assert_eq!((found[name].shape(), found[name].dtype()), (array.shape(), array.dtype()));
        assert_eq!(found[name].to_bytes().unwrap(), array.to_bytes().unwrap(), "{name}");
    }
    assert_eq!((metadata["format"].as_str(), metadata["ä"].as_str()), ("mlx", "ö"));
}

#[test]
fn files_that_cannot_be_read_or_written_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.safetensors");
    let error = load_safetensors(&absent).unwrap_err().to_string();
    assert!(error.starts_with("load_safetensors: ") && error.contains("files.rs"), "{error}");
    let error = load_gguf(&folder.path().join("absent.gguf")).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("load_gguf: "), "{error}");
    let nowhere = folder.path().join("no/such/folder/a.safetensors");
    assert!(save_safetensors(&nowhere, [("x", &array([2]))], &[]).is_err());
    assert!(load_safetensors(Path::new("a\0b")).is_err());
    let broken = folder.path().join("b.safetensors");
    for bytes in [&b""[..], b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\x02\0\0\0\0\0\0\0[]"] {
        fs::write(&broken, bytes).unwrap();
        assert!(load_safetensors(&broken).is_err(), "{bytes:?}");
    }
}

/// A GGUF file with one text and two tensors: `x` float32 `[2, 3]`, and `w` `[2, 32]` as Q4_0.
fn gguf(blocks: &[u8]) -> Vec<u8> {
    let text = |t: &str| [&(t.len() as u64).to_le_bytes()[..], t.as_bytes()].concat();
    let tensor = |name: &str, columns: u64, kind: u32, offset: u64| {
        let dims = [&2u32.to_le_bytes()[..], &columns.to_le_bytes(), &2u64.to_le_bytes()].concat();
        [text(name), dims, kind.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat()
    };
    let floats: Vec<u8> = numbers(6).iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &2u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    file.extend([text("general.name"), 8u32.to_le_bytes().to_vec(), text("tiny")].concat());
    file.extend([tensor("x.weight", 3, 0, 0), tensor("w.weight", 32, 2, 32)].concat());
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(floats);
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(blocks);
    file
}

#[test]
fn gguf_files_come_as_arrays_and_affine_groups() {
    // Q4_0: an f16 scale, then 16 bytes with values i and i + 16 in the low and high half, 8 being zero.
    let codes =
        |row: u32| (0..16).map(move |i: u32| ((i + row) % 16) as u8 | (((i * 3 + row) % 16) as u8) << 4);
    let scales = [f16::from_f32(0.5), f16::from_f32(-0.25)];
    let blocks: Vec<u8> = (0..2)
        .flat_map(|row| scales[row].to_le_bytes().into_iter().chain(codes(row as u32)).collect::<Vec<_>>())
        .collect();
    let mut expected = Vec::new();
    for (scale, row) in scales.iter().zip(0..) {
        let value = |code: u8| f64::from(scale.to_f32()) * (f64::from(code) - 8.0);
        expected.extend(codes(row).map(|byte| value(byte & 15)));
        expected.extend(codes(row).map(|byte| value(byte >> 4)));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    fs::write(&path, gguf(&blocks)).unwrap();
    let file = load_gguf(&path).unwrap();
    assert_eq!(file.metadata_text("general.name").unwrap().as_deref(), Some("tiny"));
    assert_eq!(file.metadata_text("general.absent").unwrap(), None);
    let x: Array = file.array("x.weight").unwrap();
    assert_eq!((x.shape(), floats(&x)), ([2, 3].into(), numbers(6)));
    let mut names = file.names().unwrap();
    names.sort();
    assert_eq!(names, ["w.biases", "w.scales", "w.weight", "x.weight"]);
    let part = |name: &str| file.array(name).unwrap();
    let scheme = strata_contracts::QuantScheme::affine(4, 32).unwrap();
    let w = Quantized {
        weight: part("w.weight"),
        scales: part("w.scales"),
        biases: Some(part("w.biases")),
        scheme,
    };
    close(&dequantize(&w, Some(Dtype::Float32)).unwrap(), [2, 32], &expected, 1e-6);
    assert!(file.array("absent").is_err());
}

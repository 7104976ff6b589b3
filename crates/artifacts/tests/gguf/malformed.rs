//! A GGUF file that lies gives an error that names the key or the tensor: no panic, no wrap-around, no allocation
//! by a count. Files are the tiny model of `support`, broken in one place.

use crate::support::{Builder, Value, llama, text};
use strata_artifacts::gguf::{Gguf, GgufError};

fn refuse(file: &[u8]) -> GgufError {
    Gguf::parse(file).expect_err("the file must be refused")
}

/// The tiny model with one tensor's header entry replaced.
fn with_tensor(dims: &[u64], kind: u32, data: Vec<u8>) -> Vec<u8> {
    Builder::default().tensor("w", dims, kind, data).build()
}

#[test]
fn the_well_formed_model_is_read() {
    let file = llama().build();
    let gguf = Gguf::parse(&file).unwrap();
    assert_eq!(gguf.version, 3);
    assert_eq!(gguf.tensor("blk.0.ffn_down.weight").unwrap().shape(), [64, 96]);
    assert_eq!(gguf.metadata.string("general.architecture").unwrap(), Some("llama"));
    assert_eq!(gguf.metadata.strings("tokenizer.ggml.tokens").unwrap()[257], "he");
}

#[test]
fn a_bad_magic_a_bad_version_and_big_endian_are_told_apart() {
    let good = llama().build();
    assert!(matches!(refuse(b""), GgufError::Magic { .. }));
    assert!(matches!(refuse(b"GG"), GgufError::Magic { .. }));
    assert!(matches!(refuse(b"GGML\x03\0\0\0"), GgufError::Magic { .. }));
    let mut version = good.clone();
    version[4] = 9;
    assert!(matches!(refuse(&version), GgufError::Version { found: 9 }));
    let mut swapped = good;
    swapped[4..8].copy_from_slice(&3_u32.to_be_bytes());
    assert!(matches!(refuse(&swapped), GgufError::BigEndian));
}

#[test]
fn every_prefix_of_a_file_is_refused() {
    let file = llama().build();
    for length in (0..file.len()).step_by(97).chain(0..400) {
        assert!(Gguf::parse(&file[..length]).is_err(), "a prefix of {length} bytes was accepted");
    }
}

#[test]
fn b39_dimensions_that_wrap_around_are_refused() {
    let error = refuse(&with_tensor(&[u64::MAX, 2], 0, vec![0; 64]));
    assert!(matches!(&error, GgufError::TooLarge { tensor, .. } if tensor == "w"), "{error}");
    let error = refuse(&with_tensor(&[1 << 32, 1 << 31, 2, 1], 0, vec![0; 64]));
    assert!(matches!(error, GgufError::TooLarge { .. }), "{error}");
}

#[test]
fn b39_a_zero_dimension_is_refused() {
    let error = refuse(&with_tensor(&[32, 0], 0, Vec::new()));
    assert!(matches!(&error, GgufError::ZeroDimension { tensor, .. } if tensor == "w"), "{error}");
}

#[test]
fn b39_nine_dimensions_and_none_are_refused() {
    assert!(matches!(refuse(&with_tensor(&[1; 9], 0, vec![0; 64])), GgufError::Rank { found: 9, .. }));
    assert!(matches!(refuse(&with_tensor(&[], 0, vec![0; 64])), GgufError::Rank { found: 0, .. }));
}

#[test]
fn b39_an_alignment_that_is_none_is_refused() {
    for alignment in [0, 1, 4, 24, 33] {
        let mut file = llama();
        file.set("general.alignment", Value::U32(alignment));
        let error = refuse(&file.build());
        assert!(matches!(error, GgufError::Alignment { found } if found == u64::from(alignment)), "{error}");
    }
}

#[test]
fn b39_a_gigabyte_string_in_a_short_file_is_refused() {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(0_u64.to_le_bytes());
    file.extend(1_u64.to_le_bytes());
    file.extend((1_u64 << 30).to_le_bytes());
    file.resize(200, b'k');
    assert!(matches!(refuse(&file), GgufError::Truncated { wanted: 0x4000_0000, .. }));
}

#[test]
fn b39_an_empty_key_is_refused() {
    let mut file = Builder::default();
    file.metadata.push((String::new(), Value::U32(1)));
    assert!(matches!(refuse(&file.build()), GgufError::EmptyKey { index: 0 }));
}

#[test]
fn counts_beyond_the_file_are_refused() {
    for field in [8..16, 16..24] {
        for count in [u64::MAX, 1 << 40, 100] {
            let mut file = llama().build();
            file[field.clone()].copy_from_slice(&count.to_le_bytes());
            refuse(&file);
        }
    }
    let mut array = 4_u32.to_le_bytes().to_vec();
    array.extend(u64::MAX.to_le_bytes());
    let mut file = llama();
    file.set("a", Value::Raw(9, array));
    refuse(&file.build());
}

#[test]
fn a_key_or_a_tensor_that_appears_twice_is_refused() {
    let mut file = llama();
    file.metadata.push(("llama.block_count".into(), Value::U32(2)));
    assert!(matches!(refuse(&file.build()), GgufError::DuplicateKey { key } if key == "llama.block_count"));
    let mut file = llama();
    file.floats("output_norm.weight", &[64], &[0.5; 64]);
    assert!(
        matches!(refuse(&file.build()), GgufError::DuplicateTensor { tensor } if tensor == "output_norm.weight")
    );
}

#[test]
fn an_unknown_value_type_and_a_boolean_of_two_are_refused() {
    let mut file = llama();
    file.set("x", Value::Raw(13, Vec::new()));
    assert!(matches!(refuse(&file.build()), GgufError::ValueType { code: 13, .. }));
    file.set("x", Value::Raw(7, vec![2]));
    assert!(matches!(refuse(&file.build()), GgufError::Boolean { found: 2, .. }));
}

#[test]
fn arrays_nest_four_deep_and_no_deeper() {
    let nested = |depth: usize| {
        let mut bytes = Vec::new();
        for _ in 1..depth {
            bytes.extend(9_u32.to_le_bytes());
            bytes.extend(1_u64.to_le_bytes());
        }
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        bytes.push(7);
        let mut file = Builder::default();
        file.set("x", Value::Raw(9, bytes));
        file.build()
    };
    assert!(Gguf::parse(&nested(4)).is_ok());
    assert!(matches!(refuse(&nested(5)), GgufError::ArrayDepth { limit: 4, .. }));
    assert!(matches!(refuse(&nested(100_000)), GgufError::ArrayDepth { .. }));
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let mut file = Builder::default();
    let mut bytes = text("ok");
    bytes[9] = 0xff;
    file.set("x", Value::Raw(8, bytes));
    assert!(matches!(refuse(&file.build()), GgufError::Utf8 { .. }));
}

#[test]
fn a_type_that_is_not_read_is_named() {
    let error = refuse(&with_tensor(&[256], 16, vec![0; 66]));
    let message = error.to_string();
    assert!(message.contains("`w`") && message.contains("IQ2_XXS") && message.contains("Q6_K"), "{message}");
}

#[test]
fn a_row_of_broken_blocks_is_refused() {
    let error = refuse(&with_tensor(&[48, 2], 2, vec![0; 96]));
    assert!(matches!(error, GgufError::Blocks { columns: 48, block: 32, .. }), "{error}");
}

#[test]
fn tensor_data_must_be_aligned_inside_the_file_and_its_own() {
    let mut file = Builder::default();
    file.floats("a", &[16], &[0.0; 16]).floats("b", &[8], &[0.0; 8]);
    let good = file.build();
    assert!(Gguf::parse(&good).is_ok());
    // The header ends with b's offset; a's stands one entry before it.
    let header = 24 + (8 + 1 + 4 + 8 + 4 + 8) * 2;
    let offset_of_b = |offset: u64| {
        let mut file = good.clone();
        file[header - 8..header].copy_from_slice(&offset.to_le_bytes());
        file
    };
    assert!(matches!(refuse(&offset_of_b(4)), GgufError::Misaligned { offset: 4, alignment: 32, .. }));
    assert!(matches!(refuse(&offset_of_b(32)), GgufError::Overlap { .. }));
    assert!(matches!(refuse(&offset_of_b(96)), GgufError::OutOfRange { available: 96, .. }));
    assert!(matches!(refuse(&offset_of_b(u64::MAX - 31)), GgufError::OutOfRange { .. }));
}

//! Safetensors files that lie, are cut or are broken: an error each that names what is wrong. Truth is the format's
//! description. Random damage is in `mutation.rs`.

use std::path::Path;
use strata_artifacts::{Error, HeaderError, Mapped, SafetensorsFile};
use strata_contracts::Dtype;

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..data).map(|byte| byte as u8));
    bytes
}

fn open(bytes: Vec<u8>) -> Result<SafetensorsFile, HeaderError> {
    match SafetensorsFile::parse(Path::new("model.safetensors"), Mapped::from(bytes)) {
        Ok(file) => Ok(file),
        Err(Error::Safetensors { problem, .. }) => Err(problem),
        Err(other) => panic!("{other}"),
    }
}

/// Asserts that `header` with `data` bytes is refused and that the message holds `says`.
fn refused(header: &str, data: usize, says: &str) -> HeaderError {
    let problem = open(file(header, data)).expect_err(header);
    assert!(problem.to_string().contains(says), "{header}\n{problem}\nexpected: {says}");
    problem
}

#[test]
fn a_sound_file_is_read_whatever_the_order_of_its_entries() {
    let header = r#"{"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
        "__metadata__":{"format":"mlx"},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
        "none":{"dtype":"U8","shape":[0,7],"data_offsets":[16,16]}}   "#;
    let file = open(file(header, 16)).unwrap();
    assert_eq!(file.metadata()["format"], "mlx");
    let names: Vec<_> = file.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["s", "b", "none"]);
    let b = file.view(&file.tensors()[1]);
    assert_eq!((b.dtype, b.shape.as_slice()), (Dtype::Bfloat16, &[2, 3][..]));
    assert_eq!(&*b.data, (4..16).collect::<Vec<u8>>());
    assert!(file.view(&file.tensors()[2]).data.is_empty());
}

#[test]
fn metadata_may_be_null_as_mlx_writes_it() {
    let header = r#"{"__metadata__":null,"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
    let file = open(file(header, 4)).unwrap();
    assert_eq!((file.metadata().len(), file.tensors().len()), (0, 1));
}

#[test]
fn b36_offsets_smaller_than_the_shape_are_refused_by_name() {
    let header = r#"{"big.weight":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}"#;
    let problem = refused(header, 4, "`big.weight`");
    assert!(matches!(problem, HeaderError::Size { expected: 4_000_000, found: 4, .. }));
}

#[test]
fn b36_data_shorter_than_the_offsets_is_refused_by_name() {
    let header = r#"{"big.weight":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4000000]}}"#;
    let problem = refused(header, 4, "`big.weight`");
    assert!(matches!(problem, HeaderError::Truncated { end: 4_000_000, available: 4, .. }));
}

#[test]
fn b36_a_file_cut_anywhere_is_refused() {
    let header = r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}"#;
    let whole = file(header, 12);
    assert!(open(whole.clone()).is_ok());
    for length in 0..whole.len() {
        assert!(open(whole[..length].to_vec()).is_err(), "cut to {length} bytes");
    }
}

#[test]
fn b37_offsets_that_are_no_range_are_refused() {
    let entry = |offsets: &str| format!(r#"{{"a":{{"dtype":"U8","shape":[8],"data_offsets":{offsets}}}}}"#);
    for offsets in ["[]", "[8]", "[0,4,8]", "[8,0]"] {
        assert!(matches!(refused(&entry(offsets), 8, "`a`"), HeaderError::Offsets { .. }), "{offsets}");
    }
    for offsets in ["[-4,4]", "[0,8.5]", "[0,\"8\"]", "null", "8", "[0,18446744073709551616]", "[0,[8]]"] {
        assert!(matches!(refused(&entry(offsets), 8, "`a`"), HeaderError::Json(_)), "{offsets}");
    }
    let far = entry("[18446744073709551607,18446744073709551615]");
    assert!(matches!(refused(&far, 8, "`a`"), HeaderError::Truncated { .. }));
}

#[test]
fn b37_overlaps_and_gaps_are_refused() {
    let two = |first: &str, second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[16],"data_offsets":{first}}},"b":{{"dtype":"U8","shape":[16],"data_offsets":{second}}}}}"#
        )
    };
    assert!(matches!(refused(&two("[0,16]", "[0,16]"), 16, "`a` and `b`"), HeaderError::Overlap { .. }));
    assert!(matches!(refused(&two("[8,24]", "[0,16]"), 24, "`b` and `a`"), HeaderError::Overlap { .. }));
    assert!(matches!(refused(&two("[0,16]", "[20,36]"), 36, "16 to 20"), HeaderError::Gap { .. }));
    assert!(matches!(refused(&two("[4,20]", "[20,36]"), 36, "0 to 4"), HeaderError::Gap { .. }));
    assert!(matches!(refused(&two("[0,16]", "[16,32]"), 40, "32 to 40"), HeaderError::Gap { .. }));
    assert!(open(file(&two("[16,32]", "[0,16]"), 32)).is_ok());
    assert!(matches!(refused("{}", 4, "0 to 4"), HeaderError::Gap { .. }));
}

#[test]
fn b37_an_unknown_dtype_is_refused_by_name_wherever_its_data_lies() {
    for dtype in ["F8_E4M3", "F8_E5M2", "Q4", "f32", ""] {
        let header =
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":[4],"data_offsets":[99999999999,99999999999]}}}}"#);
        let problem = refused(&header, 4, &format!("`a` has dtype `{dtype}`"));
        assert!(matches!(problem, HeaderError::Dtype { .. }));
    }
}

#[test]
fn b37_a_header_longer_than_the_file_is_refused() {
    for length in [3, 100, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        assert!(matches!(open(bytes), Err(HeaderError::BeyondFile { available: 2, .. })), "{length}");
    }
}

#[test]
fn files_shorter_than_the_length_field_are_refused() {
    for length in 0..8 {
        assert!(
            matches!(open(vec![0; length]), Err(HeaderError::TooShort { bytes }) if bytes == length as u64)
        );
    }
    assert!(matches!(open(vec![0; 8]), Err(HeaderError::Json(_))));
}

#[test]
fn headers_that_are_not_the_formats_json_are_refused() {
    for header in [
        "",
        " ",
        "[]",
        "null",
        "{",
        "{}x",
        r#"{"a":3}"#,
        r#"{"a":{}}"#,
        r#"{"a":{"dtype":"U8","shape":[1]}}"#,
        r#"{"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}"#,
        r#"{"__metadata__":{"format":3}}"#,
        r#"{"__metadata__":{},"__metadata__":{}}"#,
    ] {
        assert!(matches!(open(file(header, 0)), Err(HeaderError::Json(_))), "{header}");
    }
    let mut bytes = file(r#"{"a_":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, 0);
    bytes[11] = 0xff;
    assert!(matches!(open(bytes), Err(HeaderError::Json(_))), "not UTF-8");
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    assert!(matches!(open(file(&deep, 0)), Err(HeaderError::Json(_))), "deep nesting");
}

#[test]
fn a_name_listed_twice_is_refused() {
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#;
    assert!(matches!(refused(header, 3, "`a`"), HeaderError::Duplicate { .. }));
}

#[test]
fn shapes_that_overflow_are_refused() {
    for shape in ["[4294967296,4294967296]", "[18446744073709551615,2]", "[2147483648]", "[0,2147483648]"] {
        let header = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}"#);
        assert!(matches!(refused(&header, 0, "`a`"), HeaderError::Shape { .. }), "{shape}");
    }
}

#[test]
fn a_missing_file_and_an_empty_one_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    assert!(matches!(SafetensorsFile::open(&path), Err(Error::Io { .. })));
    std::fs::write(&path, b"").unwrap();
    let error = SafetensorsFile::open(&path).unwrap_err();
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    assert!(matches!(error, Error::Safetensors { problem: HeaderError::TooShort { bytes: 0 }, .. }));
}

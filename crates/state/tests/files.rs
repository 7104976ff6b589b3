//! Snapshots and files of them: what comes back is what went in, and whatever else is in a file is refused.

use std::fs;
use std::path::{Path, PathBuf};
use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use strata_state::{DiskCache, Phase, Snapshot, State};
use strata_tensor::{Array, Dtype, random};

const LAYERS: [LayerKind; 3] = [
    LayerKind::Full { kv_heads: 2, head_dim: 32 },
    LayerKind::Sliding { kv_heads: 1, head_dim: 64, window: 5 },
    LayerKind::Shared { donor: 0 },
];

fn empty(format: KvFormat) -> State {
    let kv = KvScheme { format, ..KvScheme::default() };
    let composition = Composition { kernels: KernelSet::Reference, kv, ..Composition::default() };
    State::compose(&LAYERS, &composition).unwrap()
}

fn affine() -> KvFormat {
    KvFormat::Affine(QuantScheme::affine(4, 32).unwrap())
}

fn normal(seed: u64, shape: [i32; 4]) -> Array {
    random::normal(0.0, 1.0, shape, Dtype::Bfloat16, &random::Key::new(seed).unwrap()).unwrap()
}

/// Reads `length` positions that depend on the position alone; attention's bytes.
fn read(state: &mut State, length: usize) -> Vec<Vec<u8>> {
    let seed = 10 * state.position() as u64;
    let outs = LAYERS[..2].iter().enumerate().map(|(layer, kind)| {
        let (heads, dim) = match *kind {
            LayerKind::Full { kv_heads, head_dim } | LayerKind::Sliding { kv_heads, head_dim, .. } => {
                (kv_heads, head_dim)
            }
            _ => (0, 0),
        };
        let shape = [1, heads as i32, length as i32, dim as i32];
        let (k, v) = (normal(seed, shape), normal(seed + 1, shape));
        let read = state.layer(layer).append(&k, &v, Phase::Window).unwrap();
        read.attend(&normal(seed + 2, shape), 0.2).unwrap().to_bytes().unwrap()
    });
    let outs = outs.collect();
    state.advance(length);
    outs
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i * i).collect()
}

fn snapshot(namespace: &str, count: usize) -> Snapshot {
    let mut state = empty(KvFormat::Plain);
    read(&mut state, count);
    state.snapshot(namespace, &tokens(count)).unwrap()
}

#[test]
fn a_state_goes_on_from_its_file_with_the_same_bits() {
    for (format, spans) in [
        (KvFormat::Plain, vec![3, 1, 1, 1, 1]),
        (KvFormat::Plain, vec![9, 2]),
        (affine(), vec![4, 1, 1, 1]),
        (affine(), vec![2]),
    ] {
        let mut state = empty(format.clone());
        for &span in &spans {
            read(&mut state, span);
        }
        let count = spans.iter().sum();
        let file = state.snapshot("m", &tokens(count)).unwrap().encode();
        let mut back = Snapshot::decode(&file).unwrap().restore(&empty(format)).unwrap();
        assert_eq!(back.position(), count);
        for length in [1, 3, 1, 1, 1, 1, 1, 1] {
            assert_eq!(read(&mut back, length), read(&mut state, length), "{spans:?}");
        }
    }
}

#[test]
fn any_changed_or_missing_byte_is_noticed() {
    let file = snapshot("m", 2).encode();
    assert!(Snapshot::decode(&file).is_ok());
    for length in 0..file.len() {
        assert!(Snapshot::decode(&file[..length]).is_err(), "cut at {length}");
    }
    for at in 0..file.len() {
        let mut broken = file.clone();
        broken[at] ^= 0x04;
        assert!(Snapshot::decode(&broken).is_err(), "changed at {at}");
    }
}

#[test]
fn hostile_headers_are_refused() {
    let with = |header: &str| {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        Snapshot::decode(&file).unwrap_err()
    };
    let huge = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    assert!(Snapshot::decode(&huge).unwrap_err().contains("longer than the file"));
    assert!(with("[]").contains("no object"));
    assert!(with("{}").contains("no format"));
    assert!(with(r#"{"__metadata__": {"format": "pt"}}"#).contains("format is pt"));
    let newer = r#"{"__metadata__": {"format": "strata-state", "version": "2"}}"#;
    assert!(with(newer).contains("version 2"));
    assert!(with(&"[".repeat(60_000)).contains("no JSON"));
}

#[test]
fn a_snapshot_of_another_graph_or_format_is_refused() {
    let snapshot = snapshot("m", 7);
    let error =
        snapshot.restore(&State::compose(&LAYERS[..1], &Composition::default()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("3 layers but the graph has 1"), "{error}");
    let kinds = [LAYERS[1], LAYERS[0], LAYERS[2]];
    let error = snapshot.restore(&State::compose(&kinds, &Composition::default()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("layer 0 is a rotating cache"), "{error}");
    let heads = [LayerKind::Full { kv_heads: 1, head_dim: 64 }, LAYERS[1], LAYERS[2]];
    let error = snapshot.restore(&State::compose(&heads, &Composition::default()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("of its heads"), "{error}");
    let mut state = empty(affine());
    read(&mut state, 4);
    read(&mut state, 1);
    let error = state.snapshot("m", &tokens(5)).unwrap().restore(&empty(KvFormat::Plain)).unwrap_err();
    assert!(error.to_string().contains("affine, 4 bits, groups of 32"), "{error}");
}

#[test]
fn a_batch_and_other_tokens_have_no_snapshot() {
    let mut state = empty(KvFormat::Plain);
    read(&mut state, 3);
    assert!(state.snapshot("m", &tokens(4)).unwrap_err().to_string().contains("read 3 tokens, not 4"));
    let batch = State::merge(&[&state, &state]).unwrap();
    assert!(batch.snapshot("m", &tokens(3)).unwrap_err().to_string().contains("batch of 2 rows"));
}

#[test]
fn a_ring_of_one_position_that_holds_nothing_is_restored() {
    use strata_state::Side;
    let kind = LayerKind::Sliding { kv_heads: 1, head_dim: 64, window: 1 };
    let new = || State::compose(&[kind], &Composition::default()).unwrap();
    let mut batch = State::merge(&[&new(), &new()]).unwrap();
    batch.begin_padded(&[1, 2], Side::Right).unwrap();
    for seed in 0..2 {
        let x = normal(seed, [2, 1, 1, 64]);
        batch.layer(0).append(&x, &x, Phase::Window).unwrap();
        batch.advance(1);
    }
    batch.end_padded().unwrap();
    let row = batch.extract(0).unwrap();
    let restored = row.snapshot("m", &[7]).unwrap().restore(&new()).unwrap();
    assert_eq!(restored.position(), 1);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn the_folder_gives_the_longest_prefix_also_to_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut disk = DiskCache::open(folder.path(), 1 << 20).unwrap();
    for count in [3, 6, 4] {
        assert!(disk.store(snapshot("m", count)));
    }
    assert!(disk.store(snapshot("other", 9)));
    disk.close();
    let mut disk = DiskCache::open(folder.path(), 1 << 20).unwrap();
    assert_eq!(disk.find("m", &tokens(6)).unwrap().tokens().len(), 4, "a proper prefix");
    assert_eq!(disk.find("m", &tokens(12)).unwrap(), snapshot("m", 6));
    assert!(disk.find("m", &[7, 8, 9, 10]).is_none());
    assert!(disk.find("unknown", &tokens(12)).is_none());
}

#[test]
fn the_folder_keeps_to_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 3 * snapshot("m", 8).encode().len() as u64;
    for count in 2..12 {
        let mut disk = DiskCache::open(folder.path(), limit).unwrap();
        assert!(disk.store(snapshot("m", count)));
        disk.close();
        let held: u64 = files(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(held <= limit, "{held} of {limit}");
    }
    let mut disk = DiskCache::open(folder.path(), limit).unwrap();
    assert_eq!(disk.find("m", &tokens(20)).unwrap().tokens().len(), 11, "the newest is still there");
}

#[test]
fn the_limit_holds_from_the_start_and_covers_files_that_were_never_finished() {
    let folder = tempfile::tempdir().unwrap();
    let size = snapshot("m", 8).encode().len() as u64;
    let mut disk = DiskCache::open(folder.path(), 10 * size).unwrap();
    for count in 5..9 {
        assert!(disk.store(snapshot("m", count)));
    }
    disk.close();
    let left = folder.path().join("0123.state.safetensors.77.part");
    fs::write(&left, vec![0; size as usize]).unwrap();
    fs::File::options().append(true).open(&left).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    drop(DiskCache::open(folder.path(), 2 * size).unwrap());
    let held: u64 = files(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(held <= 2 * size && !left.exists(), "{held} bytes where {size} are one file");
}

#[test]
fn b42_a_state_is_saved_and_read_by_other_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (made, path) = (snapshot("m", 6), folder.path().to_owned());
    let copy = made.clone();
    let read = std::thread::spawn(move || {
        let mut disk = DiskCache::open(&path, 1 << 20).unwrap();
        assert!(disk.store(copy));
        disk.close();
        DiskCache::open(&path, 1 << 20).unwrap().find("m", &tokens(7)).unwrap()
    });
    let read = read.join().unwrap();
    assert_eq!(read, made);
    let (mut restored, mut cold) = (read.restore(&empty(KvFormat::Plain)).unwrap(), empty(KvFormat::Plain));
    self::read(&mut cold, 6);
    assert_eq!(self::read(&mut restored, 1), self::read(&mut cold, 1));
}

#[test]
fn broken_files_are_deleted_and_strange_ones_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut disk = DiskCache::open(folder.path(), 1 << 20).unwrap();
    assert!(disk.store(snapshot("m", 3)) && disk.store(snapshot("m", 5)));
    disk.close();
    let strange = folder.path().join("notes.txt");
    fs::write(&strange, "mine").unwrap();
    let garbage = folder.path().join("0123.state.safetensors");
    fs::write(&garbage, "garbage").unwrap();
    let five = files(folder.path()).into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&five).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&five, bytes).unwrap();
    let mut disk = DiskCache::open(folder.path(), 1 << 20).unwrap();
    assert!(!garbage.exists());
    assert_eq!(disk.find("m", &tokens(9)).unwrap().tokens().len(), 3, "the broken one is passed over");
    assert!(!five.exists() && strange.exists());
}

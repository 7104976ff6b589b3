//! Caches against mlx-lm's: the scripts of tests/oracle/caches.py, replayed; attention's outputs are equal bit for bit.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use strata_contracts::{Composition, KernelSet, KvFormat, KvScheme, LayerKind, QuantScheme};
use strata_state::{LayerState, Phase, RotatingCache, Side, State};
use strata_tensor::{Array, io};

const KV_HEADS: u32 = 2;

struct Case {
    name: &'static str,
    arrays: BTreeMap<String, Array>,
    scale: f32,
    settings: Value,
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().expect("a list").iter().map(number).collect()
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().expect("a number")).expect("a small number")
}

fn empty(settings: &Value) -> State {
    let head_dim = settings["dim"].as_u64().unwrap_or(8) as u32;
    if let Some(keep) = settings["keep"].as_u64() {
        let window = number(&settings["window"]) as u32;
        let ring = RotatingCache::new(KV_HEADS, head_dim, window, KernelSet::Reference);
        return State::of_layers(vec![LayerState::Rotating(ring.keeping(keep as u32))]);
    }
    let layer = match settings["cache"].as_str() {
        Some("plain") => LayerKind::Full { kv_heads: KV_HEADS, head_dim },
        Some("rotating") => {
            LayerKind::Sliding { kv_heads: KV_HEADS, head_dim, window: number(&settings["window"]) as u32 }
        }
        other => panic!("unknown cache {other:?}"),
    };
    let format = match settings["bits"].as_u64() {
        Some(bits) => KvFormat::Affine(QuantScheme::affine(bits as u32, 32).expect("a scheme")),
        None => KvFormat::Plain,
    };
    let kv = KvScheme { format, ..KvScheme::default() };
    let composition = Composition { kernels: KernelSet::Reference, kv, ..Composition::default() };
    State::compose(&[layer], &composition).expect("composes")
}

impl Case {
    fn append(&self, state: &mut State, key: &str) {
        let array = |what: &str| &self.arrays[&format!("{key}.{what}")];
        let (keys, values, queries) = (array("keys"), array("values"), array("queries"));
        let phase = if keys.dim(2) == 1 { Phase::Decode } else { Phase::Window };
        let read = state.layer(0).append(keys, values, phase).expect("appends");
        let out = read.attend(queries, self.scale).expect("attends");
        state.advance(keys.dim(2) as usize);
        let same = out.to_bytes().expect("bytes") == array("out").to_bytes().expect("bytes");
        assert!(same, "{}: attention differs at {key}", self.name);
    }

    fn rows(&self, key: &str, appends: &Value) -> State {
        let rows = appends.as_array().expect("rows").iter().enumerate().map(|(row, appends)| {
            let mut state = empty(&self.settings);
            for i in 0..numbers(appends).len() {
                self.append(&mut state, &format!("{key}.{row}.{i}"));
            }
            state
        });
        let rows: Vec<State> = rows.collect();
        State::merge(&rows.iter().collect::<Vec<_>>()).expect("merges")
    }

    fn step(&self, state: &mut State, key: &str, entry: &Value) {
        match entry[0].as_str().expect("a step") {
            "new" => {
                let mut settings = entry[1].clone();
                if let Some((_, bits)) = self.name.split_once("quantized-") {
                    settings["bits"] = bits.parse::<u32>().expect("a number").into();
                }
                *state = empty(&settings);
            }
            "append" => self.append(state, key),
            "trim" => state.trim(number(&entry[1])).expect("trims"),
            "merge" => *state = self.rows(key, &entry[1]),
            "join" => state.join(&self.rows(key, &entry[1])).expect("joins"),
            "filter" => state.filter(&numbers(&entry[1])).expect("filters"),
            "extract" => *state = state.extract(number(&entry[1])).expect("extracts"),
            "prepare" => state.begin_padded(&numbers(&entry[1]), Side::Right).expect("begins"),
            // A cache with a number format changes to it by itself, before the append after the first.
            "quantize" => {}
            "finalize" => state.end_padded().expect("ends"),
            other => panic!("unknown step {other}"),
        }
    }
}

fn replay(name: &'static str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/caches");
    let path = folder.join(format!("{name}.safetensors"));
    let (arrays, metadata) = io::load_safetensors(&path).expect("a fixture");
    let script: Vec<Value> = serde_json::from_str(&metadata["script"]).expect("a script");
    let settings: Value = serde_json::from_str(&metadata["settings"]).expect("settings");
    let mut state = empty(&settings);
    let case = Case { name, arrays, scale: metadata["scale"].parse().expect("a number"), settings };
    for (step, entry) in script.iter().enumerate() {
        case.step(&mut state, &step.to_string(), entry);
    }
}

macro_rules! cases {
    ($($test:ident: $name:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            replay($name);
        }
    )*};
}

cases! {
    plain_reads_chunks_and_trims: "plain-chunks",
    plain_grows: "plain-grow",
    plain_in_half_precision: "plain-f16",
    ring_of_single_positions: "ring-single",
    ring_fills_while_decoding: "ring-short",
    ring_reads_spans_across_the_seam: "ring-chunks",
    ring_filled_exactly: "ring-exact",
    ring_trims_before_it_wraps: "ring-trim",
    ring_keeps_its_first_positions: "ring-keep",
    ring_of_one_position: "ring-one",
    quantized_to_4_bits: "quantized-4",
    quantized_to_8_bits: "quantized-8",
    plain_rows_join_and_leave: "plain-merge",
    plain_rows_are_read_together: "plain-padded",
    b02_rings_of_different_fill_merge: "ring-merge",
    rings_fill_as_rows: "ring-merge-short",
    ring_rows_read_spans: "ring-merge-span",
    ring_rows_join_and_leave: "ring-join",
    ring_rows_are_read_together: "ring-padded",
    ring_rows_end_between_chunks: "ring-padded-chunks",
}

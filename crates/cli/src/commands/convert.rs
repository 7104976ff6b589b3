//! `strata convert`: a GGUF file becomes a model folder.

use crate::args::ConvertArgs;
use crate::failure::Failure;
use crate::output::{Reporter, note};
use anyhow::{Context, Result};
use strata_artifacts::gguf::{ConvertOptions, convert};

pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    let occupied = args.out.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if occupied || args.out.is_file() {
        return Err(Failure::error(
            format!("{} is not empty", args.out.display()),
            "name a folder that does not exist",
        ));
    }
    let existed = args.out.is_dir();
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let mut reporter = Reporter::new(args.quiet);
    let summary = convert(&args.input, &args.out, &ConvertOptions::default(), &mut |p| reporter.report(p));
    reporter.finish();
    let summary = match summary {
        Ok(summary) => summary,
        Err(error) => {
            if !existed {
                // Nothing half-made stays; what could not be removed is the smaller evil.
                let _ = std::fs::remove_dir_all(&args.out);
            }
            return Err(error.into());
        }
    };
    if !args.quiet {
        let kinds: Vec<String> = summary.tensors.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        note(format_args!("{}: {} ({})", args.out.display(), summary.architecture, kinds.join(", ")));
        if !summary.dequantized.is_empty() {
            note(format_args!(
                "{} tensors have no exact MLX form and are stored as bfloat16",
                summary.dequantized.len()
            ));
        }
    }
    Ok(())
}

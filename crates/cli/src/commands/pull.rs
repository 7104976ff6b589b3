//! `strata pull`: brings a model here and says where it is.

use crate::args::PullArgs;
use crate::session::open_model;
use anyhow::Result;

pub(crate) fn run(args: &PullArgs) -> Result<()> {
    let folder = open_model(&args.name, args.quiet)?;
    if !args.quiet {
        crate::session::write_stdout(&format!("{}\n", folder.path().display()))?;
    }
    Ok(())
}

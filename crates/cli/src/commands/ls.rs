//! `strata ls`: the models in the local store.

use crate::args::LsArgs;
use crate::output::{bytes, note};
use crate::session::write_stdout;
use anyhow::Result;
use serde_json::json;
use strata_artifacts::Store;

pub(crate) fn run(args: &LsArgs) -> Result<()> {
    let store = Store::from_env()?;
    let models = store.list()?;
    if args.json {
        let list: Vec<_> = models
            .iter()
            .map(|m| json!({ "name": m.name, "path": m.path, "bytes": m.bytes, "origin": m.origin }))
            .collect();
        write_stdout(&format!("{}\n", json!(list)))?;
        return Ok(());
    }
    if models.is_empty() {
        note(format_args!(
            "no models in {}; `strata pull smollm2` brings the starter",
            store.root().display()
        ));
    }
    let width = models.iter().map(|m| m.name.chars().count()).max().unwrap_or(0);
    for m in models {
        write_stdout(&format!("{:width$}  {:>9}  {}\n", m.name, bytes(m.bytes), m.origin))?;
    }
    Ok(())
}

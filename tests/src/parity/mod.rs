//! Strata beside mlx-lm: the oracle's results are read, the same inputs run, and each array compared by its bits.
//!
//! The format of a results file is described in `tests/oracle/README.md`.

mod compare;
mod distance;
mod drive;
mod fidelity;
mod report;
mod results;

pub use compare::{Mismatch, compare};
pub use distance::{Distance, Meter, distance};
pub use drive::{DriveError, Model, Sequence};
pub use fidelity::{Fidelity, perplexity};
pub use report::{Case, Outcome};
pub use results::{Batch, Results, ResultsError, Row, Tensor};

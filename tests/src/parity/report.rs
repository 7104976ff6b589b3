//! What a comparison found: one case a line, for people and as JSON.

use super::compare::{Mismatch, compare};
use super::distance::{Distance, distance};
use super::drive::{DriveError, Model};
use super::results::{Results, Row};
use serde_json::{Value, json};
use std::fmt;

/// One case: a model, what was fed to it, and how the two sides compare.
#[derive(Debug)]
pub struct Case {
    /// Such as `llama/bf16/chunks`.
    pub name: String,
    /// What reference mode gave.
    pub reference: Outcome,
    /// How far fast mode is from the oracle's logits, where it was asked for.
    pub fast: Option<Result<Distance, DriveError>>,
}

/// What comparing two runs found.
#[derive(Debug)]
pub enum Outcome {
    /// Every array has the same bits.
    Equal {
        /// Arrays compared.
        arrays: usize,
    },
    /// An array differs.
    Different {
        /// The array, such as `row.0.logits`.
        array: String,
        /// How.
        mismatch: Mismatch,
    },
    /// There was nothing to compare.
    Failed(DriveError),
}

impl Case {
    /// Runs one case in reference mode and, if given, in fast mode.
    pub fn run(name: String, oracle: &Results, reference: &Model, fast: Option<&Model>) -> Self {
        let outcome = match reference.run(oracle) {
            Ok(rows) => compare_rows(&oracle.rows, &rows),
            Err(error) => Outcome::Failed(error),
        };
        let fast = fast.map(|model| Ok(distance_of_rows(&oracle.rows, &model.run(oracle)?)));
        Self { name, reference: outcome, fast }
    }

    /// Whether reference mode gave what the oracle did, and fast mode, where it was asked for, gave anything.
    pub fn is_equal(&self) -> bool {
        matches!(self.reference, Outcome::Equal { .. }) && !matches!(self.fast, Some(Err(_)))
    }

    /// The case as one JSON object.
    pub fn json(&self) -> Value {
        let mut object = match &self.reference {
            Outcome::Equal { arrays } => json!({ "equal": true, "arrays": arrays }),
            Outcome::Different { array, mismatch } => {
                json!({ "equal": false, "array": array, "difference": mismatch.to_string() })
            }
            Outcome::Failed(error) => json!({ "equal": false, "error": error.to_string() }),
        };
        object["case"] = json!(self.name);
        if let Some(fast) = &self.fast {
            object["fast"] =
                fast.as_ref().map_or_else(|error| json!({ "error": error.to_string() }), Distance::json);
        }
        object
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<36} ", self.name)?;
        match &self.reference {
            Outcome::Equal { arrays } => write!(f, "logits and caches equal ({arrays} arrays)")?,
            Outcome::Different { array, mismatch } => write!(f, "DIFFERENT {array}: {mismatch}")?,
            Outcome::Failed(error) => write!(f, "FAILED {error}")?,
        }
        match &self.fast {
            Some(Ok(fast)) => write!(f, "; fast: {fast}"),
            Some(Err(error)) => write!(f, "; fast FAILED {error}"),
            None => Ok(()),
        }
    }
}

impl Distance {
    /// The numbers as one JSON object.
    pub fn json(&self) -> Value {
        let Self { absolute, relative, divergence, agreement } = self;
        json!({ "absolute": absolute, "relative": relative, "divergence": divergence, "agreement": agreement })
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { absolute, relative, divergence, agreement } = self;
        write!(
            f,
            "max |Δ| {absolute:.1e} ({relative:.1e} relative), KL {divergence:.1e}, same choice {agreement:.4}"
        )
    }
}

/// Logits first, then each cache; the first array that differs ends it.
fn compare_rows(oracle: &[Row], found: &[Row]) -> Outcome {
    let mut arrays = 0;
    for (index, (expected, row)) in oracle.iter().zip(found).enumerate() {
        let logits = ("logits".to_owned(), &expected.logits, Some(&row.logits));
        let caches = expected
            .cache
            .iter()
            .map(|(name, tensor)| (format!("cache.{name}"), tensor, row.cache.get(name)));
        for (name, expected, found) in std::iter::once(logits).chain(caches) {
            let missing = Mismatch::Missing { shape: expected.shape.clone() };
            let mismatch = found.map_or(Some(missing), |found| compare(expected, found));
            if let Some(mismatch) = mismatch {
                return Outcome::Different { array: format!("row.{index}.{name}"), mismatch };
            }
            arrays += 1;
        }
    }
    Outcome::Equal { arrays }
}

/// The distance over the positions of all rows together.
fn distance_of_rows(oracle: &[Row], found: &[Row]) -> Distance {
    let floats = |rows: &[Row]| rows.iter().flat_map(|row| row.logits.floats()).collect::<Vec<_>>();
    let vocabulary = oracle[0].logits.shape[1];
    distance(&floats(oracle), &floats(found), vocabulary)
}

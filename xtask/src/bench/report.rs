//! Medians, spread and ratios of a benchmark, as a table and as JSON.

use super::side::{Sample, Side};
use serde_json::{Value, json};
use std::fmt;

/// Everything that was measured.
pub(super) struct Report<'a> {
    pub(super) model: &'a str,
    /// Arguments of the conversion to the form that Strata runs; none where it runs the file.
    pub(super) form: &'a [&'a str],
    pub(super) threads: u32,
    pub(super) runs: u32,
    pub(super) sides: &'a [Side<'a>],
    /// Of each side, one a turn.
    pub(super) samples: Vec<Vec<Sample>>,
}

/// The figures of one side.
struct Line<'a> {
    side: &'a Side<'a>,
    sample: &'a Sample,
    prompt: Spread,
    decode: Spread,
    first: Spread,
}

impl Report<'_> {
    pub(super) fn table(&self) -> String {
        let heads =
            ["engine", "activations", "tokens", "prompt tokens/s", "decode tokens/s", "first token ms"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows[0].push("Strata is faster by: prompt, decode, first token".to_owned());
        let lines = self.lines();
        for line in &lines {
            let ratios = line.ratios(&lines);
            rows.push(vec![
                line.engine(),
                line.sample.dtype.clone(),
                format!("{} + {}", line.side.work.prompt, line.side.work.r#gen),
                line.prompt.to_string(),
                line.decode.to_string(),
                line.first.to_string(),
                ratios.map_or_else(String::new, |r| r.map(|r| format!("{r:.2}")).join("  ")),
            ]);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        let mut out = format!(
            "{}, {} threads; medians of {} turns (lowest to highest)\n",
            self.model, self.threads, self.runs
        );
        if let Some(form) = self.form() {
            out = format!("{out}Strata runs its own form of the file: strata convert FILE OUT {form}\n");
        }
        for row in &rows {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            out.push_str(cells.join("  ").trim_end());
            out.push('\n');
        }
        out
    }

    pub(super) fn json(&self) -> Value {
        let lines = self.lines();
        let sides: Vec<Value> = lines
            .iter()
            .map(|line| {
                let mut object = json!({
                    "engine": line.side.engine.name(),
                    "version": line.sample.version,
                    "dtype": line.sample.dtype,
                    "prompt_tokens": line.side.work.prompt,
                    "generated_tokens": line.side.work.r#gen,
                    "prompt_tokens_per_s": line.prompt.median,
                    "prompt_tokens_per_s_range": [line.prompt.low, line.prompt.high],
                    "decode_tokens_per_s": line.decode.median,
                    "decode_tokens_per_s_range": [line.decode.low, line.decode.high],
                    "first_token_ms": line.first.median,
                    "first_token_ms_range": [line.first.low, line.first.high],
                });
                if let Some([prompt, decode, first]) = line.ratios(&lines) {
                    object["strata_ratio"] =
                        json!({"prompt": prompt, "decode": decode, "first_token": first});
                }
                object
            })
            .collect();
        json!({"model": self.model, "strata_form": self.form(), "threads": self.threads, "runs": self.runs, "sides": sides})
    }

    fn form(&self) -> Option<String> {
        (!self.form.is_empty()).then(|| self.form.join(" "))
    }

    fn lines(&self) -> Vec<Line<'_>> {
        let spread = |samples: &[Sample], of: fn(&Sample) -> f64| Spread::of(samples.iter().map(of));
        let line = |(side, samples)| {
            let samples: &Vec<Sample> = samples;
            Line {
                side,
                sample: &samples[0],
                prompt: spread(samples, |sample| sample.prompt_rate),
                decode: spread(samples, |sample| sample.decode_rate),
                first: spread(samples, |sample| sample.first_token_ms),
            }
        };
        self.sides.iter().zip(&self.samples).map(line).collect()
    }
}

impl Line<'_> {
    /// How many times faster Strata is over the same tokens: prompt, decode, first token. `None` for Strata itself.
    fn ratios(&self, lines: &[Line]) -> Option<[f64; 3]> {
        let strata = lines.iter().find(|other| other.side.work == self.side.work)?;
        if std::ptr::eq(strata.side, self.side) {
            return None;
        }
        let by = |of: fn(&Line) -> f64| of(strata) / of(self);
        Some([by(|l| l.prompt.median), by(|l| l.decode.median), 1.0 / by(|l| l.first.median)])
    }

    fn engine(&self) -> String {
        let name = self.side.engine.name();
        self.sample.version.as_ref().map_or_else(|| name.to_owned(), |version| format!("{name} {version}"))
    }
}

/// Lowest, median and highest of some figures.
#[derive(Debug, PartialEq)]
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (values[0], values[values.len() - 1]);
        let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        Self { low, median, high }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 1 };
        write!(f, "{:.digits$} ({:.digits$} to {:.digits$})", self.median, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::super::side::{Engine, Work};
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(of(&[5.0, 1.0, 2.0]), Spread { low: 1.0, median: 2.0, high: 5.0 });
        assert_eq!(of(&[5.0, 1.0, 2.0, 4.0]), Spread { low: 1.0, median: 3.0, high: 5.0 });
    }

    fn sample(prompt_rate: f64, decode_rate: f64, first_token_ms: f64) -> Sample {
        let (dtype, version) = ("float32".to_owned(), None);
        Sample { prompt_rate, decode_rate, first_token_ms, vocab_size: 7, dtype, version }
    }

    #[test]
    fn a_peer_is_compared_with_strata_over_the_same_tokens() {
        let (long, short) = (Work { prompt: 512, r#gen: 128 }, Work { prompt: 4, r#gen: 3 });
        let sides = [long, long, short, short].map(|work| Side { engine: Engine::Strata, work });
        let samples = vec![
            vec![sample(1000.0, 300.0, 500.0), sample(1200.0, 340.0, 400.0)],
            vec![sample(200.0, 80.0, 2250.0), sample(200.0, 80.0, 2250.0)],
            vec![sample(400.0, 200.0, 10.0), sample(400.0, 200.0, 10.0)],
            vec![sample(0.25, 0.5, 16000.0), sample(0.25, 0.5, 16000.0)],
        ];
        let report = Report {
            model: "m",
            form: &["--quantize", "nearest"],
            threads: 2,
            runs: 2,
            sides: &sides,
            samples,
        };
        let object = report.json();
        assert_eq!(object["sides"][0]["prompt_tokens_per_s"], 1100.0);
        assert_eq!(object["sides"][0]["decode_tokens_per_s_range"], json!([300.0, 340.0]));
        assert!(object["sides"][2].get("strata_ratio").is_none());
        let ratio = |side: usize, key: &str| object["sides"][side]["strata_ratio"][key].as_f64().unwrap();
        assert_eq!([ratio(1, "prompt"), ratio(1, "decode"), ratio(1, "first_token")], [5.5, 4.0, 5.0]);
        assert_eq!(
            [ratio(3, "prompt"), ratio(3, "decode"), ratio(3, "first_token")],
            [1600.0, 400.0, 1600.0]
        );
        let table = report.table();
        assert!(table.contains("5.50  4.00  5.00") && table.contains("4 + 3"), "{table}");
        assert!(table.contains("OUT --quantize nearest\n") && object["strata_form"] == "--quantize nearest");
    }
}

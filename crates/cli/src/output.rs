//! Writing to the terminal: progress of long tasks, sizes, the line of statistics.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use strata_artifacts::{Progress, Stage};
use strata_contracts::Statistics;

/// A progress bar on stderr that appears with the first report; invisible when `quiet` or when stderr is no terminal.
pub(crate) struct Reporter {
    quiet: bool,
    bar: Option<(Stage, ProgressBar)>,
}

impl Reporter {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet, bar: None }
    }

    pub(crate) fn report(&mut self, progress: Progress) {
        if self.quiet {
            return;
        }
        if self.bar.as_ref().is_none_or(|(stage, _)| *stage != progress.stage) {
            self.finish();
            self.bar = Some((progress.stage, bar(progress.stage)));
        }
        if let Some((_, bar)) = &self.bar {
            if let Some(total) = progress.total {
                bar.set_length(total);
            }
            bar.set_position(progress.done);
        }
    }

    pub(crate) fn finish(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(stage: Stage) -> ProgressBar {
    let message = match stage {
        Stage::Waiting => "waiting for another installation",
        Stage::Download => "downloading",
        Stage::Verify => "verifying",
        Stage::Convert => "converting",
    };
    let style =
        ProgressStyle::with_template("{msg:>14} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style);
    bar.set_message(message);
    bar
}

/// A line on stderr. Where that can't be written, nobody is left to be told.
pub(crate) fn note(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The line that ends an answer.
pub(crate) fn statistics_line(s: &Statistics) -> String {
    format!(
        "prompt {} tokens, {:.1} tokens/s | first token {:.0} ms | {} tokens, {:.1} tokens/s | peak memory {}",
        s.prompt_tokens,
        s.prompt_tokens_per_second(),
        s.first_token.as_secs_f64() * 1e3,
        s.generated_tokens,
        s.decode_tokens_per_second(),
        bytes(s.peak_memory_bytes),
    )
}

/// A number of bytes for people.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_fits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1500), "1.5 kB");
        assert_eq!(bytes(92_871_040), "92.9 MB");
        assert_eq!(bytes(u64::MAX), "18446744.1 TB");
    }
}

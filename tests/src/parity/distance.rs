//! How far fast kernels are from the reference, where bits may differ: numbers over whole logits, in float64.

/// Differences between two tables of logits, `[positions, vocabulary]`, of the same inputs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Distance {
    /// Largest absolute difference of a logit.
    pub absolute: f64,
    /// The same, divided by the largest reference logit (by magnitude) of its position.
    pub relative: f64,
    /// Mean over positions of the Kullback-Leibler divergence of the next-token distributions, in nats.
    pub divergence: f64,
    /// Share of positions at which the same token has the largest logit.
    pub agreement: f64,
}

/// Adds up distances over positions that come in pieces.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meter {
    /// Maxima, and sums where [`Distance`] has means.
    total: Distance,
    positions: usize,
    first_other: Option<usize>,
}

impl Meter {
    /// Takes the next positions: rows of `vocabulary` logits each, `found` measured against `reference`.
    ///
    /// # Panics
    /// When the tables have different lengths or are no whole rows.
    pub fn add(&mut self, reference: &[f32], found: &[f32], vocabulary: usize) {
        assert_eq!(reference.len(), found.len(), "both tables have the same positions");
        assert!(reference.len().is_multiple_of(vocabulary), "tables hold whole positions");
        let total = &mut self.total;
        for (p, q) in reference.chunks_exact(vocabulary).zip(found.chunks_exact(vocabulary)) {
            let scale = p.iter().fold(0.0_f64, |largest, logit| largest.max(f64::from(logit.abs())));
            let differences = p.iter().zip(q).map(|(p, q)| (f64::from(*p) - f64::from(*q)).abs());
            let largest = differences.fold(0.0, f64::max);
            total.absolute = total.absolute.max(largest);
            total.relative = total.relative.max(if scale > 0.0 { largest / scale } else { 0.0 });
            total.divergence += divergence(p, q);
            if largest_at(p) == largest_at(q) {
                total.agreement += 1.0;
            } else {
                self.first_other = self.first_other.or(Some(self.positions));
            }
            self.positions += 1;
        }
    }

    /// The distance over all positions so far.
    ///
    /// # Panics
    /// When there were none.
    pub fn distance(&self) -> Distance {
        assert!(self.positions > 0, "there are positions");
        let Distance { divergence, agreement, .. } = self.total;
        let mean = |sum| sum / self.positions as f64;
        Distance { divergence: mean(divergence), agreement: mean(agreement), ..self.total }
    }

    /// How many positions there were.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The first position at which another token has the largest logit.
    pub fn first_other(&self) -> Option<usize> {
        self.first_other
    }
}

/// Measures `found` against `reference`, rows of `vocabulary` logits each.
///
/// # Panics
/// When the tables have different lengths, are no whole rows or empty.
pub fn distance(reference: &[f32], found: &[f32], vocabulary: usize) -> Distance {
    let mut meter = Meter::default();
    meter.add(reference, found, vocabulary);
    meter.distance()
}

/// `Σ P ln(P / Q)` with `P = softmax(p)`, `Q = softmax(q)`.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (total_p, total_q) = (log_sum_exp(p), log_sum_exp(q));
    let terms = p.iter().zip(q).map(|(p, q)| {
        let (ln_p, ln_q) = (f64::from(*p) - total_p, f64::from(*q) - total_q);
        if ln_p == f64::NEG_INFINITY { 0.0 } else { ln_p.exp() * (ln_p - ln_q) }
    });
    terms.sum()
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

/// The lowest index among the largest.
fn largest_at(logits: &[f32]) -> usize {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tables_are_at_no_distance() {
        let table = [1.0, -2.0, 0.5, 3.0, 3.0, -1.0];
        let found = distance(&table, &table, 3);
        assert_eq!(found, Distance { absolute: 0.0, relative: 0.0, divergence: 0.0, agreement: 1.0 });
    }

    #[test]
    fn pieces_measure_what_the_whole_does() {
        let (p, q) = ([1.0, 2.0, 0.5, 0.1, 4.0, 3.0], [1.0, 2.5, 0.6, 0.2, 3.0, 3.5]);
        let mut meter = Meter::default();
        meter.add(&p[..2], &q[..2], 2);
        meter.add(&p[2..], &q[2..], 2);
        let whole = distance(&p, &q, 2);
        let pieces = meter.distance();
        assert!((pieces.divergence - whole.divergence).abs() < 1e-12, "{pieces:?} {whole:?}");
        assert_eq!(Distance { divergence: 0.0, ..pieces }, Distance { divergence: 0.0, ..whole });
        assert_eq!((meter.positions(), meter.first_other()), (3, Some(2)));
    }

    #[test]
    fn each_measure_is_the_textbook_one() {
        let (p, q) = ([0.0_f32, 2.0_f32.ln()], [2.0_f32.ln(), 0.0_f32]);
        let found = distance(&p, &q, 2);
        let expected = 1.0 / 3.0 * 0.5_f64.ln() + 2.0 / 3.0 * 2.0_f64.ln();
        assert!((found.divergence - expected).abs() < 1e-7, "{found:?}");
        assert!(
            (found.absolute - 2.0_f64.ln()).abs() < 1e-7 && (found.relative - 1.0).abs() < 1e-7,
            "{found:?}"
        );
        assert!(found.agreement.abs() < f64::EPSILON, "{found:?}");
    }
}

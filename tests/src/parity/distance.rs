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

/// Measures `found` against `reference`, rows of `vocabulary` logits each.
///
/// # Panics
/// When the tables have different lengths or are no whole rows.
pub fn distance(reference: &[f32], found: &[f32], vocabulary: usize) -> Distance {
    assert_eq!(reference.len(), found.len(), "both tables have the same positions");
    assert!(
        !reference.is_empty() && reference.len().is_multiple_of(vocabulary),
        "tables hold whole positions"
    );
    let positions = reference.len() / vocabulary;
    let mut total = Distance::default();
    for (p, q) in reference.chunks_exact(vocabulary).zip(found.chunks_exact(vocabulary)) {
        let scale = p.iter().fold(0.0_f64, |largest, logit| largest.max(f64::from(logit.abs())));
        let largest = p.iter().zip(q).map(|(p, q)| (f64::from(*p) - f64::from(*q)).abs()).fold(0.0, f64::max);
        total.absolute = total.absolute.max(largest);
        total.relative = total.relative.max(if scale > 0.0 { largest / scale } else { 0.0 });
        total.divergence += divergence(p, q) / positions as f64;
        total.agreement += f64::from(u8::from(largest_at(p) == largest_at(q))) / positions as f64;
    }
    total
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

//! How far fast mode is from reference mode on a real model: the same tokens through both, step by step and as a text.
//!
//! The bounds hold for real models; random weights have logits too large and distributions too flat for them.

use super::distance::{Distance, Meter};
use super::drive::{DriveError, Model, join};
use super::results::Tensor;
use serde_json::{Value, json};
use std::fmt;
use strata_tensor::Array;

/// Greedy tokens over which both modes are compared.
const STEPS: usize = 256;

/// Most of the mean divergence, in nats, that fast mode may have.
const LARGEST_DIVERGENCE: f64 = 1e-3;

/// Largest change of perplexity, as a part of the reference's.
const LARGEST_CHANGE: f64 = 3e-3;

/// What was measured.
#[derive(Debug, Clone)]
pub struct Fidelity {
    /// Over single steps behind a prompt, each with the token that reference mode chose.
    pub steps: Distance,
    /// How many first steps choose the same token: as far as two answers would be the same.
    pub same_steps: usize,
    /// Over the positions of a text.
    pub text: Distance,
    /// Negative log likelihood of each token of the text but the first, float32, in reference mode.
    pub nll: Tensor,
    /// Perplexity of the text in reference mode and in fast mode.
    pub perplexity: [f64; 2],
}

impl Fidelity {
    /// Runs both modes: steps behind `prompt`, and `text` in pieces of `chunk` tokens.
    ///
    /// # Errors
    /// What either graph reports.
    pub fn measure(
        reference: &Model,
        fast: &Model,
        prompt: &[i32],
        text: &[i32],
        chunk: usize,
    ) -> Result<Self, DriveError> {
        let steps = measure_steps(reference, fast, prompt)?;
        let (mut sure, mut quick) = (reference.sequence()?, fast.sequence()?);
        let (mut meter, mut likelihoods) = (Meter::default(), [Vec::new(), Vec::new()]);
        for (inputs, targets) in text[..text.len() - 1].chunks(chunk).zip(text[1..].chunks(chunk)) {
            let both = [sure.read(inputs)?, quick.read(inputs)?];
            add(&mut meter, &both)?;
            for (logits, nll) in both.iter().zip(&mut likelihoods) {
                let targets = Array::from_slice(targets, [targets.len() as i32])?.expand_dims(&[-1])?;
                let chosen = logits.take_along_axis(&targets, -1)?.squeeze(&[-1])?;
                nll.push(logits.logsumexp(-1, false)?.subtract(&chosen)?);
            }
        }
        let [nll, quick_nll] = [join(&likelihoods[0])?, join(&likelihoods[1])?];
        Ok(Self {
            steps: steps.distance(),
            same_steps: steps.first_other().unwrap_or(steps.positions()),
            text: meter.distance(),
            perplexity: [&nll, &quick_nll].map(perplexity),
            nll,
        })
    }

    /// Change of perplexity, as a part of the reference's.
    pub fn change(&self) -> f64 {
        self.perplexity[1] / self.perplexity[0] - 1.0
    }

    /// Whether fast mode is as near as it has to be. What is not a number is not.
    pub fn is_near(&self) -> bool {
        let near = |distance: &Distance| distance.divergence < LARGEST_DIVERGENCE;
        near(&self.steps) && near(&self.text) && self.change().abs() < LARGEST_CHANGE
    }

    /// The numbers as one JSON object.
    pub fn json(&self) -> Value {
        let [reference, fast] = self.perplexity;
        json!({
            "near": self.is_near(),
            "steps": self.steps.json(),
            "same_steps": self.same_steps,
            "text": self.text.json(),
            "perplexity": { "reference": reference, "fast": fast, "change": self.change() },
        })
    }
}

impl fmt::Display for Fidelity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [reference, fast] = self.perplexity;
        writeln!(f, "fast: {STEPS} greedy steps: {}, first {} the same", self.steps, self.same_steps)?;
        writeln!(f, "fast: text: {}", self.text)?;
        let change = 100.0 * self.change();
        writeln!(f, "perplexity: reference {reference:.4}, fast {fast:.4} ({change:+.3} %)")?;
        let verdict = if self.is_near() { "within" } else { "BEYOND" };
        write!(
            f,
            "fast mode is {verdict} its bounds: KL below {LARGEST_DIVERGENCE:e}, perplexity within {} %",
            100.0 * LARGEST_CHANGE
        )
    }
}

fn measure_steps(reference: &Model, fast: &Model, prompt: &[i32]) -> Result<Meter, DriveError> {
    let (mut sure, mut quick) = (reference.sequence()?, fast.sequence()?);
    let mut meter = Meter::default();
    let mut fed = prompt.to_vec();
    for _ in 0..STEPS {
        let last = |logits: Array| logits.slice_axis(0, -1, logits.dim(0));
        let both = [last(sure.read(&fed)?)?, last(quick.read(&fed)?)?];
        add(&mut meter, &both)?;
        fed = both[0].argmax(-1, false)?.astype(strata_tensor::Dtype::Int32)?.to_vec()?;
    }
    Ok(meter)
}

fn add(meter: &mut Meter, [reference, found]: &[Array; 2]) -> Result<(), DriveError> {
    let vocabulary = reference.dim(-1) as usize;
    meter.add(&reference.to_vec::<f32>()?, &found.to_vec::<f32>()?, vocabulary);
    Ok(())
}

/// Of negative log likelihoods.
pub fn perplexity(nll: &Tensor) -> f64 {
    let values = nll.floats();
    (values.iter().copied().map(f64::from).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_contracts::Dtype;

    #[test]
    fn the_bounds_are_those_of_both_measures_and_nan_is_beyond_them() {
        let nll = Tensor { dtype: Dtype::Float32, shape: vec![0], data: Vec::new() };
        let near = Distance { divergence: 9e-4, ..Distance::default() };
        let good = Fidelity { steps: near, same_steps: STEPS, text: near, nll, perplexity: [10.0, 9.971] };
        assert!(good.is_near());
        let far = |divergence| Distance { divergence, ..near };
        for bad in [
            Fidelity { steps: far(1e-3), ..good.clone() },
            Fidelity { text: far(f64::NAN), ..good.clone() },
            Fidelity { perplexity: [10.0, 10.031], ..good.clone() },
            Fidelity { perplexity: [10.0, f64::NAN], ..good.clone() },
        ] {
            assert!(!bad.is_near(), "{bad:?}");
        }
    }
}

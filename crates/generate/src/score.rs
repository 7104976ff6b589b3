//! How likely a graph finds a given text: the base of perplexity.

use crate::error::Result;
use crate::prefill::{check_prompt, row};
use strata_models::Graph;
use strata_state::{Phase, State};
use strata_tensor::{Array, Dtype, eval};

/// `-ln p(token | tokens before)` of every token but the first, from float32 logits, read `step` tokens a forward
/// pass into an empty state.
///
/// # Errors
/// A text that does not fit ([`check_prompt`]), or what the graph reports.
pub fn negative_log_likelihoods(
    graph: &dyn Graph,
    state: &mut State,
    tokens: &[u32],
    step: usize,
) -> Result<Vec<f32>> {
    check_prompt(graph.declaration(), tokens, state.position())?;
    let mut out = Vec::with_capacity(tokens.len().saturating_sub(1));
    for (number, chunk) in tokens.chunks(step.max(1)).enumerate() {
        let hidden = graph.hidden(&row(chunk)?, state, Phase::Window)?;
        let start = number * step.max(1) + 1;
        let targets: Vec<i32> =
            tokens[start..tokens.len().min(start + chunk.len())].iter().map(|&t| t as i32).collect();
        let n = targets.len() as i32;
        if n == 0 {
            eval(state.arrays())?;
            continue;
        }
        let logits = graph.logits(&hidden.slice_axis(1, 0, n)?)?.astype(Dtype::Float32)?; // [1, n, V]
        let targets = Array::from_slice(&targets, [1, n, 1])?;
        let found = logits.take_along_axis(&targets, -1)?;
        let nll = logits.logsumexp(-1, true)?.subtract(&found)?;
        eval(state.arrays().into_iter().chain([&nll]))?;
        out.extend(nll.to_vec::<f32>()?);
    }
    Ok(out)
}

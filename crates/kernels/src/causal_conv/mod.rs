//! Causal depthwise convolution along the sequence, with the last inputs carried from call to call.
//!
//! # Contract
//! `x` is `[B, T, C]`, the weight `[K, C]` (taps first: transpose a checkpoint's `[C, K]` once, when it is loaded), the carried
//! inputs `[B, K - 1, C]`, all of one type: float32, float16 or bfloat16. With `z` the carried inputs followed by `x`,
//!
//! ```text
//! y[t, c] = act(sum over j of weight[j, c] * z[t + j, c])
//! ```
//!
//! and the new carried inputs are the last `K - 1` rows of `z`: the short convolution of Mamba (arXiv 2312.00752) and of the
//! gated delta networks (mlx-lm `models/qwen3_next.py`). `act` is SiLU or nothing. Where rows of the batch end early,
//! `lengths` `[B]` (int32) says how many steps of each count; their carried inputs are the last before that end.

pub mod host;
mod node;
pub mod reference;

use strata_tensor::host::apply;
use strata_tensor::{Array, Result};

/// Outputs `[B, T, C]` and the new carried inputs, with the host kernel.
///
/// # Errors
/// Operands that do not fit each other, or a type that is not one of the contract's.
#[track_caller]
pub fn causal_conv(
    x: &Array,
    weight: &Array,
    carried: &Array,
    lengths: Option<&Array>,
    silu: bool,
) -> Result<(Array, Array)> {
    let inputs = [Some(x), Some(weight), Some(carried), lengths];
    let mut outputs = apply(node::CausalConv { silu }, &inputs.into_iter().flatten().collect::<Vec<_>>())?;
    let carried = outputs.remove(1);
    Ok((outputs.remove(0), carried))
}

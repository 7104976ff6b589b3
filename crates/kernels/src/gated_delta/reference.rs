//! The gated delta rule in tensor operations: step by step, as mlx-lm's `gated_delta_ops` does it, and in chunks.

use super::Operands;
use strata_tensor::{Array, Dtype, Result, ops};

/// Outputs and the last state, one step after the other.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn gated_delta(operands: Operands<'_>) -> Result<(Array, Array)> {
    let Operands { q, k, v, g, beta, state, mask } = operands;
    let (length, repeats) = (q.dim(1), v.dim(2) / q.dim(2));
    let (q, k) =
        if repeats > 1 { (q.repeat(repeats, -2)?, k.repeat(repeats, -2)?) } else { (q.clone(), k.clone()) };
    let at = |x: &Array, t: i32| x.slice_axis(1, t, t + 1)?.squeeze(&[1]);
    let mut state = state.clone();
    let mut outputs = Vec::new();
    for t in 0..length {
        let (q_row, k_row) = (at(&q, t)?.expand_dims(&[-2])?, at(&k, t)?.expand_dims(&[-2])?);
        let g = at(g, t)?;
        let decay = if g.ndim() == 2 { g.expand_dims(&[-1, -2])? } else { g.expand_dims(&[-2])? };
        let decayed = state.multiply(&decay)?;
        let memory = decayed.multiply(&k_row)?.sum(-1, false)?;
        let delta = at(v, t)?.subtract(&memory)?.multiply(&at(beta, t)?.expand_dims(&[-1])?)?;
        let next = decayed.add(&k_row.multiply(&delta.expand_dims(&[-1])?)?)?;
        let y = next.multiply(&q_row)?.sum(-1, false)?;
        if let Some(mask) = mask {
            let counts = at(mask, t)?.expand_dims(&[1, 2])?;
            outputs.push(ops::where_(&counts, &y, &y.number(0.0)?)?.astype(q.dtype())?);
            state = ops::where_(&counts.expand_dims(&[3])?, &next, &state)?;
        } else {
            outputs.push(y.astype(q.dtype())?);
            state = next;
        }
    }
    let outputs: Vec<&Array> = outputs.iter().collect();
    Ok((ops::stack(&outputs, 1)?, state))
}

/// As [`gated_delta`] for a decay of one number a head and without a mask, `chunk` steps at a time by matrix products
/// (arXiv 2406.06484, section 3, with the decay of arXiv 2412.06464, section 3.3): a sequence of `T` steps takes
/// `T / chunk` rounds of a few operations instead of `T`.
///
/// Within a chunk, with `G[i]` the product of the decays up to step `i`, the updates `d` solve the triangular system
/// `d[i] = beta[i] (v[i] - G[i] S k[i] - sum over j < i of G[i] / G[j] (k[j] . k[i]) d[j])`.
///
/// # Errors
/// What MLX reports.
#[track_caller]
pub fn gated_delta_chunked(operands: Operands<'_>, chunk: i32) -> Result<(Array, Array)> {
    let Operands { q, k, v, g, beta, state, .. } = operands;
    let (length, repeats) = (q.dim(1), v.dim(2) / q.dim(2));
    let dtype = q.dtype();
    // All as [B, H, T, ...] in float32.
    let heads = |x: &Array| x.astype(Dtype::Float32)?.swapaxes(1, 2);
    let repeated = |x: &Array| if repeats > 1 { heads(&x.repeat(repeats, -2)?) } else { heads(x) };
    let (q, k, v, g, beta) = (repeated(q)?, repeated(k)?, heads(v)?, heads(g)?, heads(beta)?);
    let mut state = state.clone();
    let mut outputs = Vec::new();
    for start in (0..length).step_by(usize::try_from(chunk).unwrap_or(1).max(1)) {
        let end = length.min(start + chunk);
        let part = |x: &Array| x.slice_axis(2, start, end);
        let (q, k, v, beta) = (part(&q)?, part(&k)?, part(&v)?, part(&beta)?.expand_dims(&[-1])?);
        // Logarithms of the decays' products keep ratios finite; a decay of 0 becomes one that nothing survives.
        let g = part(&g)?;
        let log = g.maximum(&g.number(1e-37)?)?.log()?.cumsum(-1, false, true)?;
        let n = end - start;
        let ratio = log.expand_dims(&[-1])?.subtract(&log.expand_dims(&[-2])?)?;
        let below = ops::tri(n, n, -1, Dtype::Float32)?.astype(Dtype::Bool)?;
        let upto = ops::tri(n, n, 0, Dtype::Float32)?.astype(Dtype::Bool)?;
        let hidden = ratio.number(f32::NEG_INFINITY)?;
        let strict = ops::where_(&below, &ratio, &hidden)?.exp()?;
        let inclusive = ops::where_(&upto, &ratio, &hidden)?.exp()?;
        let decay = log.exp()?.expand_dims(&[-1])?;
        let before = k.multiply(&decay)?.matmul(&state.swapaxes(-1, -2)?)?;
        let right = beta.multiply(&v.subtract(&before)?)?;
        let left = beta.multiply(&k.matmul(&k.swapaxes(-1, -2)?)?.multiply(&strict)?)?;
        let delta = solve_unit_lower(&left, &right, n)?;
        let weights = q.matmul(&k.swapaxes(-1, -2)?)?.multiply(&inclusive)?;
        let y = q.multiply(&decay)?.matmul(&state.swapaxes(-1, -2)?)?.add(&weights.matmul(&delta)?)?;
        outputs.push(y.swapaxes(1, 2)?.astype(dtype)?);
        let last = log.slice_axis(-1, n - 1, n)?;
        let rest = last.subtract(&log)?.exp()?.expand_dims(&[-1])?;
        let update = delta.multiply(&rest)?.swapaxes(-1, -2)?.matmul(&k)?;
        state = state.multiply(&last.exp()?.expand_dims(&[-1])?)?.add(&update)?;
    }
    let outputs: Vec<&Array> = outputs.iter().collect();
    Ok((ops::concatenate(&outputs, 1)?, state))
}

/// Solves `(I + left) x = right` for a strictly lower triangular `left` of `n` rows: the inverse is the product of
/// `I + (-left)^(2^i)`, because the `n`th power of `left` is 0.
fn solve_unit_lower(left: &Array, right: &Array, n: i32) -> Result<Array> {
    let mut power = left.negative()?;
    let mut x = right.clone();
    let mut reach = 1;
    while reach < n {
        x = x.add(&power.matmul(&x)?)?;
        power = power.matmul(&power)?;
        reach *= 2;
    }
    Ok(x)
}

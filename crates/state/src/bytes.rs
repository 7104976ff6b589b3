//! What a state costs in memory, known before it exists: for admission and for limits.

use crate::error::Result;
use crate::format::Format;
use crate::plain::STEP;
use strata_contracts::{Composition, Dtype, LayerKind};

/// Bytes of one layer's storage.
struct Cost {
    /// Of one position.
    position: usize,
    /// Most positions that are kept; `None` without a bound.
    window: Option<usize>,
    /// Of a row, whatever its length.
    fixed: usize,
}

/// Bytes by which each token of a row makes a state grow, once rings are full: those of keys and values of all layers that
/// keep every position, in the number format that a long row has. `activations` is the type keys and values come in.
///
/// # Errors
/// [`Error::Format`](crate::Error::Format) as for [`State::compose`](crate::State::compose).
pub fn bytes_per_token(layers: &[LayerKind], composition: &Composition, activations: Dtype) -> Result<usize> {
    let costs = costs(layers, composition, activations)?;
    Ok(costs.iter().filter(|cost| cost.window.is_none()).map(|cost| cost.position).sum())
}

/// Bytes of a state of `rows` rows of up to `tokens` tokens each, with the room that buffers grow ahead. Pages are counted for
/// each row, though rows may share some. A ring takes more between a later span, whose positions it all holds on to, and the
/// token after it.
///
/// # Errors
/// As [`bytes_per_token`].
pub fn projected_bytes(
    layers: &[LayerKind],
    composition: &Composition,
    activations: Dtype,
    rows: usize,
    tokens: usize,
) -> Result<usize> {
    let of_row = costs(layers, composition, activations)?.into_iter().map(|cost| {
        let positions = match cost.window {
            Some(window) => tokens.min(window),
            None => tokens.next_multiple_of(composition.kv.page.map_or(STEP, |page| page.max(1) as usize)),
        };
        let fixed = if tokens > 0 { cost.fixed } else { 0 };
        cost.position.saturating_mul(positions).saturating_add(fixed)
    });
    Ok(rows.saturating_mul(of_row.fold(0, usize::saturating_add)))
}

fn costs(layers: &[LayerKind], composition: &Composition, activations: Dtype) -> Result<Vec<Cost>> {
    Format::check(&composition.kv.format, layers)?;
    let each = layers.iter().enumerate().map(|(layer, kind)| {
        let position = |keys: u32, values: u32| -> Result<usize> {
            let format = Format::of_layer(&composition.kv.format, layer, keys)?;
            Format::of_layer(&composition.kv.format, layer, values)?;
            Ok(format.bytes(keys as usize, values as usize, activations))
        };
        Ok(match *kind {
            LayerKind::Full { kv_heads, head_dim } => {
                let position = kv_heads as usize * position(head_dim, head_dim)?;
                Cost { position, window: None, fixed: 0 }
            }
            LayerKind::Sliding { kv_heads, head_dim, window } => Cost {
                position: kv_heads as usize * position(head_dim, head_dim)?,
                window: Some(window as usize),
                fixed: 0,
            },
            LayerKind::Latent { rank, rope_dim } => {
                Cost { position: position(rank, rope_dim)?, window: None, fixed: 0 }
            }
            LayerKind::Recurrent { channels, tail, state } => {
                let tail = channels as usize * tail as usize * activations.size();
                // The recurrent state is kept in float32 whatever the activations are.
                let state = state as usize * Dtype::Float32.size();
                Cost { position: 0, window: Some(0), fixed: tail + state }
            }
            LayerKind::Shared { .. } => Cost { position: 0, window: Some(0), fixed: 0 },
        })
    });
    each.collect()
}

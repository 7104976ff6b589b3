//! The host form as a node of MLX's graph.

use super::host::{self, Rows};
use crate::host::node::four;
use crate::offset::Known;
use smallvec::SmallVec;
use std::ffi::CStr;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut};

/// Inputs: `N` buffers, what is new for each, and where it goes if that is an array.
#[derive(PartialEq)]
pub(super) struct Append<const N: usize> {
    pub(super) start: Known,
}

impl<const N: usize> HostKernel for Append<N> {
    const NAME: &'static CStr = c"append";
    const OUTPUTS: &'static [Output] = &Self::BUFFERS;

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        let expected = 2 * N + self.start.inputs();
        if inputs.len() != expected {
            return Err(format!("takes {expected} inputs but has {}", inputs.len()));
        }
        self.start.check("start", inputs.get(2 * N))?;
        let (buffers, new) = inputs[..2 * N].split_at(N);
        let [_, _, room, _] = four("a buffer", &buffers[0])?;
        let [_, _, length, _] = four("what is new", &new[0])?;
        if let Some(start) = self.start.position()
            && (start < 0 || i64::from(start) + i64::from(length) > i64::from(room))
        {
            return Err(format!("{length} positions from {start} on do not fit a buffer of {room}"));
        }
        for (buffer, new) in buffers.iter().zip(new) {
            let [b, h, t, w] = four("a buffer", buffer)?;
            if t != room || new.dtype != buffer.dtype || new.shape.as_slice() != [b, h, length, w] {
                return Err(format!(
                    "{} {} does not go into a buffer {} {} of {room} positions",
                    new.dtype, new.shape, buffer.dtype, buffer.shape
                ));
            }
        }
        Ok(buffers.iter().cloned().collect())
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let start = self.start.resolve("start", inputs.get(2 * N))?;
        for (new, buffer) in inputs[N..2 * N].iter().zip(outputs) {
            let (&[batch, heads, length, width], &[x, y, z, w]) = (new.shape(), new.strides()) else {
                return Err("what is new must have 4 dimensions".to_owned());
            };
            if w != 1 && width > 1 {
                return Err("the last axis of what is new must be contiguous".to_owned());
            }
            let size = new.dtype().size();
            let rows = Rows {
                bytes: new.bytes(),
                shape: [batch, heads, length].map(|n| n as usize),
                strides: [x, y, z].map(|stride| stride as usize * size),
                row: width as usize * size,
            };
            let room = buffer.shape()[2] as usize;
            host::append(rows, buffer.bytes_mut(), room, start).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl<const N: usize> Append<N> {
    /// Each output takes over the buffer in its place.
    const BUFFERS: [Output; N] = {
        let mut outputs = [Output::Fresh; N];
        let mut i = 0;
        while i < N {
            outputs[i] = Output::TakesOver(i);
            i += 1;
        }
        outputs
    };
}

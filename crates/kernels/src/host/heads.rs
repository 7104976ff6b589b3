//! A view of an array `[B, H, L, D]` whose last axis is contiguous: queries, or a slice of a larger key/value buffer.
//!
//! Every row the shape names lies within the data; the constructor proves it.

use crate::Error;

/// Which of heads and positions is the outer axis of a contiguous output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `[B, H, L, D]`.
    HeadsFirst,
    /// `[B, L, H, D]`; of results, heads side by side: `[B, L, H * D]`.
    PositionsFirst,
}

impl Layout {
    /// Strides of batch, head and position in a contiguous array of `shape` `[B, H, L, D]` in this layout.
    pub fn strides(self, shape: [usize; 4]) -> [usize; 3] {
        let [_, heads, length, width] = shape;
        match self {
            Self::HeadsFirst => [heads * length * width, length * width, width],
            Self::PositionsFirst => [heads * length * width, width, heads * width],
        }
    }
}

/// Rows of `D` contiguous values, addressed by batch, head and position.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a, E> {
    data: &'a [E],
    shape: [usize; 4],
    strides: [usize; 3],
}

impl<'a, E> Heads<'a, E> {
    /// Takes `shape` `[B, H, L, D]` and the strides, in elements, of the first three axes. Stride 0 repeats.
    ///
    /// # Errors
    /// [`Error::Shape`] when a row would end past the data.
    pub fn new(
        kernel: &'static str,
        operand: &'static str,
        data: &'a [E],
        shape: [usize; 4],
        strides: [usize; 3],
    ) -> Result<Self, Error> {
        let needed = extent(&shape, &[strides[0], strides[1], strides[2], 1]);
        if needed.is_none_or(|needed| needed > data.len()) {
            return Err(Error::Shape {
                kernel,
                operand,
                expected: format!("data for shape {shape:?} at strides {strides:?}"),
                got: format!("{} elements", data.len()),
            });
        }
        Ok(Self { data, shape, strides })
    }

    /// A contiguous array in `layout`; `shape` is `[B, H, L, D]` in either.
    ///
    /// # Errors
    /// As [`Heads::new`].
    pub fn contiguous(
        kernel: &'static str,
        operand: &'static str,
        data: &'a [E],
        shape: [usize; 4],
        layout: Layout,
    ) -> Result<Self, Error> {
        Self::new(kernel, operand, data, shape, layout.strides(shape))
    }

    /// `[B, H, L, D]`.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The first `positions` positions, of which there are as many at least.
    #[must_use]
    pub fn first(mut self, positions: usize) -> Self {
        self.shape[2] = self.shape[2].min(positions);
        self
    }

    /// Elements from one position to the next.
    pub fn position_stride(&self) -> usize {
        self.strides[2]
    }

    /// The row of a batch, head and position within the shape.
    #[inline]
    pub fn row(&self, batch: usize, head: usize, position: usize) -> &'a [E] {
        let at = batch * self.strides[0] + head * self.strides[1] + position * self.strides[2];
        &self.data[at..at + self.shape[3]]
    }
}

/// Elements that data must hold for an array of `shape` at `strides`; `None` when the count overflows.
pub fn extent(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let mut last = 0_usize;
    for (&length, &stride) in shape.iter().zip(strides) {
        last = last.checked_add((length - 1).checked_mul(stride)?)?;
    }
    last.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_past_the_data_are_refused() {
        let data = [0.0_f32; 59];
        let shape = [1, 2, 3, 5];
        assert!(Heads::new("k", "x", &data, shape, [60, 30, 10]).is_ok());
        let error = Heads::new("k", "x", &data[..54], shape, [60, 30, 10]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "[k] x needs data for shape [1, 2, 3, 5] at strides [60, 30, 10] but has 54 elements"
        );
        assert!(Heads::new("k", "x", &data, [usize::MAX, 2, 2, 1], [usize::MAX, 1, 1]).is_err());
        assert!(Heads::new("k", "x", &data[..0], [0, 2, 3, 5], [60, 30, 10]).is_ok());
    }

    #[test]
    fn layouts_differ_in_the_order_of_heads_and_positions() {
        let data: Vec<usize> = (0..2 * 3 * 4 * 5).collect();
        let shape = [2, 3, 4, 5];
        let heads = Heads::contiguous("k", "x", &data, shape, Layout::HeadsFirst).unwrap();
        let positions = Heads::contiguous("k", "x", &data, shape, Layout::PositionsFirst).unwrap();
        assert_eq!(heads.row(1, 2, 3)[0], ((3 + 2) * 4 + 3) * 5);
        assert_eq!(positions.row(1, 2, 3)[0], ((4 + 3) * 3 + 2) * 5);
    }
}

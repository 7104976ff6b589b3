//! Two arrays, bit for bit: equal, or the first place where they differ, with both values and how far apart they are.

use super::results::Tensor;
use std::fmt;
use strata_contracts::Dtype;

/// How an array differs from the one expected.
#[derive(Debug, Clone, PartialEq)]
pub enum Mismatch {
    /// Another dtype or shape.
    Kind {
        /// Dtype and shape expected.
        expected: (Dtype, Vec<usize>),
        /// Dtype and shape found.
        found: (Dtype, Vec<usize>),
    },
    /// No such array.
    Missing {
        /// Shape expected.
        shape: Vec<usize>,
    },
    /// The same dtype and shape, other bits.
    Values {
        /// Elements that differ.
        count: usize,
        /// All elements.
        of: usize,
        /// Index of the first of them.
        first: Vec<usize>,
        /// Value expected there.
        expected: f64,
        /// Value found there.
        found: f64,
        /// Representable values between the two, the second included.
        ulps: u64,
    },
}

/// The first difference between two arrays; `None` when every bit is the same.
pub fn compare(expected: &Tensor, found: &Tensor) -> Option<Mismatch> {
    if (expected.dtype, &expected.shape) != (found.dtype, &found.shape) {
        let kind = |tensor: &Tensor| (tensor.dtype, tensor.shape.clone());
        return Some(Mismatch::Kind { expected: kind(expected), found: kind(found) });
    }
    let size = expected.dtype.size();
    let pairs = expected.data.chunks_exact(size).zip(found.data.chunks_exact(size));
    let mut different = pairs.enumerate().filter(|(_, (a, b))| a != b);
    let (at, (a, b)) = different.next()?;
    Some(Mismatch::Values {
        count: 1 + different.count(),
        of: expected.data.len() / size,
        first: unravel(at, &expected.shape),
        expected: value(expected.dtype, a),
        found: value(expected.dtype, b),
        ulps: place(expected.dtype, a).abs_diff(place(expected.dtype, b)),
    })
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind { expected, found } => {
                write!(f, "{} {:?} instead of {} {:?}", found.0, found.1, expected.0, expected.1)
            }
            Self::Missing { shape } => write!(f, "is missing, expected {shape:?}"),
            Self::Values { count, of, first, expected, found, ulps } => {
                write!(
                    f,
                    "{count} of {of} differ, first at {first:?}: {found:e} instead of {expected:e} ({ulps} ulp)"
                )
            }
        }
    }
}

/// The index of the element at `flat` in row-major order.
fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &size) in index.iter_mut().zip(shape).rev() {
        *place = flat % size;
        flat /= size;
    }
    index
}

fn value(dtype: Dtype, bytes: &[u8]) -> f64 {
    let bits = bits(bytes);
    match dtype {
        Dtype::Float16 => half::f16::from_bits(bits as u16).to_f64(),
        Dtype::Bfloat16 => half::bf16::from_bits(bits as u16).to_f64(),
        Dtype::Float32 => f64::from(f32::from_bits(bits as u32)),
        Dtype::Float64 => f64::from_bits(bits),
        _ => bits as f64,
    }
}

/// Where a value stands among all of its type, so that neighbours differ by one. Both zeros have the same place.
fn place(dtype: Dtype, bytes: &[u8]) -> i64 {
    let bits = bits(bytes);
    if !dtype.is_float() {
        return bits as i64;
    }
    let sign = 1_u64 << (8 * dtype.size() - 1);
    let magnitude = (bits & (sign - 1)) as i64;
    if bits & sign == 0 { magnitude } else { -magnitude }
}

fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float32(shape: &[usize], values: &[f32]) -> Tensor {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { dtype: Dtype::Float32, shape: shape.to_vec(), data }
    }

    #[test]
    fn equal_bits_are_equal_and_nan_equals_itself() {
        let a = float32(&[3], &[1.0, f32::NAN, -0.0]);
        assert_eq!(compare(&a, &a), None);
    }

    #[test]
    fn the_first_difference_is_named_with_its_distance() {
        let a = float32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let next = f32::from_bits(5.0_f32.to_bits() + 3);
        let b = float32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, next, 7.0]);
        let Some(Mismatch::Values { count, of, first, ulps, .. }) = compare(&a, &b) else {
            panic!("the arrays differ");
        };
        assert_eq!((count, of, first, ulps), (2, 6, vec![1, 1], 3));
    }

    #[test]
    fn distance_counts_across_zero_and_zeros_have_one_place() {
        let smallest = f32::from_bits(1);
        let ulps = |a: f32, b: f32| match compare(&float32(&[1], &[a]), &float32(&[1], &[b])) {
            Some(Mismatch::Values { ulps, .. }) => ulps,
            other => panic!("{other:?}"),
        };
        assert_eq!(ulps(smallest, -smallest), 2);
        assert_eq!(ulps(0.0, -0.0), 0);
        assert_eq!(
            compare(&float32(&[1], &[0.0]), &float32(&[1], &[-0.0])).map(|m| m.to_string().len() > 10),
            Some(true)
        );
    }

    #[test]
    fn another_shape_is_no_comparison_of_values() {
        let found = compare(&float32(&[2, 1], &[1.0, 2.0]), &float32(&[2], &[1.0, 2.0]));
        assert!(matches!(found, Some(Mismatch::Kind { .. })), "{found:?}");
    }
}

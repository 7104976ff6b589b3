//! What a back end has got wrong somewhere, tried on the device that runs the tests.

use strata_contracts::QuantScheme;
use strata_tensor::fast::{self, Rope};
use strata_tensor::ops;
use strata_tensor::{Array, Dtype, Result};

/// Values between -1 and 1 that do not repeat soon.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7919 % 2003) as f32 / 1001.5 - 1.0).collect()
}

#[test]
fn b16_rope_turns_equal_rows_equally() -> Result<()> {
    let (heads, dim) = (5, 64);
    let row = values(heads * dim);
    let x = Array::from_slice(&[row.clone(), row].concat(), [2, heads as i32, 1, dim as i32])?;
    let rope = Rope { dims: 64, traditional: false, base: Some(10000.0), scale: 1.0, freqs: None };
    let offsets = Array::from_slice(&[11i32, 11], [2])?;
    for turned in [fast::rope(&x, &rope, 11)?, fast::rope_dynamic(&x, &rope, &offsets)?] {
        let turned: Vec<f32> = turned.to_vec()?;
        let (first, second) = turned.split_at(heads * dim);
        assert_eq!(first, second);
        assert!(turned.iter().any(|value| *value != 0.0));
    }
    Ok(())
}

#[test]
fn b16_a_quantized_product_without_transpose_is_whole() -> Result<()> {
    let (k, n) = (1024, 32);
    let w = Array::from_slice(&values(k * n), [k as i32, n as i32])?;
    let scheme = QuantScheme::affine(4, 32).expect("a scheme");
    let q = ops::quantize(&w, scheme)?;
    let x = Array::from_slice(&values(k), [1, k as i32])?;
    let found: Vec<f32> = ops::quantized_matmul(&x, &q, false)?.to_vec()?;
    let table: Vec<f32> = ops::dequantize(&q, Some(Dtype::Float32))?.to_vec()?;
    let x = values(k);
    for (column, found) in found.iter().enumerate() {
        let terms = (0..k).map(|row| f64::from(x[row]) * f64::from(table[row * n + column]));
        let expected: f64 = terms.clone().sum();
        // A float32 sum of 1024 terms in any order; devices may also multiply in tf32's 10 bits.
        let bound = terms.map(f64::abs).sum::<f64>() * 2.0_f64.powi(-10);
        assert!((f64::from(*found) - expected).abs() <= bound, "column {column}: {found}, not {expected}");
    }
    Ok(())
}

#[test]
fn quantized_products_read_slices_of_stacks_and_each_matrix_of_a_broadcast_one() -> Result<()> {
    let (rows, heads, group, room, dim) = (2, 3, 5, 96, 64);
    let size = |shape: [i32; 5]| shape.iter().product::<i32>() as usize;
    let random = |shape: [i32; 5]| Array::from_slice(&values(size(shape)), shape);
    let stack = random([rows, heads, 1, room, dim])?;
    // tf32 has 10 bits, and bfloat16 8, in which MLX also sums on a CPU.
    for (dtype, bound) in [(Dtype::Float32, 1e-2), (Dtype::Bfloat16, 5e-2)] {
        let q = ops::quantize(&stack.astype(dtype)?, QuantScheme::affine(8, 32).expect("a scheme"))?;
        for (length, queries) in [(37, 1), (room, 1), (37, 7), (room, 7)] {
            let live = |plane: &Array| plane.slice_axis(3, 0, length);
            let (weight, scales) = (live(&q.weight)?, live(&q.scales)?);
            let biases = q.biases.as_ref().map(live).transpose()?;
            let q = ops::Quantized { weight, scales, biases, scheme: q.scheme };
            let dense = ops::dequantize(&q, Some(Dtype::Float32))?;
            let x = random([rows, heads, group, queries, dim])?.astype(dtype)?;
            let y = random([rows, heads, group, queries, length])?.astype(dtype)?;
            let wide = |x: &Array| x.astype(Dtype::Float32);
            for (found, expected) in [
                (ops::quantized_matmul(&x, &q, true)?, wide(&x)?.matmul(&dense.swapaxes(-1, -2)?)?),
                (ops::quantized_matmul(&y, &q, false)?, wide(&y)?.matmul(&dense)?),
            ] {
                assert_eq!((found.dtype(), found.shape()), (dtype, expected.shape()));
                let square = |x: &Array| x.multiply(x)?.reshape([-1])?.sum(0, false)?.item::<f32>();
                let error = square(&wide(&found)?.subtract(&expected)?)? / square(&expected)?;
                assert!(error.sqrt() < bound, "{dtype}, {length} positions, {queries} queries: {error}");
            }
        }
    }
    Ok(())
}

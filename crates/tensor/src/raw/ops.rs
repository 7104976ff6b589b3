//! The door to mlx-c's operations: one line an operation, from which a safe function of the same name is made.
//!
//! The type letters say how an argument crosses: `array` and `optional` arrays, `arrays`, `ints` (pointer and length),
//! `longs`, plain numbers, `dtype`, `text`, and MLX's optional numbers.

use super::array::{Array, dtype_to_c};
use super::error_slot::status;
use super::handle::{StringHandle, VectorArray, c_string};
use super::stream::current_raw;
use crate::error::Result;
use strata_contracts::Dtype;
use strata_sys as sys;

fn optional_int(value: Option<i32>) -> sys::mlx_optional_int {
    sys::mlx_optional_int { value: value.unwrap_or(0), has_value: value.is_some() }
}

fn optional_float(value: Option<f32>) -> sys::mlx_optional_float {
    sys::mlx_optional_float { value: value.unwrap_or(0.0), has_value: value.is_some() }
}

fn optional_dtype(value: Option<Dtype>) -> sys::mlx_optional_dtype {
    sys::mlx_optional_dtype { value: value.map_or(sys::MLX_FLOAT32, dtype_to_c), has_value: value.is_some() }
}

/// Name of an operation as users know it.
fn op_name(function: &'static str) -> &'static str {
    function.strip_prefix("mlx_").unwrap_or(function)
}

macro_rules! ops {
    ($($out:ident $f:ident ( $($args:tt)* );)*) => { $( ops!(@arg $out $f [] [] [] $($args)* ,); )* };

    // One argument after the other: [parameters] [expressions] [preparations].
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: array, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: &Array,] [$($e)* $n.raw(),] [$($l)*] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: optional, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: Option<&Array>,] [$($e)* Array::raw_or_null($n),] [$($l)*] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: arrays, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: &[&Array],] [$($e)* $n.0,]
            [$($l)* let $n = VectorArray::from_arrays($n.iter().copied());] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: ints, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: &[i32],] [$($e)* $n.as_ptr(), $n.len(),] [$($l)*] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: longs, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: &[i64],] [$($e)* $n.as_ptr(), $n.len(),] [$($l)*] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: dtype, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: Dtype,] [$($e)* dtype_to_c($n),] [$($l)*] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: text, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: &str,] [$($e)* $n.as_ptr(),] [$($l)* let $n = c_string($n)?;] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: optional_int, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: Option<i32>,] [$($e)* optional_int($n),] [$($l)*] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: optional_float, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: Option<f32>,] [$($e)* optional_float($n),] [$($l)*] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: optional_dtype, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: Option<Dtype>,] [$($e)* optional_dtype($n),] [$($l)*] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $n:ident: $t:ty, $($rest:tt)*) => {
        ops!(@arg $out $f [$($p)* $n: $t,] [$($e)* $n,] [$($l)*] $($rest)*); };
    (@arg $out:ident $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*] $(,)?) => { ops!(@$out $f [$($p)*] [$($e)*] [$($l)*]); };

    (@one $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*]) => {
        #[track_caller]
        pub(crate) fn $f($($p)*) -> Result<Array> {
            $($l)*
            let stream = current_raw()?;
            Array::filled(op_name(stringify!($f)), |out| {
                // SAFETY: (2), (3).
                unsafe { sys::$f(out, $($e)* stream) }
            })
        }
    };
    (@many $f:ident [$($p:tt)*] [$($e:tt)*] [$($l:tt)*]) => {
        #[track_caller]
        pub(crate) fn $f($($p)*) -> Result<Vec<Array>> {
            $($l)*
            let stream = current_raw()?;
            let mut out = VectorArray::empty();
            // SAFETY: (2), (3).
            status(op_name(stringify!($f)), unsafe { sys::$f(&raw mut out.0, $($e)* stream) })?;
            out.to_arrays()
        }
    };
}

ops! {
    one mlx_abs(a: array);
    one mlx_add(a: array, b: array);
    one mlx_addmm(c: array, a: array, b: array, alpha: f32, beta: f32);
    one mlx_all(a: array, keepdims: bool);
    one mlx_any(a: array, keepdims: bool);
    one mlx_arange(start: f64, stop: f64, step: f64, dtype: dtype);
    one mlx_argmax_axis(a: array, axis: i32, keepdims: bool);
    one mlx_argmin_axis(a: array, axis: i32, keepdims: bool);
    one mlx_argpartition_axis(a: array, kth: i32, axis: i32);
    one mlx_argsort_axis(a: array, axis: i32);
    one mlx_array_equal(a: array, b: array, equal_nan: bool);
    one mlx_as_strided(a: array, shape: ints, strides: longs, offset: usize);
    one mlx_astype(a: array, dtype: dtype);
    one mlx_bitwise_and(a: array, b: array);
    one mlx_bitwise_or(a: array, b: array);
    one mlx_bitwise_xor(a: array, b: array);
    one mlx_broadcast_to(a: array, shape: ints);
    one mlx_ceil(a: array);
    one mlx_clip(a: array, min: optional, max: optional);
    one mlx_concatenate_axis(arrays: arrays, axis: i32);
    one mlx_contiguous(a: array, allow_col_major: bool);
    one mlx_conv1d(input: array, weight: array, stride: i32, padding: i32, dilation: i32, groups: i32);
    one mlx_cos(a: array);
    one mlx_cummax_axis(a: array, axis: i32, reverse: bool, inclusive: bool);
    one mlx_cumprod_axis(a: array, axis: i32, reverse: bool, inclusive: bool, dtype: optional_dtype);
    one mlx_cumsum_axis(a: array, axis: i32, reverse: bool, inclusive: bool, dtype: optional_dtype);
    one mlx_dequantize(w: array, scales: array, biases: optional, group_size: optional_int, bits: optional_int,
        mode: text, global_scale: optional, dtype: optional_dtype);
    one mlx_divide(a: array, b: array);
    one mlx_equal(a: array, b: array);
    one mlx_erf(a: array);
    one mlx_exp(a: array);
    one mlx_expand_dims_axes(a: array, axes: ints);
    one mlx_expm1(a: array);
    one mlx_fast_layer_norm(x: array, weight: optional, bias: optional, eps: f32);
    one mlx_fast_rms_norm(x: array, weight: optional, eps: f32);
    one mlx_fast_rope(x: array, dims: i32, traditional: bool, base: optional_float, scale: f32, offset: i32,
        freqs: optional);
    one mlx_fast_rope_dynamic(x: array, dims: i32, traditional: bool, base: optional_float, scale: f32, offset: array,
        freqs: optional);
    one mlx_fast_scaled_dot_product_attention(queries: array, keys: array, values: array, scale: f32, mask_mode: text,
        mask: optional, sinks: optional, force_fused: bool);
    one mlx_flatten(a: array, start_axis: i32, end_axis: i32);
    one mlx_floor(a: array);
    one mlx_floor_divide(a: array, b: array);
    one mlx_full(shape: ints, value: array, dtype: dtype);
    one mlx_gather(a: array, indices: arrays, axes: ints, slice_sizes: ints);
    one mlx_gather_mm(a: array, b: array, lhs_indices: optional, rhs_indices: optional, sorted_indices: bool);
    one mlx_gather_qmm(x: array, w: array, scales: array, biases: optional, lhs_indices: optional,
        rhs_indices: optional, transpose: bool, group_size: optional_int, bits: optional_int, mode: text,
        sorted_indices: bool);
    one mlx_greater(a: array, b: array);
    one mlx_greater_equal(a: array, b: array);
    one mlx_hadamard_transform(a: array, scale: optional_float);
    one mlx_isfinite(a: array);
    one mlx_isnan(a: array);
    one mlx_left_shift(a: array, b: array);
    one mlx_less(a: array, b: array);
    one mlx_less_equal(a: array, b: array);
    one mlx_log(a: array);
    one mlx_log1p(a: array);
    one mlx_logaddexp(a: array, b: array);
    one mlx_logical_and(a: array, b: array);
    one mlx_logical_not(a: array);
    one mlx_logical_or(a: array, b: array);
    one mlx_logsumexp_axis(a: array, axis: i32, keepdims: bool);
    one mlx_matmul(a: array, b: array);
    one mlx_max_axis(a: array, axis: i32, keepdims: bool);
    one mlx_maximum(a: array, b: array);
    one mlx_mean_axis(a: array, axis: i32, keepdims: bool);
    one mlx_min_axis(a: array, axis: i32, keepdims: bool);
    one mlx_minimum(a: array, b: array);
    one mlx_multiply(a: array, b: array);
    one mlx_negative(a: array);
    one mlx_not_equal(a: array, b: array);
    one mlx_pad(a: array, axes: ints, low: ints, high: ints, value: array, mode: text);
    one mlx_partition_axis(a: array, kth: i32, axis: i32);
    one mlx_power(a: array, b: array);
    one mlx_prod_axis(a: array, axis: i32, keepdims: bool);
    one mlx_put_along_axis(a: array, indices: array, values: array, axis: i32);
    many mlx_quantize(w: array, group_size: optional_int, bits: optional_int, mode: text, global_scale: optional);
    one mlx_quantized_matmul(x: array, w: array, scales: array, biases: optional, transpose: bool,
        group_size: optional_int, bits: optional_int, mode: text);
    one mlx_random_bernoulli(p: array, shape: ints, key: optional);
    one mlx_random_bits(shape: ints, width: i32, key: optional);
    one mlx_random_categorical(logits: array, axis: i32, key: optional);
    one mlx_random_gumbel(shape: ints, dtype: dtype, key: optional);
    one mlx_random_normal(shape: ints, dtype: dtype, loc: f32, scale: f32, key: optional);
    one mlx_random_randint(low: array, high: array, shape: ints, dtype: dtype, key: optional);
    one mlx_random_split_num(key: array, num: i32);
    one mlx_random_uniform(low: array, high: array, shape: ints, dtype: dtype, key: optional);
    one mlx_reciprocal(a: array);
    one mlx_remainder(a: array, b: array);
    one mlx_repeat_axis(a: array, repeats: i32, axis: i32);
    one mlx_reshape(a: array, shape: ints);
    one mlx_right_shift(a: array, b: array);
    one mlx_roll_axis(a: array, shift: ints, axis: i32);
    one mlx_round(a: array, decimals: i32);
    one mlx_rsqrt(a: array);
    one mlx_scatter(a: array, indices: arrays, updates: array, axes: ints);
    one mlx_scatter_add(a: array, indices: arrays, updates: array, axes: ints);
    one mlx_scatter_add_axis(a: array, indices: array, values: array, axis: i32);
    one mlx_sigmoid(a: array);
    one mlx_sign(a: array);
    one mlx_sin(a: array);
    one mlx_slice(a: array, start: ints, stop: ints, strides: ints);
    one mlx_slice_dynamic(a: array, start: array, axes: ints, slice_size: ints);
    one mlx_slice_update(a: array, update: array, start: ints, stop: ints, strides: ints);
    one mlx_slice_update_dynamic(a: array, update: array, start: array, axes: ints);
    one mlx_softmax_axis(a: array, axis: i32, precise: bool);
    one mlx_sort_axis(a: array, axis: i32);
    many mlx_split(a: array, parts: i32, axis: i32);
    many mlx_split_sections(a: array, indices: ints, axis: i32);
    one mlx_sqrt(a: array);
    one mlx_square(a: array);
    one mlx_squeeze_axes(a: array, axes: ints);
    one mlx_stack_axis(arrays: arrays, axis: i32);
    one mlx_subtract(a: array, b: array);
    one mlx_sum_axis(a: array, axis: i32, keepdims: bool);
    one mlx_swapaxes(a: array, first: i32, second: i32);
    one mlx_take_axis(a: array, indices: array, axis: i32);
    one mlx_take_along_axis(a: array, indices: array, axis: i32);
    one mlx_tanh(a: array);
    one mlx_tile(a: array, repetitions: ints);
    one mlx_topk_axis(a: array, k: i32, axis: i32);
    one mlx_transpose_axes(a: array, axes: ints);
    one mlx_tri(n: i32, m: i32, k: i32, dtype: dtype);
    one mlx_tril(a: array, k: i32);
    one mlx_triu(a: array, k: i32);
    one mlx_unflatten(a: array, axis: i32, shape: ints);
    one mlx_view(a: array, dtype: dtype);
    one mlx_where(condition: array, x: array, y: array);
    one mlx_zeros(shape: ints, dtype: dtype);
}

/// A key from a seed; needs no stream.
#[track_caller]
pub(crate) fn mlx_random_key(seed: u64) -> Result<Array> {
    Array::filled("random_key", |out| {
        // SAFETY: (2), (3).
        unsafe { sys::mlx_random_key(out, seed) }
    })
}

/// Names of the primitives that evaluating `arrays` would run.
#[track_caller]
pub(crate) fn graph_names<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<Vec<String>> {
    let vector = VectorArray::from_arrays(arrays);
    let mut out = StringHandle::empty();
    // SAFETY: (2), (3).
    status("graph_names", unsafe { sys::strata_graph_names(&raw mut out.0, vector.0) })?;
    Ok(out.to_text().lines().map(ToOwned::to_owned).collect())
}

/// Computes all of `arrays` and waits (`wait`), or only queues the work.
#[track_caller]
pub(crate) fn eval<'a>(arrays: impl IntoIterator<Item = &'a Array>, wait: bool) -> Result<()> {
    let vector = VectorArray::from_arrays(arrays);
    if wait {
        // SAFETY: (2), (3).
        status("eval", unsafe { sys::mlx_eval(vector.0) })
    } else {
        // SAFETY: (2), (3).
        status("async_eval", unsafe { sys::mlx_async_eval(vector.0) })
    }
}

//! Every refusal is an error that names the operation and the caller's line; nothing aborts.

use crate::support::{array, i32s};
use strata_tensor::kernel::{KernelSource, Launch, cuda_kernel, metal_kernel};
use strata_tensor::{Array, BACKEND, Device, Dtype, Error, Result, Stream, ops};

/// The failed operation's name, after a look at where it says it was called.
#[track_caller]
fn failed<T>(result: Result<T>) -> &'static str {
    match result.map(|_| ()).unwrap_err() {
        Error::Mlx(failure) => {
            assert!(failure.at.file().ends_with("errors.rs"), "{}", failure.at);
            assert!(!failure.message.is_empty() && !failure.message.contains("mlx-c"), "{}", failure.message);
            failure.op
        }
        other => panic!("{other}"),
    }
}

#[test]
fn operations_that_do_not_fit_name_themselves_and_the_line() {
    let (a, b) = (array([2, 3]), array([4, 5]));
    assert_eq!(failed(a.add(&b)), "add");
    assert_eq!(failed(a.matmul(&b)), "matmul");
    assert_eq!(failed(a.reshape([5])), "reshape");
    assert_eq!(failed(a.transpose(&[0, 0])), "transpose_axes");
    assert_eq!(failed(a.transpose(&[0])), "transpose_axes");
    assert_eq!(failed(a.squeeze(&[0])), "squeeze_axes");
    assert_eq!(failed(a.sum(2, false)), "sum_axis");
    assert_eq!(failed(a.softmax(-3, false)), "softmax_axis");
    assert_eq!(failed(a.argpartition(3, 1)), "argpartition_axis");
    assert_eq!(failed(a.topk(4, 1)), "topk_axis");
    assert_eq!(failed(a.split(2, 1)), "split");
    assert_eq!(failed(a.broadcast_to([3, 3])), "broadcast_to");
    assert_eq!(failed(a.slice(&[0], &[1], &[1])), "slice");
    assert_eq!(failed(a.take_along_axis(&i32s(&[0], [1]), 1)), "take_along_axis");
    assert_eq!(failed(a.clip(None, None)), "clip");
    assert_eq!(failed(ops::concatenate(&[], 0)), "concatenate_axis");
    assert_eq!(failed(ops::concatenate(&[&a, &b], 0)), "concatenate_axis");
    assert_eq!(failed(ops::stack(&[&a, &b], 0)), "stack_axis");
}

#[test]
fn an_axis_that_does_not_exist_is_refused_by_slices_of_one_axis() {
    let a = array([2, 3]);
    for axis in [2, -3, i32::MIN, i32::MAX] {
        assert_eq!(failed(a.slice_axis(axis, 0, 1)), "slice", "axis {axis}");
        assert_eq!(failed(a.slice_update_axis(&Array::from_f32(0.0), axis, 0, 1)), "slice_update");
        assert_eq!(a.dim(axis), 0);
    }
}

#[test]
fn an_array_that_no_memory_holds_is_refused_before_it_is_computed() {
    assert_eq!(failed(ops::zeros([1 << 20, 1 << 20, 1 << 20], Dtype::Float32)), "zeros");
    let column = array([1 << 20, 1]);
    assert_eq!(failed(column.matmul(&column.transpose(&[1, 0]).unwrap())), "matmul");
    assert_eq!(failed(column.broadcast_to([1 << 20, 1 << 30])), "broadcast_to");
}

#[test]
fn the_wrong_type_is_refused() {
    let x = array([3]);
    assert!(matches!(x.to_vec::<i32>(), Err(Error::Dtype { found: Dtype::Float32, wanted: Dtype::Int32 })));
    let whole = i32s(&[1, 2, 3, 4], [2, 2]);
    assert_eq!(failed(whole.matmul(&whole)), "matmul");
    assert_eq!(failed(x.left_shift(&x)), "left_shift");
}

#[test]
fn a_failure_while_computing_is_an_error_and_the_stream_goes_on() {
    // No Hadamard matrix of 3 is known to MLX, which it finds out while it computes.
    assert_eq!(failed(array([2, 3]).hadamard(None).and_then(|x| x.eval())), "eval");
    assert_eq!(array([2]).sum(0, false).unwrap().to_vec::<f32>().unwrap().len(), 1);
}

const SOURCE: KernelSource<'_> = KernelSource {
    name: "twice",
    inputs: &["x"],
    outputs: &["y"],
    body: "y[0] = 2 * x[0];",
    header: "",
    ensure_row_contiguous: true,
};

#[test]
fn gpu_kernels_are_refused_where_libmlx_has_no_such_gpu() {
    let x = array([1]);
    let launch = Launch {
        outputs: vec![([1].into(), Dtype::Float32)],
        grid: [1, 1, 1],
        thread_group: [1, 1, 1],
        ..Launch::default()
    };
    if BACKEND != "metal" {
        let error = metal_kernel(&SOURCE).and_then(|k| k.apply(&[&x], &launch)).unwrap_err().to_string();
        assert!(error.starts_with("metal_kernel: ") && error.contains("errors.rs"), "{error}");
    }
    if !BACKEND.starts_with("cuda") {
        let error = cuda_kernel(&SOURCE, 0).and_then(|k| k.apply(&[&x], &launch)).unwrap_err().to_string();
        assert!(error.starts_with("cuda_kernel: ") && error.contains("errors.rs"), "{error}");
    }
    let nul = KernelSource { body: "a\0b", ..SOURCE };
    assert!(matches!(cuda_kernel(&nul, 0), Err(Error::NulInText { .. })));
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    assert!(!Device::Gpu(999).is_available().unwrap());
    assert!(Stream::new(Device::Gpu(999)).is_err());
    assert!(Device::Cpu.is_available().unwrap());
}

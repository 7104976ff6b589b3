//! Evaluations that fail over and over. One test, so that the thread which runs it is the first to use MLX in this process.

use smallvec::SmallVec;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut, apply};
use strata_tensor::{Array, Dtype, Result, ops};

#[derive(PartialEq)]
struct Broken;

impl HostKernel for Broken {
    const NAME: &'static std::ffi::CStr = c"broken";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> std::result::Result<SmallVec<[Meta; 2]>, String> {
        Ok(inputs.iter().cloned().collect())
    }

    fn run(&self, _: &[View<'_>], _: &mut [ViewMut<'_>]) -> std::result::Result<(), String> {
        Err("breaks".to_owned())
    }
}

/// `steps` operations on top of `x`, and what the last ones gave.
fn chain(x: &Array, steps: usize) -> Result<Vec<Array>> {
    let mut all = vec![x.clone()];
    for step in 0..steps {
        all.push(all[step].add_number(1.0)?.sqrt()?);
    }
    Ok(all)
}

#[test]
fn b29_evaluations_that_fail_leave_nothing_to_wait_for() {
    let x = ops::ones([64], Dtype::Float32).unwrap();
    for _ in 0..200 {
        let broken = apply(Broken, &[&x.add_number(1.0).unwrap()]).unwrap().remove(0);
        let all = chain(&broken, 40).unwrap();
        assert!(all[40].eval().unwrap_err().to_string().contains("breaks"));
        // It is reported once, and all that was asked for has been through.
        for array in &all {
            assert!(array.is_available().unwrap() && array.pending_source().unwrap().is_none());
        }
        let last = chain(&x, 100).unwrap().remove(100).to_vec::<f32>().unwrap();
        assert!((last[0] - 1.618_034).abs() < 1e-5, "{last:?}");
    }
}

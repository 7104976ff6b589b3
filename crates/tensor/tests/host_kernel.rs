//! Rust functions inside MLX's graph: values, strides, takeovers, errors and panics, compiled graphs.
//! Truth comes from plain Rust on the same numbers.

use smallvec::{SmallVec, smallvec};
use std::sync::{Mutex, MutexGuard, PoisonError};
use strata_tensor::compile::compile;
use strata_tensor::host::{HostKernel, Meta, Output, View, ViewMut, apply};
use strata_tensor::{Array, Device, Dtype, Stream, async_eval, eval, memory, ops};

/// `out[i, j] = factor * x[i, j]`, reading through strides.
#[derive(PartialEq)]
struct Scale(f32);

impl HostKernel for Scale {
    const NAME: &'static std::ffi::CStr = c"scale";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        match inputs {
            [x] if x.shape.len() == 2 => Ok(smallvec![x.clone()]),
            _ => Err("x must have 2 dimensions".to_owned()),
        }
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let x = &inputs[0];
        let (shape, strides, data) = (x.shape(), x.strides(), x.span::<f32>()?);
        assert!(!self.0.is_nan(), "factor is not a number");
        if self.0 == 0.0 {
            return Err("factor must not be 0".to_owned());
        }
        let mut out = outputs[0].slice_mut::<f32>()?.iter_mut();
        for i in 0..shape[0] as usize {
            for j in 0..shape[1] as usize {
                *out.next().ok_or("too short")? =
                    self.0 * data[i * strides[0] as usize + j * strides[1] as usize];
            }
        }
        Ok(())
    }
}

/// Writes 7 into the first element of what it takes over.
#[derive(PartialEq)]
struct PokeSeven;

impl HostKernel for PokeSeven {
    const NAME: &'static std::ffi::CStr = c"poke_seven";
    const OUTPUTS: &'static [Output] = &[Output::TakesOver(0)];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        Ok(smallvec![inputs[0].clone()])
    }

    fn run(&self, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        outputs[0].slice_mut::<f32>()?[0] = 7.0;
        Ok(())
    }
}

/// The same for two at once.
#[derive(PartialEq)]
struct PokeBoth;

impl HostKernel for PokeBoth {
    const NAME: &'static std::ffi::CStr = c"poke_both";
    const OUTPUTS: &'static [Output] = &[Output::TakesOver(0), Output::TakesOver(1)];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        Ok(inputs.iter().cloned().collect())
    }

    fn run(&self, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        outputs.iter_mut().try_for_each(|out| {
            out.slice_mut::<f32>()?[0] = 7.0;
            Ok(())
        })
    }
}

/// One at a time for tests that count memory: the counters are the process's.
fn turn() -> MutexGuard<'static, ()> {
    static COUNTERS: Mutex<()> = Mutex::new(());
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn matrix() -> Array {
    Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap()
}

#[test]
fn computes_inside_the_graph() {
    let x = matrix().add_number(1.0).unwrap();
    let y = apply(Scale(2.0), &[&x]).unwrap().remove(0).negative().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [-4.0, -6.0, -8.0, -10.0, -12.0, -14.0]);
}

#[test]
fn sees_strides_of_views() {
    let y = apply(Scale(1.0), &[&matrix().transpose(&[1, 0]).unwrap()]).unwrap();
    assert_eq!(y[0].shape(), [3, 2]);
    assert_eq!(y[0].to_vec::<f32>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn a_takeover_copies_while_somebody_else_holds_the_input() {
    let x = matrix();
    x.eval().unwrap();
    let y = apply(PokeSeven, &[&x]).unwrap();
    assert_eq!(y[0].to_vec::<f32>().unwrap(), [7.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(x.to_vec::<f32>().unwrap()[0], 1.0);
    let transposed = apply(PokeSeven, &[&x.transpose(&[1, 0]).unwrap()]).unwrap();
    assert_eq!(transposed[0].to_vec::<f32>().unwrap(), [7.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn a_takeover_is_in_place_when_nobody_else_needs_the_input() {
    let _turn = turn();
    let n = 1 << 22;
    let mut x = ops::zeros([n], Dtype::Float32).unwrap();
    x.eval().unwrap();
    memory::reset_peak_memory().unwrap();
    let before = memory::active_memory().unwrap();
    for _ in 0..3 {
        x = apply(PokeSeven, &[&x]).unwrap().remove(0);
        x.eval().unwrap();
    }
    assert_eq!(x.slice_axis(0, 0, 1).unwrap().item::<f32>().unwrap(), 7.0);
    assert!(memory::peak_memory().unwrap() < before + n as usize * 4, "the buffer was copied");
}

#[test]
fn takeovers_of_several_outputs_are_in_place_too() {
    let _turn = turn();
    let n = 1 << 22;
    let zeros = || ops::zeros([n], Dtype::Float32).unwrap();
    let mut both = vec![zeros(), zeros()];
    eval(&both).unwrap();
    memory::reset_peak_memory().unwrap();
    let before = memory::active_memory().unwrap();
    for _ in 0..3 {
        both = apply(PokeBoth, &[&both[0], &both[1]]).unwrap();
        eval(&both).unwrap();
    }
    let first = |x: &Array| x.slice_axis(0, 0, 1).unwrap().item::<f32>().unwrap();
    assert_eq!([first(&both[0]), first(&both[1])], [7.0, 7.0]);
    assert!(memory::peak_memory().unwrap() < before + n as usize * 4, "a buffer was copied");
}

#[test]
fn an_output_is_reached_through_any_of_its_siblings() {
    for which in [0, 1] {
        let inputs = [matrix().add_number(1.0).unwrap(), matrix().add_number(2.0).unwrap()];
        let both = apply(PokeBoth, &[&inputs[0], &inputs[1]]).unwrap();
        let sum = both[which].add(&inputs[which]).unwrap().to_vec::<f32>().unwrap();
        let expected: Vec<f32> = (1..7).map(|x| 2.0 * (x as f32 + which as f32 + 1.0)).collect();
        assert_eq!(sum[1..], expected[1..]);
        assert_eq!(sum[0], 7.0 + 2.0 + which as f32);
    }
}

#[test]
fn what_the_device_is_still_computing_is_waited_for() {
    // Long enough that it is under way when the kernel is queued.
    let steps = 100;
    let n = 1 << 20;
    for round in 0..3 {
        let x = Stream::new(Device::current().unwrap()).unwrap().scope(|| {
            let mut x = ops::full([2, n / 2], &Array::from_f32(round as f32), Dtype::Float32).unwrap();
            for _ in 0..steps {
                x = x.add_number(1.0).unwrap();
            }
            async_eval([&x]).unwrap();
            x
        });
        let expected = (round + steps) as f32;
        let scaled = apply(Scale(2.0), &[&x]).unwrap().remove(0).to_vec::<f32>().unwrap();
        assert!(scaled.iter().all(|&value| value == 2.0 * expected), "round {round}: {}", scaled[0]);
        let poked = apply(PokeSeven, &[&x]).unwrap().remove(0).to_vec::<f32>().unwrap();
        assert_eq!(poked[0], 7.0);
        assert!(poked[1..].iter().all(|&value| value == expected), "round {round}");
    }
}

#[test]
fn refusals_errors_and_panics_become_errors() {
    let flat = Array::from_slice(&[1.0f32], [1]).unwrap();
    let refused = apply(Scale(1.0), &[&flat]).unwrap_err().to_string();
    assert!(refused.contains("x must have 2 dimensions"), "{refused}");
    for (factor, words) in [(0.0, "factor must not be 0"), (f32::NAN, "factor is not a number")] {
        let y = apply(Scale(factor), &[&matrix()]).unwrap().remove(0);
        let error = y.eval().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        // The stream goes on.
        assert_eq!(matrix().sum(0, false).unwrap().to_vec::<f32>().unwrap(), [5.0, 7.0, 9.0]);
    }
}

#[test]
fn compiled_graphs_follow_changing_shapes() {
    let f = compile(|x: &[Array]| apply(Scale(3.0), &[&x[0].add(&x[0])?]), true);
    for rows in [1, 2, 5] {
        let x = ops::ones([rows, 3], Dtype::Float32).unwrap();
        let y = f.call(&[&x]).unwrap().remove(0);
        assert_eq!(y.to_vec::<f32>().unwrap(), vec![6.0; rows as usize * 3]);
    }
    assert_eq!(f.traces(), 1);
}

#[test]
fn what_an_update_updates_is_its_source_until_it_is_computed() {
    let old = ops::zeros([4, 2], Dtype::Float32).unwrap();
    old.eval().unwrap();
    let update = ops::ones([1, 2], Dtype::Float32).unwrap();
    let new = old.slice_update_axis(&update, 0, 1, 2).unwrap();
    let source = new.pending_source().unwrap().expect("not computed yet");
    assert_eq!(source.to_vec::<f32>().unwrap(), [0.0; 8]);
    assert!(source.pending_source().unwrap().is_none());
    new.eval().unwrap();
    assert!(new.pending_source().unwrap().is_none());
}

#[test]
fn each_call_of_a_compiled_function_counts_as_a_node() {
    let f = compile(|x: &[Array]| Ok(vec![x[0].exp()?.add(&x[0])?]), true);
    let x = matrix();
    let once = f.call(&[&x]).unwrap().remove(0);
    let twice = f.call(&[&once]).unwrap().remove(0);
    let nodes = |y: &Array| ops::graph_names([y]).unwrap().len();
    assert!(nodes(&once) > 0);
    assert_eq!(nodes(&twice), 2 * nodes(&once));
}

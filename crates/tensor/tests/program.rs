//! Recorded graphs of host kernels: a run gives what the graph would, bit for bit, with takeovers, shapes, constants and
//! errors as there. Truth comes from the graph itself.

use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use strata_tensor::host::{HostKernel, Meta, Output, Program, Recorded, View, ViewMut, apply};
use strata_tensor::{Array, Dtype, async_eval, eval, memory, ops};

/// `a * x + y`; refuses to run with a NaN in `x`.
#[derive(PartialEq)]
struct Axpy(f32);

impl HostKernel for Axpy {
    const NAME: &'static CStr = c"axpy";
    const OUTPUTS: &'static [Output] = &[Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        if inputs[0] == inputs[1] {
            Ok(smallvec![inputs[0].clone()])
        } else {
            Err("shapes differ".to_owned())
        }
    }

    fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let (x, y) = (inputs[0].slice::<f32>()?, inputs[1].slice::<f32>()?);
        if x.iter().any(|x| x.is_nan()) {
            return Err("x holds a NaN".to_owned());
        }
        let out = outputs[0].slice_mut::<f32>()?;
        out.iter_mut().zip(x.iter().zip(y)).for_each(|(out, (x, y))| *out = self.0 * x + y);
        Ok(())
    }
}

/// Adds 1 to what it takes over, and gives the sum of it.
#[derive(PartialEq)]
struct Count;

impl HostKernel for Count {
    const NAME: &'static CStr = c"count";
    const OUTPUTS: &'static [Output] = &[Output::TakesOver(0), Output::Fresh];

    fn outputs(&self, inputs: &[Meta]) -> Result<SmallVec<[Meta; 2]>, String> {
        Ok(smallvec![inputs[0].clone(), Meta { dtype: Dtype::Float32, shape: [1].into() }])
    }

    fn run(&self, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let [counted, sum] = outputs else { return Err("two outputs".to_owned()) };
        counted.slice_mut::<f32>()?.iter_mut().for_each(|x| *x += 1.0);
        sum.slice_mut::<f32>()?[0] = counted.slice_mut::<f32>()?.iter().sum();
        Ok(())
    }
}

fn turn() -> MutexGuard<'static, ()> {
    static COUNTERS: Mutex<()> = Mutex::new(());
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn placeholder(shape: &[i32]) -> Array {
    Program::placeholder(&Meta { dtype: Dtype::Float32, shape: shape.into() }).unwrap()
}

fn recorded(inputs: &[&Array], outputs: &[&Array]) -> Program {
    match Program::record(inputs, outputs).unwrap() {
        Recorded::Program(program) => program,
        Recorded::Obstacle(name) => panic!("{name} cannot be recorded"),
    }
}

fn array(values: &[f32], shape: &[i32]) -> Array {
    Array::from_slice(values, shape).unwrap()
}

fn axpy(a: f32, x: &Array, y: &Array) -> Array {
    apply(Axpy(a), &[x, y]).unwrap().remove(0)
}

fn values(x: &Array) -> Vec<f32> {
    x.to_vec().unwrap()
}

/// Reuses intermediate results late, changes shapes, reads constants, made lazily too.
fn diamond(x: &Array, y: &Array) -> [Array; 2] {
    let constant = array(&[0.5, -1.0, 2.0, 0.25, 8.0, 3.0], &[6]);
    let lazy = constant.add_number(1.0).unwrap();
    let flat = x.reshape([6]).unwrap();
    let a = axpy(2.0, &flat, &constant);
    let b = axpy(-1.0, &a, &lazy);
    let c = axpy(0.5, &b, &a);
    let d = axpy(3.0, &c, &b);
    let e = axpy(1.5, &d.reshape([2, 3]).unwrap(), y);
    let f = axpy(1.0, &e.reshape([6]).unwrap(), &a);
    [e.expand_dims(&[0]).unwrap(), f]
}

#[test]
fn a_run_gives_what_the_graph_gives() {
    let (px, py) = (placeholder(&[2, 3]), placeholder(&[2, 3]));
    let outputs = diamond(&px, &py);
    let program = recorded(&[&px, &py], &[&outputs[0], &outputs[1]]);
    drop((px, py, outputs));
    for round in 0..4 {
        let numbers: Vec<f32> = (0..6).map(|i| (i * (round + 1)) as f32 * 0.37 - 1.0).collect();
        let (x, y) = (array(&numbers, &[2, 3]), array(&numbers[..], &[2, 3]).add_number(0.1).unwrap());
        let got = program.apply(&[&x, &y]).unwrap();
        let expected = diamond(&x, &y);
        for (got, expected) in got.iter().zip(&expected) {
            assert_eq!((got.shape(), values(got)), (expected.shape(), values(expected)));
        }
    }
}

#[test]
fn runs_can_be_queued_one_behind_the_other() {
    let (px, py) = (placeholder(&[2, 3]), placeholder(&[2, 3]));
    let outputs = diamond(&px, &py);
    let program = recorded(&[&px, &py], &[&outputs[0]]);
    let y = array(&[1.0, -1.0, 0.5, 0.0, 2.0, -0.25], &[2, 3]);
    let (mut by_program, mut by_graph) = (y.clone(), y.clone());
    for _ in 0..5 {
        by_program = program.apply(&[&by_program, &y]).unwrap().remove(0).squeeze(&[0]).unwrap();
        by_graph = diamond(&by_graph, &y)[0].squeeze(&[0]).unwrap();
    }
    assert_eq!(values(&by_program), values(&by_graph));
}

#[test]
fn a_takeover_is_in_place_also_while_the_run_before_is_under_way() {
    let _turn = turn();
    let n = 1 << 22;
    let px = placeholder(&[n]);
    let outputs = apply(Count, &[&px]).unwrap();
    let program = recorded(&[&px], &[&outputs[0], &outputs[1]]);
    drop((px, outputs));
    let mut x = ops::zeros([n], Dtype::Float32).unwrap();
    x.eval().unwrap();
    memory::reset_peak_memory().unwrap();
    let before = memory::active_memory().unwrap();
    let mut sums = Vec::new();
    for _ in 0..6 {
        let mut outputs = program.apply(&[&x]).unwrap();
        sums.push(outputs.remove(1));
        x = outputs.remove(0);
        async_eval(sums.last()).unwrap();
    }
    let sums: Vec<f32> = sums.iter().map(|sum| sum.item().unwrap()).collect();
    // Sums of so many ones are exact up to 2^24; beyond, each addition is.
    assert_eq!(sums[..4], [1.0, 2.0, 3.0, 4.0].map(|k| k * n as f32));
    assert!(memory::peak_memory().unwrap() < before + n as usize * 4, "the buffer was copied");
}

#[test]
fn a_takeover_copies_while_somebody_else_holds_the_input() {
    let px = placeholder(&[3]);
    let outputs = apply(Count, &[&px]).unwrap();
    let program = recorded(&[&px], &[&outputs[0], &outputs[1]]);
    let x = array(&[1.0, 2.0, 3.0], &[3]);
    let slice = x.slice_axis(0, 1, 3).unwrap();
    slice.eval().unwrap();
    let once = program.apply(&[&x]).unwrap();
    let twice = program.apply(&[&once[0]]).unwrap();
    assert_eq!(values(&twice[0]), [3.0, 4.0, 5.0]);
    assert_eq!(values(&once[0]), [2.0, 3.0, 4.0]);
    assert_eq!(values(&x), [1.0, 2.0, 3.0]);
    assert_eq!(values(&slice), [2.0, 3.0]);
    // Strided input: what is taken over is what the view shows.
    let columns = array(&[1.0, 9.0, 2.0, 9.0, 3.0, 9.0], &[3, 2]).slice_axis(1, 0, 1).unwrap().squeeze(&[1]);
    assert_eq!(values(&program.apply(&[&columns.unwrap()]).unwrap()[0]), [2.0, 3.0, 4.0]);
}

#[test]
fn an_input_that_is_read_later_is_not_taken_over() {
    let px = placeholder(&[3]);
    let counted = apply(Count, &[&px]).unwrap();
    let both = axpy(10.0, &counted[0], &px);
    let program = recorded(&[&px], &[&counted[0], &both]);
    for _ in 0..2 {
        let outputs = program.apply(&[&array(&[1.0, 2.0, 3.0], &[3])]).unwrap();
        assert_eq!(values(&outputs[1]), [21.0, 32.0, 43.0]);
        assert_eq!(values(&outputs[0]), [2.0, 3.0, 4.0]);
    }
}

#[test]
fn an_intermediate_result_is_taken_over_only_by_its_last_reader() {
    let px = placeholder(&[3]);
    let a = axpy(1.0, &px, &px);
    let first = apply(Count, &[&a]).unwrap();
    let second = apply(Count, &[&a]).unwrap();
    let sum = axpy(100.0, &first[0], &second[0]);
    let program = recorded(&[&px], &[&sum]);
    for _ in 0..2 {
        let out = program.apply(&[&array(&[1.0, 2.0, 3.0], &[3])]).unwrap();
        assert_eq!(values(&out[0]), [303.0, 505.0, 707.0]);
    }
}

#[test]
fn what_fails_in_a_run_is_its_error_and_the_program_goes_on() {
    let (px, py) = (placeholder(&[2]), placeholder(&[2]));
    let out = axpy(2.0, &axpy(1.0, &px, &py), &py);
    let program = recorded(&[&px, &py], &[&out]);
    let good = array(&[1.0, 2.0], &[2]);
    for _ in 0..3 {
        let bad = program.apply(&[&array(&[f32::NAN, 0.0], &[2]), &good]).unwrap();
        let error = bad[0].eval().unwrap_err().to_string();
        assert!(error.contains("[axpy] x holds a NaN"), "{error}");
        let out = program.apply(&[&good, &good]).unwrap();
        assert_eq!(values(&out[0]), [5.0, 10.0]);
    }
}

#[test]
fn what_cannot_be_recorded_is_named() {
    let px = placeholder(&[3]);
    let obstacle = |outputs: &[&Array]| match Program::record(&[&px], outputs).unwrap() {
        Recorded::Program(_) => panic!("it is recorded"),
        Recorded::Obstacle(name) => name,
    };
    let negative = px.negative().unwrap();
    assert_eq!(obstacle(&[&axpy(1.0, &negative, &negative)]), "Negative");
    assert_eq!(obstacle(&[&px]), "an output that no kernel computes");
    let once = axpy(1.0, &px, &px);
    assert_eq!(obstacle(&[&once, &once]), "an output that no kernel computes");
    let constant = axpy(1.0, &array(&[1.0; 3], &[3]), &array(&[1.0; 3], &[3]));
    assert_eq!(obstacle(&[&constant]), "an output that no kernel computes");
}

#[test]
fn inputs_that_differ_from_the_placeholders_are_refused() {
    let px = placeholder(&[3]);
    let program = recorded(&[&px], &[&axpy(1.0, &px, &px)]);
    let refused = |inputs: &[&Array]| program.apply(inputs).unwrap_err().to_string();
    assert!(refused(&[]).contains("takes 1 inputs but has 0"));
    assert!(refused(&[&array(&[1.0; 4], &[4])]).contains("input 0 is not of the recorded shape and type"));
    let integers = Array::from_slice(&[1, 2, 3], [3]).unwrap();
    assert!(refused(&[&integers]).contains("input 0"));
    assert!(px.eval().unwrap_err().to_string().contains("a placeholder has no value"));
    assert!(eval([&axpy(1.0, &px, &px)]).is_err());
    assert_eq!(values(&program.apply(&[&array(&[1.0, 2.0, 4.0], &[3])]).unwrap()[0]), [2.0, 4.0, 8.0]);
}

#[test]
fn a_program_gives_its_memory_back() {
    let _turn = turn();
    let n = 1 << 20;
    let before = memory::active_memory().unwrap();
    for _ in 0..3 {
        let px = placeholder(&[n]);
        let program = recorded(&[&px], &[&axpy(1.0, &axpy(1.0, &px, &px), &px)]);
        let out = program.apply(&[&ops::ones([n], Dtype::Float32).unwrap()]).unwrap();
        drop((program, px));
        assert_eq!(out[0].slice_axis(0, 0, 1).unwrap().item::<f32>().unwrap(), 3.0);
    }
    memory::clear_cache().unwrap();
    // Other tests hold some small arrays meanwhile.
    assert!(memory::active_memory().unwrap() < before + n as usize * 4, "a program's memory is still held");
}

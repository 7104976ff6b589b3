//! Nothing leaks, whatever the order of cloning, evaluating, failing and dropping. MLX's counters are of the whole
//! process, so these tests have a binary of their own and take turns.

use std::sync::{Mutex, MutexGuard, PoisonError};
use strata_tensor::compile::compile;
use strata_tensor::io::{load_safetensors, save_safetensors};
use strata_tensor::{Array, Dtype, memory, ops};

/// Taken before a test makes its first array: each counts those of all.
fn turn() -> MutexGuard<'static, ()> {
    static COUNTERS: Mutex<()> = Mutex::new(());
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn returns_to_the_same_memory(work: impl Fn()) {
    work();
    let before = memory::active_memory().unwrap();
    for _ in 0..50 {
        work();
    }
    assert_eq!(memory::active_memory().unwrap(), before);
}

fn random(shape: [i32; 2]) -> Array {
    let key = strata_tensor::random::Key::new(7).unwrap();
    strata_tensor::random::normal(0.0, 1.0, shape, Dtype::Float32, &key).unwrap()
}

#[test]
fn b46_memory_returns_after_every_order_of_clone_eval_drop() {
    let _turn = turn();
    returns_to_the_same_memory(|| {
        let x = random([31, 17]);
        let y = x.matmul(&x.transpose(&[1, 0]).unwrap()).unwrap();
        let z = y.clone();
        drop(y);
        z.eval().unwrap();
        let parts = z.split(31, 0).unwrap();
        drop(z);
        ops::eval(&parts).unwrap();
        let never = parts[3].add(&parts[4]).unwrap();
        drop(parts);
        drop(never);
    });
}

#[test]
fn b46_memory_returns_after_errors_and_closures() {
    let _turn = turn();
    returns_to_the_same_memory(|| {
        let x = random([5, 3]);
        assert!(x.matmul(&x).is_err());
        let f = compile(|i: &[Array]| Ok(vec![i[0].add(&i[0])?, i[0].exp()?]), false);
        let out = f.call(&[&x]).unwrap();
        drop(f);
        ops::eval(&out).unwrap();
        let failing = compile(|i: &[Array]| Ok(vec![i[0].matmul(&i[0])?]), false);
        assert!(failing.call(&[&x]).unwrap_err().to_string().starts_with("matmul: "));
        let panicking = compile(|_: &[Array]| panic!("no"), false);
        assert!(panicking.call(&[&x]).unwrap_err().to_string().contains("no"));
    });
}

#[test]
fn b46_rounds_of_every_kind_of_handle_leave_nothing() {
    let _turn = turn();
    let x = Array::from_slice(&[1.0f32, 2.0], [2]).unwrap();
    let double = compile(|i: &[Array]| Ok(vec![i[0].add(&i[0])?]), false);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.safetensors");
    save_safetensors(&file, [("a", &x)], &[("key", "value")]).unwrap();
    leaves_nothing("arrays", 70_000, || {
        Array::from_slice(&[1.0f32, 2.0], [2]).unwrap().add(&x).unwrap().eval().unwrap();
    });
    leaves_nothing("vectors", 70_000, || {
        drop(ops::concatenate(&[&x, &x.clone()], 0).unwrap());
        ops::eval([&x]).unwrap();
    });
    leaves_nothing("closures", 70_000, || {
        drop(compile(|i: &[Array]| Ok(i.to_vec()), false));
        double.call(&[&x]).unwrap()[0].eval().unwrap();
    });
    // Each opens a file, which takes most of the time.
    leaves_nothing("maps", 7_000, || {
        load_safetensors(&file).unwrap().0["a"].eval().unwrap();
    });
    leaves_nothing("traces", 2_000, || {
        let f = compile(|i: &[Array]| Ok(vec![i[0].add(&i[0])?.exp()?]), false);
        f.call(&[&x]).unwrap()[0].eval().unwrap();
    });
}

/// Rounds leave neither arrays nor, beside a few pages, 16 bytes each of anything else: the least that malloc gives for
/// a handle is 32.
fn leaves_nothing(what: &str, rounds: usize, round: impl Fn()) {
    (0..rounds / 20).for_each(|_| round());
    let (before, resident) = (memory::active_memory().unwrap(), resident_kib());
    (0..rounds).for_each(|_| round());
    assert_eq!(memory::active_memory().unwrap(), before, "{what}");
    let more = resident_kib().saturating_sub(resident);
    assert!(more < 64 + rounds * 16 / 1024, "{rounds} rounds of {what} left {more} KiB behind");
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

//! Nothing leaks, whatever the order of cloning, evaluating, failing and dropping. MLX's counters are of the whole
//! process, so these tests have a binary of their own and take turns.

use strata_tensor::compile::compile;
use strata_tensor::{Array, Dtype, memory, ops};

static COUNTERS: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn returns_to_the_same_memory(work: impl Fn()) {
    let _turn = COUNTERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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
    returns_to_the_same_memory(|| {
        let x = random([5, 3]);
        assert!(x.matmul(&x).is_err());
        let f = compile(|i: &[Array]| Ok(vec![i[0].add(&i[0])?, i[0].exp()?]), false).unwrap();
        let out = f.call(&[&x]).unwrap();
        drop(f);
        ops::eval(&out).unwrap();
        let failing = compile(|i: &[Array]| Ok(vec![i[0].matmul(&i[0])?]), false).unwrap();
        assert!(failing.call(&[&x]).unwrap_err().to_string().starts_with("matmul: "));
        let panicking = compile(|_: &[Array]| panic!("no"), false).unwrap();
        assert!(panicking.call(&[&x]).unwrap_err().to_string().contains("no"));
    });
}

#[test]
fn b46_seventy_thousand_rounds_of_each_handle_leave_nothing() {
    let _turn = COUNTERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let x = Array::from_f32(1.0);
    x.eval().unwrap();
    let before = memory::active_memory().unwrap();
    let resident = resident_kib();
    for _ in 0..70_000 {
        drop(x.clone());
        drop(ops::concatenate(&[&x.reshape([1]).unwrap(), &x.reshape([1]).unwrap()], 0).unwrap());
    }
    for _ in 0..2_000 {
        drop(compile(|i: &[Array]| Ok(i.to_vec()), false).unwrap());
    }
    assert_eq!(memory::active_memory().unwrap(), before);
    assert!(resident_kib() < resident + 64 * 1024, "from {resident} KiB to {} KiB", resident_kib());
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

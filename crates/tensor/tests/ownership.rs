//! Threads and owners: errors stay on their thread, graphs of different threads do not meet, owners are dropped once.

use std::thread;
use strata_tensor::compile::compile;
use strata_tensor::{Array, Dtype, ops};

fn random(shape: [i32; 2]) -> Array {
    let key = strata_tensor::random::Key::new(7).unwrap();
    strata_tensor::random::normal(0.0, 1.0, shape, Dtype::Float32, &key).unwrap()
}

#[test]
fn owned_bytes_are_dropped_once_when_the_last_array_goes() {
    struct Owner(Vec<u8>, std::sync::Arc<std::sync::atomic::AtomicUsize>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let drops = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let bytes: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    for range in [0..12, 4..12, 1..9] {
        let owner = Owner(bytes.clone(), drops.clone());
        let n = (range.len() / 4) as i32;
        let x = Array::from_owner(owner, range.clone(), [n], Dtype::Float32).unwrap();
        let y = x.clone();
        drop(x);
        let expected: Vec<f32> =
            bytes[range].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    }
    assert_eq!(drops.load(std::sync::atomic::Ordering::SeqCst), 3);
    let far = Array::from_owner(vec![0u8; 8], 4..12, [2], Dtype::Float32);
    assert!(far.is_err());
}

#[test]
fn an_error_stays_on_its_thread() {
    let x = random([2, 3]);
    let error = thread::spawn(|| random([2, 3]).matmul(&random([2, 3])).unwrap_err().to_string());
    assert!(x.add(&x).unwrap().eval().is_ok());
    let error = error.join().unwrap();
    assert!(error.starts_with("matmul: ") && error.contains("ownership.rs"), "{error}");
}

#[test]
fn b43_eight_threads_evaluate_their_own_graphs() {
    let threads: Vec<_> = (0..8u16)
        .map(|t| {
            thread::spawn(move || {
                for i in 0..200u16 {
                    let x = Array::from_slice(&[f32::from(t), f32::from(i)], [2]).unwrap();
                    let y = x.multiply(&x).unwrap().sum(0, false).unwrap();
                    assert_eq!(y.item::<f32>().unwrap(), f32::from(t).powi(2) + f32::from(i).powi(2));
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
}

#[test]
fn b45_a_changing_position_neither_retraces_nor_grows() {
    let step = compile(
        |i: &[Array]| {
            let rope = strata_tensor::fast::Rope {
                dims: 4,
                traditional: false,
                base: Some(1e4),
                scale: 1.0,
                freqs: None,
            };
            Ok(vec![strata_tensor::fast::rope_dynamic(&i[0], &rope, &i[1])?])
        },
        false,
    );
    let x = ops::ones([1, 2, 1, 4], Dtype::Float32).unwrap();
    let mut last = Vec::new();
    for position in 0..6000 {
        let y = step.call(&[&x, &Array::from_i32(position)]).unwrap().remove(0).to_vec::<f32>().unwrap();
        assert_ne!(y, last, "position {position} was baked in");
        last = y;
    }
    assert_eq!(step.traces(), 1);
}

#[test]
fn b45_five_hundred_shapes_are_one_trace_without_shapes_and_one_each_with_them() {
    let gate = |i: &[Array]| Ok(vec![i[0].multiply(&i[0].sigmoid()?)?.multiply(&i[1])?]);
    for (shapeless, traces) in [(true, 1), (false, 500)] {
        let gate = compile(gate, shapeless);
        for pass in 0..2 {
            for length in 1..=500 {
                let x = ops::full([length, 3], &Array::from_f32(0.0), Dtype::Float32).unwrap();
                let y = gate.call(&[&x, &x]).unwrap().remove(0);
                assert_eq!(y.shape(), [length, 3], "pass {pass}");
            }
        }
        assert_eq!(gate.traces(), traces, "a shape that was traced is not traced again");
    }
}

//! Where work runs: a scope chooses the stream, and ends however the work ends.

use crate::support::{array, floats};
use std::panic::{AssertUnwindSafe, catch_unwind};
use strata_tensor::{Device, Stream};

#[test]
fn a_scope_chooses_the_device_and_gives_back_the_one_before() {
    let before = Device::current().unwrap();
    let stream = Stream::new(Device::Cpu).unwrap();
    let (inside, sum) = stream.scope(|| {
        let inner = Stream::new(Device::Cpu).unwrap().scope(|| array([3]).sum(0, false).unwrap());
        (Device::current().unwrap(), inner)
    });
    assert_eq!((inside, Device::current().unwrap()), (Device::Cpu, before));
    stream.synchronize().unwrap();
    let expected: f32 = floats(&array([3])).iter().sum();
    assert!((sum.item::<f32>().unwrap() - expected).abs() < 1e-6);
}

#[test]
fn a_scope_ends_with_a_panic_too() {
    let before = Device::current().unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        Stream::new(Device::Cpu).unwrap().scope(|| panic!("in the scope"));
    }));
    assert!(panicked.is_err());
    assert_eq!(Device::current().unwrap(), before);
    assert_eq!(array([2]).add(&array([2])).unwrap().shape(), [2]);
}

#[test]
fn b42_results_of_one_stream_feed_another_without_a_wait_by_hand() {
    let (first, second) = (Stream::new(Device::Cpu).unwrap(), Stream::new(Device::Cpu).unwrap());
    let mut x = array([64, 65]);
    for round in 0..50 {
        let stream = if round % 2 == 0 { &first } else { &second };
        x = stream.scope(|| x.multiply_number(0.5)?.add_number(1.0)).unwrap();
        strata_tensor::async_eval([&x]).unwrap();
    }
    // x -> x / 2 + 1 has the fixed point 2.
    assert!(floats(&x).iter().all(|v| (v - 2.0).abs() < 1e-5));
}

#[test]
fn b42_a_thread_has_its_own_streams() {
    let stream = Stream::new(Device::Cpu).unwrap();
    let here = stream.scope(|| array([5]).exp().unwrap());
    here.eval().unwrap();
    let there = std::thread::spawn(|| floats(&array([5]).exp().unwrap())).join().unwrap();
    assert_eq!(there, floats(&here));
}

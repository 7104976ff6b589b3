//! What one sequence draws: from its own key alone, by its own options, whatever its neighbours do. Seeds are fixed, so
//! counts are the same on every run; the bounds are what a fair draw keeps by a wide margin.

use std::cell::Cell;
use std::collections::BTreeSet;
use strata_contracts::SamplingOptions;
use strata_generate::Sampler;
use strata_tensor::{Array, Dtype, random};

const VOCABULARY: usize = 500;

thread_local! {
    static HOST_KERNELS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test with both ways of drawing.
fn both(test: impl Fn()) {
    for host_kernels in [false, true] {
        HOST_KERNELS.set(host_kernels);
        test();
    }
}

fn seeded(seed: u64) -> SamplingOptions {
    SamplingOptions { temperature: 1.0, seed: Some(seed), ..SamplingOptions::default() }
}

fn sampler(options: &SamplingOptions) -> Sampler {
    Sampler::new(options, &[0], VOCABULARY as u32).unwrap().with_host_kernels(HOST_KERNELS.get())
}

/// Logits `[1, V]` under which every id is equally likely.
fn level() -> Array {
    Array::from_slice(&[0.25f32; VOCABULARY], [1, VOCABULARY as i32]).unwrap()
}

fn draw(sampler: &mut Sampler, logits: &Array) -> u32 {
    sampler.next(logits).unwrap().item().unwrap()
}

fn draws(options: &SamplingOptions, logits: &Array, count: usize) -> Vec<u32> {
    let mut sampler = sampler(options);
    (0..count).map(|_| draw(&mut sampler, logits)).collect()
}

#[test]
fn b25_equal_seeds_repeat_and_other_seeds_draw_something_else() {
    both(|| {
        let of = |seed| draws(&seeded(seed), &level(), 32);
        let first: Vec<_> = [0, 1, 2, 3, 7, 8, 1 << 32, u64::MAX].map(of).to_vec();
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), first.len(), "{first:?}");
        assert_eq!(of(7), first[4]);
        // A step has a key of its own too: the same logits do not give the same id again and again.
        assert!(first.iter().all(|ids| ids.iter().collect::<BTreeSet<_>>().len() > 24), "{first:?}");
    });
}

#[test]
fn b25_a_sequence_draws_the_same_alone_and_among_others() {
    both(|| {
        let alone = draws(&seeded(7), &level(), 32);
        let unseeded = SamplingOptions { seed: None, ..seeded(0) };
        let (mut first, mut second, mut twin) =
            (sampler(&unseeded), sampler(&seeded(8)), sampler(&seeded(7)));
        let mut sampler = sampler(&seeded(7));
        for (step, &expected) in alone.iter().enumerate() {
            draw(&mut first, &level());
            // Draws of others in the process, with a key that is equal to the sequence's.
            let key = random::Key::new(7).unwrap();
            random::normal(0.0, 1.0, [3], Dtype::Float32, &key).unwrap().eval().unwrap();
            assert_eq!(draw(&mut sampler, &level()), expected, "step {step}");
            draw(&mut second, &level());
            if step % 3 == 0 {
                draw(&mut twin, &level());
            }
        }
    });
}

#[test]
fn b25_sequences_without_a_seed_differ() {
    both(|| {
        let unseeded = SamplingOptions { seed: None, ..seeded(0) };
        let of = [(); 4].map(|()| draws(&unseeded, &level(), 32));
        assert_eq!(of.iter().collect::<BTreeSet<_>>().len(), 4);
    });
}

#[test]
fn b25_seeds_near_each_other_are_not_the_same_stream_shifted() {
    both(|| {
        let count = 200;
        let streams: Vec<_> = (0..6).map(|seed| draws(&seeded(seed), &level(), count)).collect();
        for (a, one) in streams.iter().enumerate() {
            for (b, other) in streams.iter().enumerate() {
                for shift in 0..4 {
                    if a == b && shift == 0 {
                        continue;
                    }
                    let equal = one[shift..].iter().zip(other).filter(|(x, y)| x == y).count();
                    // One in 500 by chance, so 0.4 of 200.
                    assert!(
                        equal <= 6,
                        "{equal} of {count} ids of seed {a} are those of seed {b} {shift} steps back"
                    );
                }
            }
        }
    });
}

/// Probabilities .5 .3 .15 .05 at ids 3, 0, 2, 1 and none elsewhere.
fn four() -> Array {
    let mut logits = [f32::NEG_INFINITY; VOCABULARY];
    for (id, probability) in [(3, 0.5f32), (0, 0.3), (2, 0.15), (1, 0.05)] {
        logits[id] = probability.ln() + 2.5;
    }
    Array::from_slice(&logits, [1, VOCABULARY as i32]).unwrap()
}

/// How often ids 3, 0, 2 and 1 come in 1000 draws.
fn counts(options: &SamplingOptions) -> [usize; 4] {
    let ids = draws(options, &four(), 1000);
    let counts = [3, 0, 2, 1].map(|id| ids.iter().filter(|&&drawn| drawn == id).count());
    assert_eq!(counts.iter().sum::<usize>(), 1000, "nothing impossible is drawn");
    counts
}

#[track_caller]
fn near(counts: [usize; 4], weights: [f64; 4]) {
    let total: f64 = weights.iter().sum();
    for (count, weight) in counts.into_iter().zip(weights) {
        let p = weight / total;
        let deviation = (1000.0 * p * (1.0 - p)).sqrt();
        assert!(
            (count as f64 - 1000.0 * p).abs() <= 4.0 * deviation,
            "{counts:?} but weights are {weights:?}"
        );
    }
}

#[test]
fn b24_temperature_acts_on_the_draw_and_not_on_what_filters_keep() {
    both(|| {
        near(counts(&seeded(1)), [0.5, 0.3, 0.15, 0.05]);
        let cold = SamplingOptions { temperature: 0.5, ..seeded(2) };
        let squares = [0.25, 0.09, 0.0225, 0.0025];
        near(counts(&cold), squares);
        // Of the tempered probabilities (.685 .247 .062 .007) either filter would keep two ids.
        near(counts(&SamplingOptions { top_p: 0.85, ..cold.clone() }), [0.25, 0.09, 0.0225, 0.0]);
        near(counts(&SamplingOptions { min_p: 0.2, ..cold.clone() }), [0.25, 0.09, 0.0225, 0.0]);
        near(counts(&SamplingOptions { top_p: 0.8, min_p: 0.1, ..cold }), [0.25, 0.09, 0.0, 0.0]);
        let hot = SamplingOptions { temperature: 2.0, top_p: 0.8, ..seeded(3) };
        near(counts(&hot), [0.5f64.sqrt(), 0.3f64.sqrt(), 0.0, 0.0]);
    });
}

#[test]
fn b24_top_k_comes_last_and_leaves_at_least_one() {
    both(|| {
        let filtered = SamplingOptions { top_p: 0.8, top_k: 1, ..seeded(4) };
        assert_eq!(counts(&filtered), [1000, 0, 0, 0]);
        // Were top-k first, two ids would be renormalised to .625 and .375, of which 0.6 of the mass is one.
        near(counts(&SamplingOptions { top_p: 0.6, top_k: 2, ..seeded(5) }), [0.5, 0.3, 0.0, 0.0]);
        for options in
            [SamplingOptions { top_p: 1e-6, ..seeded(6) }, SamplingOptions { min_p: 1.0, ..seeded(6) }]
        {
            assert_eq!(counts(&options), [1000, 0, 0, 0]);
        }
    });
}

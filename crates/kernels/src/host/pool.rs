//! One pool of threads for all host kernels: no allocation and no thread start per call.
//!
//! Invariants:
//! 1. A body runs once for each index of `0..chunks`, on any thread; what it computes depends on the index alone, so a
//!    result is the same whatever thread ran it.
//! 2. When [`parallel_for`] returns, or unwinds, no thread can still touch the body.
//! 3. The calling thread takes part, and finishes alone when the workers are asleep or busy.
//! 4. A nested or concurrent call runs on its own thread; it never waits for the pool.
//! 5. A worker that finds no work spins for microseconds, yields for about a millisecond, and then parks.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};

/// Rounds of `spin_loop` before a waiting thread begins to yield (about 20 µs).
const SPINS: u32 = 500;
/// Yields before a worker parks (about a millisecond where nobody else wants the core).
const YIELDS: u32 = 2_000;

/// Threads that work on a call: `STRATA_THREADS`, or all that the machine offers.
pub fn threads() -> usize {
    shared().threads
}

/// Runs `body(i)` for each `i` in `0..chunks` on all cores and returns when all are done.
///
/// Cut work into a few chunks a thread: chunks are claimed one by one, so a core that is slower or shared does fewer.
/// A panic in a body reaches the caller after all threads have left it.
pub fn parallel_for(chunks: usize, body: impl Fn(usize) + Sync) {
    shared().run(chunks, &body);
}

/// Cuts `out` into chunks of `chunk` elements (the last may be shorter) and runs `body(i, chunk_i)` on all cores.
pub fn parallel_chunks<T: Send>(out: &mut [T], chunk: usize, body: impl Fn(usize, &mut [T]) + Sync) {
    let length = out.len();
    let out = Disjoint::new(out);
    parallel_for(length.div_ceil(chunk.max(1)), |index| {
        let start = index * chunk;
        // SAFETY: chunk ranges of different indices do not overlap, and each index runs once (invariant 1).
        body(index, unsafe { out.range(start..length.min(start + chunk)) });
    });
}

/// The `index`th of `parts` nearly equal consecutive ranges of `0..total`, cut at multiples of `unit`.
pub fn part(total: usize, parts: usize, unit: usize, index: usize) -> Range<usize> {
    let units = total.div_ceil(unit);
    let at = |i: usize| (units * i / parts * unit).min(total);
    at(index)..at(index + 1)
}

/// A mutable slice that several threads write at places that do not overlap.
pub struct Disjoint<'a, T> {
    start: *mut T,
    length: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `range`, whose caller promises that no two live ranges overlap; `T: Send` lets another
// thread hold a `&mut T`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Takes over the slice for as long as the borrow lasts.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), borrow: PhantomData }
    }

    /// One range of the slice.
    ///
    /// # Safety
    /// No two ranges that are alive at one time may overlap.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "range {range:?} of {}", self.length);
        // SAFETY: in bounds of a live borrow (checked above); not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

type Body<'a> = &'a (dyn Fn(usize) + Sync);

/// The process's pool, started at first use.
fn shared() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        let asked = std::env::var("STRATA_THREADS").ok().and_then(|text| text.parse().ok());
        let all = || thread::available_parallelism().map_or(1, usize::from);
        Pool::new(asked.filter(|&n| n > 0).unwrap_or_else(all).min(256))
    })
}

struct Pool {
    threads: usize,
    workers: Vec<Thread>,
    state: Arc<State>,
}

/// What caller and workers share. `gate` is odd while a job is open.
struct State {
    gate: AtomicUsize,
    /// Workers that may be reading `job`.
    inside: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    parked: Vec<AtomicBool>,
    /// Held by the one caller that may open a job.
    busy: AtomicBool,
    stop: AtomicBool,
}

#[derive(Clone, Copy)]
struct Job {
    body: Body<'static>,
    chunks: usize,
}

// SAFETY: `job` is written only by the holder of `busy` while `gate` is even and `inside` has been seen at zero after
// closing; workers read it only while counted in `inside` and after seeing `gate` odd. The rest is `Sync` by itself.
unsafe impl Sync for State {}
// SAFETY: a `Body` is a reference to something `Sync`.
unsafe impl Send for State {}

impl Pool {
    fn new(threads: usize) -> Self {
        let count = threads - 1;
        let state = Arc::new(State {
            gate: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            parked: (0..count).map(|_| AtomicBool::new(false)).collect(),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        // A machine that refuses a thread gets a smaller pool, not an error: the caller can do all the work.
        let workers: Vec<Thread> = (0..count)
            .map_while(|index| {
                let state = Arc::clone(&state);
                let thread = thread::Builder::new().name(format!("strata-kernel-{index}"));
                thread.spawn(move || state.work(index)).ok().map(|handle| handle.thread().clone())
            })
            .collect();
        Self { threads: workers.len() + 1, workers, state }
    }

    fn run(&self, chunks: usize, body: Body<'_>) {
        let state = &*self.state;
        let alone = chunks <= 1
            || self.workers.is_empty()
            || state.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err();
        if alone {
            return (0..chunks).for_each(body);
        }
        // SAFETY: the lifetime is erased for the time between `open` and `close`; `close` waits until no worker can
        // hold the body any more, and nothing between the two unwinds (`claim` catches).
        let body = unsafe { std::mem::transmute::<Body<'_>, Body<'static>>(body) };
        let job = Job { body, chunks };
        self.open(job);
        state.claim(job);
        state.close();
        let panic = state.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        state.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn open(&self, job: Job) {
        let state = &*self.state;
        state.next.store(0, Ordering::Relaxed);
        // SAFETY: this thread holds `busy`, the gate is even and `close` has seen `inside` at zero: nobody reads.
        unsafe { *state.job.get() = Some(job) };
        state.gate.fetch_add(1, Ordering::SeqCst);
        for (worker, parked) in self.workers.iter().zip(&state.parked) {
            // SeqCst with the worker's store and re-check: either it sees the gate, or we see it parked.
            if parked.load(Ordering::SeqCst) && parked.swap(false, Ordering::SeqCst) {
                worker.unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.workers.iter().for_each(Thread::unpark);
    }
}

impl State {
    /// Runs chunks until none is left; keeps the first panic and gives up the chunks after it.
    fn claim(&self, job: Job) {
        let work = AssertUnwindSafe(|| {
            loop {
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                if index >= job.chunks {
                    break;
                }
                (job.body)(index);
            }
        });
        if let Err(panic) = catch_unwind(work) {
            self.next.store(job.chunks, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// Ends the open job and waits for the workers inside it.
    fn close(&self) {
        self.gate.fetch_add(1, Ordering::SeqCst);
        let mut patience = 0;
        while self.inside.load(Ordering::SeqCst) != 0 {
            wait(&mut patience);
        }
    }

    /// A worker's life.
    fn work(&self, index: usize) {
        let (mut seen, mut patience) = (0, 0);
        while !self.stop.load(Ordering::Relaxed) {
            let gate = self.gate.load(Ordering::Acquire);
            if gate & 1 == 1 && gate != seen {
                seen = gate;
                patience = 0;
                self.inside.fetch_add(1, Ordering::SeqCst);
                // The gate is read again after being counted: the caller closes first and reads the count after.
                if self.gate.load(Ordering::SeqCst) & 1 == 1 {
                    // SAFETY: counted in `inside` with the gate open, so the job was written before and stays.
                    if let Some(job) = unsafe { *self.job.get() } {
                        self.claim(job);
                    }
                }
                self.inside.fetch_sub(1, Ordering::SeqCst);
            } else if patience < SPINS + YIELDS {
                wait(&mut patience);
            } else {
                let parked = &self.parked[index];
                parked.store(true, Ordering::SeqCst);
                if self.gate.load(Ordering::SeqCst) & 1 == 0 && !self.stop.load(Ordering::SeqCst) {
                    thread::park();
                }
                parked.store(false, Ordering::SeqCst);
                patience = 0;
            }
        }
    }
}

fn wait(patience: &mut u32) {
    *patience += 1;
    if *patience < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_index_runs_exactly_once() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads);
            for chunks in [0, 1, 2, 5, 64, 1000] {
                let runs: Vec<AtomicU32> = (0..chunks).map(|_| AtomicU32::new(0)).collect();
                pool.run(chunks, &|i| {
                    runs[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    runs.iter().all(|n| n.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {chunks} chunks"
                );
            }
        }
    }

    #[test]
    fn many_short_jobs_see_their_own_body() {
        let pool = Pool::new(3);
        for round in 0..20_000_usize {
            let sum = AtomicUsize::new(0);
            pool.run(6, &|i| {
                sum.fetch_add(round + i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 6 * round + 15);
        }
    }

    #[test]
    fn parked_workers_do_not_hold_up_the_caller() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            thread::sleep(std::time::Duration::from_millis(30));
            let sum = AtomicUsize::new(0);
            pool.run(10, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for bad in 0..8 {
            let result = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|i| assert!(i != bad, "chunk {i}"))));
            let text = *result.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(text, format!("chunk {bad}"));
            let sum = AtomicUsize::new(0);
            pool.run(4, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 6);
        }
    }

    #[test]
    fn nested_and_concurrent_calls_finish() {
        let total = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        parallel_for(5, |_| {
                            parallel_for(3, |_| {
                                total.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 50 * 5 * 3);
    }

    #[test]
    fn chunks_of_a_slice_do_not_overlap_and_cover_it() {
        let mut out = vec![0_usize; 103];
        parallel_chunks(&mut out, 10, |index, chunk| chunk.iter_mut().for_each(|x| *x += index + 1));
        let expected: Vec<usize> = (0..103).map(|i| i / 10 + 1).collect();
        assert_eq!(out, expected);
    }

    #[test]
    fn parts_cover_the_whole_at_unit_borders() {
        for (total, parts, unit) in [(576, 7, 16), (5, 3, 4), (0, 2, 8), (49152, 2, 1)] {
            let ranges: Vec<_> = (0..parts).map(|i| part(total, parts, unit, i)).collect();
            assert_eq!(ranges[0].start, 0);
            assert_eq!(ranges[parts - 1].end, total);
            assert!(ranges.windows(2).all(|w| w[0].end == w[1].start && w[1].start % unit == 0));
        }
    }
}

//! Many sequences over one graph, from the model folder to the token: threads that hand over to each other, prompts of
//! every length, and requests that are dropped in the middle leave nothing behind.
//!
//! MLX's counters and the resident memory are of the whole process, so these tests take turns.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use strata_artifacts::ModelDir;
use strata_contracts::{Composition, KernelSet, SamplingOptions};
use strata_generate::{Options, TokenStream};
use strata_models::Graph;
use strata_state::{DiskCache, Snapshot, State};
use strata_tensor::memory;

const KERNELS: [KernelSet; 2] = [KernelSet::Reference, KernelSet::Fast];

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    memory::set_cache_limit(CACHE_LIMIT).unwrap();
    turn
}

fn composition(kernels: KernelSet) -> Composition {
    Composition { kernels, ..Composition::default() }
}

fn load(variant: &str, kernels: KernelSet) -> Box<dyn Graph> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/parity").join(variant).join("model");
    strata_models::load(&ModelDir::open(&folder).unwrap(), &composition(kernels)).unwrap()
}

fn empty(graph: &dyn Graph, kernels: KernelSet) -> State {
    State::compose(&graph.declaration().layers, &composition(kernels)).unwrap()
}

/// Ids of a prompt, below every tiny model's vocabulary.
fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * 37 + 11) % 97).collect()
}

fn options(max_tokens: usize, seed: u64) -> Options {
    let sampling = SamplingOptions {
        temperature: 1.0,
        top_p: 0.95,
        repetition_penalty: 1.1,
        seed: Some(seed),
        ..SamplingOptions::default()
    };
    Options { sampling, max_tokens, prefill_step: 64, ..Options::default() }
}

fn generate(graph: &dyn Graph, state: &mut State, prompt: &[u32], options: Options) -> Vec<u32> {
    TokenStream::start(graph, state, prompt, options).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Loads and generates in one go, on the calling thread.
fn answer(kernels: KernelSet) -> Vec<u32> {
    let graph = load("llama/q4g32", kernels);
    let mut state = empty(graph.as_ref(), kernels);
    generate(graph.as_ref(), &mut state, &prompt(20), options(12, 5))
}

#[test]
fn b42_a_model_generates_on_whatever_thread_loads_it() {
    let _turn = turn();
    for kernels in KERNELS {
        let here = answer(kernels);
        // One after the other, so that each finds what a thread that is gone has left; then all at once.
        for _ in 0..3 {
            assert_eq!(thread::spawn(move || answer(kernels)).join().unwrap(), here);
        }
        let together: Vec<_> = (0..3).map(|_| thread::spawn(move || answer(kernels))).collect();
        for one in together {
            assert_eq!(one.join().unwrap(), here);
        }
        assert_eq!(answer(kernels), here);
    }
}

#[test]
fn b42_a_state_read_on_one_thread_goes_on_from_disk_on_others() {
    let _turn = turn();
    for kernels in KERNELS {
        let folder = tempfile::tempdir().unwrap();
        let (whole, start) = (prompt(30), 21);
        let first = whole.clone();
        // Reads a prefix on a thread of its own and copies the state out while the stream's last step is still queued.
        let snapshot = thread::spawn(move || {
            let graph = load("gemma3_text/f32", kernels);
            let mut state = empty(graph.as_ref(), kernels);
            strata_generate::prefill(graph.as_ref(), &mut state, &first[..start], 8).unwrap();
            let snapshot = state.snapshot("tiny", &first[..start]).unwrap();
            let mut stream =
                TokenStream::start(graph.as_ref(), &mut state, &first[start..], options(9, 3)).unwrap();
            let two = [stream.next().unwrap().unwrap(), stream.next().unwrap().unwrap()];
            drop(stream);
            (snapshot, two)
        });
        let (snapshot, two) = snapshot.join().unwrap();
        // Saves on another; the file is complete when the cache is dropped.
        let place = folder.path().to_owned();
        let save = move |snapshot: Snapshot| {
            assert!(DiskCache::open(&place, 1 << 20).unwrap().store(snapshot));
        };
        thread::spawn(move || save(snapshot)).join().unwrap();
        let go_on = |whole: &[u32]| {
            let graph = load("gemma3_text/f32", kernels);
            let found = DiskCache::open(folder.path(), 1 << 20).unwrap().find("tiny", whole).unwrap();
            assert_eq!(found.tokens(), &whole[..start]);
            let mut state = found.restore(&empty(graph.as_ref(), kernels)).unwrap();
            generate(graph.as_ref(), &mut state, &whole[start..], options(9, 3))
        };
        let there = thread::scope(|scope| scope.spawn(|| go_on(&whole)).join().unwrap());
        let graph = load("gemma3_text/f32", kernels);
        let mut state = empty(graph.as_ref(), kernels);
        strata_generate::prefill(graph.as_ref(), &mut state, &whole[..start], 8).unwrap();
        let straight = generate(graph.as_ref(), &mut state, &whole[start..], options(9, 3));
        assert_eq!(there, straight);
        assert_eq!(go_on(&whole), straight);
        assert_eq!(straight[..2], two);
    }
}

#[test]
fn b45_prompts_of_five_hundred_lengths_leave_nothing_behind() {
    let _turn = turn();
    // The reference is slow and takes every tenth.
    for (kernels, step) in [(KernelSet::Fast, 1), (KernelSet::Reference, 10)] {
        let graph = load("llama/f32", kernels);
        let read = |length: usize| {
            let mut state = empty(graph.as_ref(), kernels);
            let options = Options { prefill_step: 512, ..options(2, 1) };
            generate(graph.as_ref(), &mut state, &prompt(length), options);
        };
        // The longest first: buffers that grow to the largest request have grown then, in every thread of the pool, however
        // late the machine lets one take part.
        (1..=500).rev().step_by(3 * step).for_each(read);
        let before = Held::now();
        (1..=500).rev().step_by(step).for_each(read);
        before.is_all_that_is_held_now();
    }
}

#[test]
fn b46_a_hundred_requests_half_of_them_cancelled_leave_nothing_behind() {
    let _turn = turn();
    for kernels in KERNELS {
        for variant in ["llama/q4g32", "gemma3_text/f32"] {
            let graph = load(variant, kernels);
            requests(graph.as_ref(), kernels, 20);
            let before = Held::now();
            requests(graph.as_ref(), kernels, 100);
            before.is_all_that_is_held_now();
        }
    }
}

/// Requests one after the other, each with a state of its own; every other one ends early in one of three ways.
fn requests(graph: &dyn Graph, kernels: KernelSet, count: usize) {
    for request in 0..count {
        let mut state = empty(graph, kernels);
        let prompt = prompt(1 + request % 17);
        let mut stream = TokenStream::start(graph, &mut state, &prompt, options(8, request as u64)).unwrap();
        match request % 6 {
            // Dropped before the first token was read, its computation queued.
            1 => drop(stream),
            3 => {
                let taken = stream.by_ref().take(3).count();
                assert_eq!(taken, 3);
                drop(stream);
            }
            // Dropped, whereupon the state goes on with another stream and is dropped with work queued.
            5 => {
                stream.next().unwrap().unwrap();
                drop(stream);
                drop(TokenStream::start(graph, &mut state, &[3], options(8, 1)).unwrap());
            }
            _ => assert_eq!(stream.count(), 8),
        }
    }
}

/// Freed buffers that MLX may keep in these tests.
const CACHE_LIMIT: usize = 1 << 20;

/// What the process holds, without the buffers that MLX keeps to use again.
struct Held {
    active: usize,
    threads: usize,
    resident_kib: usize,
}

impl Held {
    fn now() -> Self {
        // Work that was queued and dropped has ended when what is queued behind it has.
        strata_tensor::Stream::current().unwrap().synchronize().unwrap();
        let cached = memory::cache_memory().unwrap();
        assert!(cached <= CACHE_LIMIT, "{cached} bytes are kept");
        memory::clear_cache().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Self {
            active: memory::active_memory().unwrap(),
            threads: number("Threads:"),
            resident_kib: number("VmRSS:"),
        }
    }

    #[track_caller]
    fn is_all_that_is_held_now(&self) {
        let now = Self::now();
        assert_eq!(now.active, self.active, "bytes of live arrays");
        assert_eq!(now.threads, self.threads, "threads");
        let more = now.resident_kib.saturating_sub(self.resident_kib);
        // Threads that get their first large piece of work late still grow their scratch memory.
        assert!(more < 4 << 10, "{more} KiB more");
    }
}

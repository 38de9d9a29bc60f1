//! Many seeds on all cores, and what came of them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Plan, Plant, Run, run};

/// The sum of many runs.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Seeds that were run.
    pub seeds: u64,
    /// Polls of futures of processes.
    pub steps: u64,
    /// Virtual time.
    pub virtual_ms: u64,
    /// Tasks that were checked to their end.
    pub tasks: u64,
    /// How they ended.
    pub outcomes: BTreeMap<String, u64>,
    /// Faults that were injected.
    pub injected: BTreeMap<&'static str, u64>,
    /// How late a healthy server's task was polled by an undisturbed worker, at most, in virtual milliseconds.
    pub latest_ms: u64,
    /// Seeds that broke an invariant, and how.
    pub failures: BTreeMap<u64, String>,
}

impl Sweep {
    fn add(&mut self, seed: u64, run: Run) {
        self.seeds += 1;
        self.steps += run.steps;
        self.virtual_ms += run.virtual_ms;
        self.tasks += run.tasks;
        self.latest_ms = self.latest_ms.max(run.latest_ms);
        run.outcomes.into_iter().for_each(|(name, count)| *self.outcomes.entry(name).or_default() += count);
        run.injected.into_iter().for_each(|(name, count)| *self.injected.entry(name).or_default() += count);
        if let Some(violation) = run.violation {
            self.failures.insert(seed, violation.to_string());
        }
    }
}

/// Runs `count` seeds from `from` on, on all cores; stops early after `most_failures`. `progress` sees every seed that is
/// done.
pub fn sweep(
    from: u64,
    count: u64,
    plant: Option<Plant>,
    most_failures: usize,
    progress: impl Fn(u64) + Sync,
) -> Sweep {
    let (next, enough) = (AtomicU64::new(from), AtomicBool::new(false));
    let sum = Mutex::new(Sweep::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        break;
                    }
                    let run = run(&Plan::of(seed), plant, false);
                    let mut sum = sum.lock().expect("nothing panics while it holds this");
                    sum.add(seed, run);
                    enough.fetch_or(sum.failures.len() >= most_failures, Ordering::Relaxed);
                    drop(sum);
                    progress(seed);
                }
            });
        }
    });
    sum.into_inner().expect("nothing panics while it holds this")
}

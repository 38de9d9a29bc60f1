//! What is outside every process: virtual time, dice, the store's side, the history, and the oracle that watches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use mcp_taskd_core::clock::Clock;
use mcp_taskd_core::store::memory::MemoryStore;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::clock::Skewed;
use super::history::History;
use super::oracle::{Oracle, Violation};
use super::plan::{Fault, FaultKind, Plan, ServerFault, StoreFault};
use super::plants::Plant;

/// The world of one run.
pub(super) struct Universe {
    pub(super) plan: Plan,
    pub(super) plant: Option<Plant>,
    pub(super) started: Instant,
    pub(super) store_clock: Arc<Skewed>,
    pub(super) memory: MemoryStore,
    pub(super) oracle: Mutex<Oracle>,
    dice: Mutex<Rng>,
    ids: Mutex<Rng>,
    history: Mutex<History>,
    injected: Mutex<BTreeMap<&'static str, u64>>,
    violation: Mutex<Option<Violation>>,
    failed: Notify,
}

impl Universe {
    pub(super) fn new(plan: Plan, plant: Option<Plant>, keep_lines: bool) -> Arc<Self> {
        let started = Instant::now();
        let store_clock = Arc::new(Skewed::new(started, 0));
        Arc::new(Self {
            memory: MemoryStore::new(Arc::clone(&store_clock) as Arc<dyn Clock>),
            oracle: Mutex::new(Oracle::new(&plan)),
            dice: Mutex::new(Rng::with_seed(plan.seed ^ 0x5eed)),
            ids: Mutex::new(Rng::with_seed(plan.seed ^ 0x1d5)),
            history: Mutex::new(History::new(keep_lines)),
            injected: Mutex::default(),
            violation: Mutex::default(),
            failed: Notify::new(),
            plan,
            plant,
            started,
            store_clock,
        })
    }

    /// Virtual milliseconds since the start.
    pub(super) fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Sleeps until `at_ms` after the start.
    pub(super) async fn until(&self, at_ms: u64) {
        tokio::time::sleep_until(self.started + Duration::from_millis(at_ms)).await;
    }

    /// Sleeps for less than `ms`, as the dice say.
    pub(super) async fn some(&self, ms: u64) {
        let ms = self.below(ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    pub(super) fn below(&self, limit: u64) -> u64 {
        locked(&self.dice).u64(..limit.max(1))
    }

    fn rolls(&self, percent: u8) -> bool {
        percent >= 100 || locked(&self.dice).u8(..100) < percent
    }

    /// An id that nobody else has.
    pub(super) fn fresh(&self) -> u128 {
        locked(&self.ids).u128(..)
    }

    fn active(&self) -> impl Iterator<Item = &Fault> {
        let now = self.now();
        self.plan.faults.iter().filter(move |fault| fault.at_ms <= now && now < fault.at_ms + fault.lasts_ms)
    }

    /// What happens to a statement that `process` sends now.
    pub(super) fn store_fault(&self, process: usize) -> Option<StoreFault> {
        self.active().find_map(|active| match active.kind {
            FaultKind::Store { process: of, fault, percent } if of.is_none_or(|of| of == process) => {
                self.rolls(percent).then_some(fault)
            }
            _ => None,
        })
    }

    /// What happens to a call that a server gets now.
    pub(super) fn server_fault(&self, server: usize) -> Option<ServerFault> {
        self.active().find_map(|active| match active.kind {
            FaultKind::Server { server: of, fault, percent } if of == server => self.rolls(percent).then_some(fault),
            _ => None,
        })
    }

    /// Counts a fault that was really injected.
    pub(super) fn injected(&self, kind: &'static str) {
        *locked(&self.injected).entry(kind).or_default() += 1;
    }

    pub(super) fn take_injected(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut locked(&self.injected))
    }

    /// Adds a line to the history.
    pub(super) fn note(&self, line: std::fmt::Arguments<'_>) {
        locked(&self.history).add(self.now(), line);
    }

    /// The hash of the history, and its lines where they were kept.
    pub(super) fn take_history(&self) -> (u64, Vec<String>) {
        let mut history = locked(&self.history);
        (history.hash(), history.take_lines())
    }

    /// Lets the oracle judge; the first thing that it finds wrong ends the run.
    pub(super) fn judge<T>(&self, look: impl FnOnce(&mut Oracle) -> Result<T, Violation>) -> Option<T> {
        let judged = look(&mut locked(&self.oracle));
        judged.map_err(|violation| self.fail(violation)).ok()
    }

    /// Ends the run.
    pub(super) fn fail(&self, violation: Violation) {
        self.note(format_args!("VIOLATION {violation}"));
        locked(&self.violation).get_or_insert(violation);
        self.failed.notify_one();
    }

    /// Waits for something to be found wrong.
    pub(super) async fn failed(&self) {
        self.failed.notified().await;
    }

    pub(super) fn take_violation(&self) -> Option<Violation> {
        locked(&self.violation).take()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this")
}

//! A deterministic simulation of the fleet: the real worker, service, driver and contract, in virtual time, over a store
//! and servers that fail in every way there is. A seed decides everything; the same seed is the same history.
//!
//! [`Plan`] is what a seed decides beforehand; [`run`] lives through it, while the oracle judges every statement and every
//! call; [`shrink`] leaves out whatever a failure does not need.

mod callers;
pub mod clock;
mod fleet;
mod history;
mod life;
mod native;
mod oracle;
mod plan;
mod plants;
mod server;
pub mod shrink;
mod store;
pub mod sweep;
mod universe;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fleet::Fleet;
pub use oracle::Violation;
pub use plan::{CallPlan, Fault, FaultKind, Plan};
pub use plants::Plant;
use universe::Universe;

/// When a run that does not come to its end is given up, after the last fault.
const GIVE_UP_MS: u64 = 900_000;

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// The hash of the history: the same for the same plan.
    pub hash: u64,
    /// The first invariant that broke.
    pub violation: Option<Violation>,
    /// The history, where it was asked for.
    pub lines: Vec<String>,
    /// How long it took, in virtual milliseconds.
    pub virtual_ms: u64,
    /// How often a future of a process was polled.
    pub steps: u64,
    /// How many tasks were checked to their end.
    pub tasks: u64,
    /// How they ended.
    pub outcomes: BTreeMap<String, u64>,
    /// Faults that were really injected.
    pub injected: BTreeMap<&'static str, u64>,
    /// How late a healthy server's task was polled by an undisturbed worker, at most, in virtual milliseconds.
    pub latest_ms: u64,
}

/// Lives through `plan`, with a planted fault or without. Blocks; takes no time of its own.
pub fn run(plan: &Plan, plant: Option<Plant>, keep_lines: bool) -> Run {
    let folder = tempfile::tempdir().expect("a folder for lock files");
    // What the processes draw by lot comes from this generator of the thread's.
    fastrand::seed(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(async {
        let universe = Universe::new(plan.clone(), plant, keep_lines);
        let fleet = Fleet::new(&universe, folder);
        tokio::select! {
            biased;
            () = universe.failed() => {}
            () = live(&universe, &fleet) => {}
        }
        let (tasks, outcomes) = universe.outcomes();
        let (hash, lines) = universe.take_history();
        Run {
            violation: universe.take_violation(),
            hash,
            lines,
            virtual_ms: universe.now(),
            steps: fleet.polls(),
            tasks,
            outcomes,
            injected: universe.take_injected(),
            latest_ms: universe.latest_ms(),
        }
    })
}

async fn live(universe: &Arc<Universe>, fleet: &Arc<Fleet>) {
    fleet.begin();
    let mut callers = tokio::task::JoinSet::new();
    for call in universe.plan.calls.clone() {
        callers.spawn(callers::call(Arc::clone(universe), Arc::clone(fleet), call));
    }
    universe.until(universe.plan.busy_ms).await;
    universe.note(format_args!("faults are over"));
    let give_up = universe.now() + GIVE_UP_MS;
    let mut waiting = true;
    while waiting || !universe.is_over(&fleet.servers, fleet.workers().as_deref()) {
        if universe.now() > give_up {
            universe.fail(Violation::new("everything comes to an end", "tasks or callers still wait"));
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        while callers.try_join_next().is_some() {}
        waiting = !callers.is_empty();
    }
    universe.compare(&fleet.servers);
    fleet.stop_all().await;
    universe.all_retired();
    universe.note(format_args!("the end"));
}

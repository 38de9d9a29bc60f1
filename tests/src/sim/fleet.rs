//! The processes: started, frozen, crashed, stopped and started again.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mcp_taskd_core::config::{ServerConfig, Transport};
use mcp_taskd_core::runtime::{Process, Runtime, Surroundings};
use mcp_taskd_core::service::Service;
use mcp_taskd_core::store::{SharedStore, WorkerId};
use mcp_taskd_core::task::Toolset;
use mcp_taskd_core::upstream::SharedUpstream;
use mcp_taskd_core::world::{Ids, Spawn as _, Tasks, World};
use prometheus::Registry;
use tokio::sync::oneshot;

use super::clock::Skewed;
use super::life::{Life, Living};
use super::oracle::Violation;
use super::plan::{FaultKind, ProcessPlan, ServerPlan};
use super::server::{Server, Way};
use super::store::Port;
use super::universe::Universe;

/// How long a call of a tool may take.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(3);

/// All processes, and what they talk to.
pub(super) struct Fleet {
    universe: Arc<Universe>,
    pub(super) servers: Vec<Arc<Server>>,
    slots: Vec<Mutex<Slot>>,
    folder: tempfile::TempDir,
}

/// A place in the fleet, where one process follows another.
#[derive(Default)]
struct Slot {
    life: Option<Arc<Life>>,
    runtime: Option<Runtime>,
    /// Which state directory the next process has, where not the usual one.
    generation: usize,
    down: Down,
    polls: u64,
}

/// How long the place stays empty.
#[derive(Debug, Clone, Copy, Default)]
enum Down {
    /// A crash that nobody planned: a moment.
    #[default]
    Briefly,
    /// Until then.
    Until(u64),
    /// For good.
    Forever,
}

impl Fleet {
    pub(super) fn new(universe: &Arc<Universe>, folder: tempfile::TempDir) -> Arc<Self> {
        let servers = (0..universe.plan.servers.len()).map(|n| Arc::new(Server::new(Arc::clone(universe), n)));
        let slots = universe.plan.processes.iter().map(|_| Mutex::default());
        Arc::new(Self { servers: servers.collect(), slots: slots.collect(), universe: Arc::clone(universe), folder })
    }

    /// Starts every place, and whatever will go wrong.
    pub(super) fn begin(self: &Arc<Self>) {
        for n in 0..self.slots.len() {
            tokio::spawn(Arc::clone(self).keep(n));
        }
        for fault in self.universe.plan.faults.clone() {
            let fleet = Arc::clone(self);
            tokio::spawn(async move {
                fleet.universe.until(fault.at_ms).await;
                fleet.go_wrong(fault.kind, fault.at_ms + fault.lasts_ms).await;
            });
        }
    }

    fn slot(&self, n: usize) -> MutexGuard<'_, Slot> {
        self.slots[n].lock().expect("nothing panics while it holds this")
    }

    /// What a caller of process `n` talks to, and the life that its calls share.
    pub(super) fn service(&self, n: usize) -> Option<(Living, Service)> {
        let slot = self.slot(n);
        let life = slot.life.clone().filter(|life| !life.is_dead())?;
        Some((Living(life), slot.runtime.as_ref()?.service().clone()))
    }

    /// As whom the processes are registered; `None` while one is not.
    pub(super) fn workers(&self) -> Option<Vec<WorkerId>> {
        let living = (0..self.slots.len()).map(|n| self.slot(n)).filter(|slot| slot.life.is_some());
        let mut workers = living
            .map(|slot| slot.runtime.as_ref().and_then(|runtime| runtime.service().worker().id()))
            .collect::<Option<Vec<_>>>()?;
        workers.sort();
        Some(workers)
    }

    /// How often futures of processes were polled, in all.
    pub(super) fn polls(&self) -> u64 {
        (0..self.slots.len())
            .map(|n| {
                let slot = self.slot(n);
                slot.polls + slot.life.as_ref().map_or(0, |life| life.polls())
            })
            .sum()
    }

    /// Keeps a place filled: process after process.
    async fn keep(self: Arc<Self>, n: usize) {
        let plan = self.universe.plan.processes[n].clone();
        self.universe.until(plan.joins_ms).await;
        loop {
            let life = Arc::new(Life::default());
            let generation = {
                let mut slot = self.slot(n);
                slot.life = Some(Arc::clone(&life));
                slot.generation
            };
            self.universe.note(format_args!("p{n} starts"));
            Living(Arc::clone(&life)).spawn(Box::pin(Arc::clone(&self).boot(n, plan.clone(), generation)));
            life.died().await;
            self.universe.note(format_args!("p{n} has ended"));
            if let Some(text) = life.panicked() {
                self.universe.fail(Violation::new("no panic", format!("p{n}: {text}")));
            }
            let down = {
                let mut slot = self.slot(n);
                slot.runtime = None;
                slot.life = None;
                slot.polls += life.polls();
                std::mem::take(&mut slot.down)
            };
            match down {
                Down::Briefly => self.universe.some(500).await,
                Down::Until(at_ms) => self.universe.until(at_ms).await,
                Down::Forever => return,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A process from its start on; where the store does not let it start, it tries again, as its supervisor would.
    async fn boot(self: Arc<Self>, n: usize, plan: ProcessPlan, generation: usize) {
        let state_dir = self.folder.path().join(format!("{}-{generation}", plan.state_dir));
        loop {
            match self.start(n, &plan, state_dir.clone()).await {
                Ok(runtime) => {
                    self.universe.note(format_args!("p{n} runs"));
                    self.slot(n).runtime = Some(runtime);
                    return;
                }
                Err(error) => {
                    self.universe.note(format_args!("p{n} cannot start: {error}"));
                    self.universe.some(1_000).await;
                }
            }
        }
    }

    async fn start(
        &self,
        n: usize,
        plan: &ProcessPlan,
        state_dir: std::path::PathBuf,
    ) -> Result<Runtime, mcp_taskd_core::runtime::StartError> {
        let universe = &self.universe;
        let life = self.slot(n).life.clone().expect("it lives");
        let ids = Arc::clone(universe);
        let world = World {
            clock: Arc::new(Skewed::new(universe.started, plan.skew_ms)),
            tasks: Tasks::Through(Arc::new(Living(life))),
            ids: Ids::From(Arc::new(move || ids.fresh())),
            host: format!("p{n}"),
        };
        let store: SharedStore = Arc::new(Port { universe: Arc::clone(universe), process: n });
        let process = Process { role: "simulated".to_owned(), polls: plan.polls, state_dir };
        let servers = self.servers.iter().enumerate().map(|(index, server)| {
            let way = Way { server: Arc::clone(server), process: n };
            (config(index, &universe.plan.servers[index]), Arc::new(way) as SharedUpstream)
        });
        let around = Surroundings { world, ..Surroundings::default() };
        Runtime::start_in(around, &universe.plan.settings, process, store, servers, &Registry::new()).await
    }

    async fn go_wrong(&self, kind: FaultKind, until_ms: u64) {
        let universe = &self.universe;
        match kind {
            FaultKind::Store { .. } | FaultKind::Server { .. } => {}
            FaultKind::StoreClock(by_ms) => {
                universe.injected("store: clock jumps");
                universe.note(format_args!("the store's clock is off by {by_ms} ms"));
                universe.store_clock.set(by_ms);
                universe.until(until_ms).await;
                universe.note(format_args!("the store's clock is right"));
                universe.store_clock.set(0);
            }
            FaultKind::Crash { process, polls, same_state } => {
                let Some(life) = self.going_down(process, Down::Until(until_ms)) else { return };
                universe.injected("process: crashes");
                universe.note(format_args!("p{process} crashes after {polls} polls"));
                self.slot(process).generation += usize::from(!same_state);
                life.crash_after(polls);
                universe.until(until_ms).await;
                life.kill();
            }
            FaultKind::Freeze { process } => {
                let Some(life) = self.slot(process).life.clone() else { return };
                universe.injected("process: freezes");
                universe.note(format_args!("p{process} is frozen"));
                life.freeze();
                universe.until(until_ms).await;
                universe.note(format_args!("p{process} goes on"));
                life.thaw();
            }
            FaultKind::Restart { process, grace_ms } => {
                universe.injected("process: restarts");
                self.stop(process, Duration::from_millis(grace_ms), Down::Until(until_ms)).await;
            }
            FaultKind::Leave { process } => {
                universe.injected("process: leaves");
                self.stop(process, Duration::from_secs(5), Down::Forever).await;
            }
        }
    }

    /// Says what comes after the process that now ends; `None` where there is none, or it ends already.
    fn going_down(&self, n: usize, down: Down) -> Option<Arc<Life>> {
        let mut slot = self.slot(n);
        let life = slot.life.clone()?;
        // Who leaves for good does not come back for another fault's sake.
        if !matches!(slot.down, Down::Forever) {
            slot.down = down;
        }
        Some(life)
    }

    /// Drains a process and ends it.
    async fn stop(&self, n: usize, grace: Duration, down: Down) {
        let Some(life) = self.going_down(n, down) else { return };
        self.universe.note(format_args!("p{n} drains"));
        let runtime = self.slot(n).runtime.clone();
        if let Some(runtime) = runtime {
            let (reply, drained) = oneshot::channel();
            Living(Arc::clone(&life)).spawn(Box::pin(async move {
                runtime.shutdown(grace).await;
                // It may have died meanwhile.
                let _ = reply.send(());
            }));
            let _ = drained.await;
        }
        life.kill();
    }

    /// Stops every process in an orderly way, for good.
    pub(super) async fn stop_all(&self) {
        for n in 0..self.slots.len() {
            self.stop(n, Duration::from_secs(20), Down::Forever).await;
        }
    }
}

/// The configuration of server `index`.
fn config(index: usize, plan: &ServerPlan) -> ServerConfig {
    let transport = Transport::Http { url: "http://127.0.0.1:1/mcp".into(), headers: Vec::new() };
    let mut config = ServerConfig::new(&server_name(index), transport);
    config.tool_call_timeout = Some(CALL_DEADLINE);
    let tool = |name: &str| if plan.native { String::new() } else { name.to_owned() };
    config.toolsets = vec![Toolset {
        input_tool: Some(tool("input")).filter(|tool| !tool.is_empty()),
        idempotent_submit: plan.idempotent,
        ..Toolset::new("report", "submit", &tool("status"), &tool("cancel"))
    }];
    config
}

/// The name of server `index`.
pub(super) fn server_name(index: usize) -> String {
    format!("s{index}")
}

//! The oracle: what must hold, judged by what the servers really said, what the store really holds, and what callers were
//! told; never by what a process believes.

mod calls;
mod end;
mod rows;
mod said;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::service::{ServiceError, Submitted};
use mcp_taskd_core::store::memory::Tables;
use mcp_taskd_core::store::{Applied, ClaimOrder, NewHandle, TaskWrite, WorkerId};
use mcp_taskd_core::task::TaskRecord;

use super::plan::{Fault, FaultKind, Plan};
use super::universe::Universe;
use calls::Calls;
use said::Sayings;
pub(super) use said::{Saying, Tool};

/// Something that must never happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant of docs/ARCHITECTURE.md it breaks.
    pub invariant: String,
    /// What happened.
    pub text: String,
}

impl Violation {
    pub(super) fn new(invariant: &str, text: impl Into<String>) -> Self {
        Self { invariant: invariant.to_owned(), text: text.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.text)
    }
}

type Judgement = Result<(), Violation>;

/// The names of the invariants, as docs/ARCHITECTURE.md numbers them.
mod invariant {
    pub(super) const LOST: &str = "invariant 1 (no acknowledged task is lost)";
    pub(super) const ENDED: &str = "invariant 2 (one end, one event)";
    pub(super) const OWNER: &str = "invariant 3 (only the owner writes)";
    pub(super) const TRUTH: &str = "invariant 4 (what is stored is what the server said)";
    pub(super) const FAILURE: &str = "invariant 5 (a failed call ends no task)";
    pub(super) const CANCEL: &str = "invariant 6 (nothing earlier is applied after a cancel)";
    pub(super) const ISOLATION: &str = "invariant 7 (a server's trouble is its own)";
    pub(super) const RATE: &str = "invariant 8 (every retry is bounded)";
    pub(super) const ALIVE: &str = "nobody alive is found dead (a jumping clock kills nobody)";
    pub(super) const FENCE: &str = "self-fence (past its lease a worker starts no call)";
    pub(super) const ORPHAN: &str = "no orphans (every remote task is on record)";
}

/// A statement that a store has executed.
#[derive(Debug)]
pub(super) enum Statement {
    Read,
    Register(WorkerId),
    /// Of whom another said so.
    MarkDead(Option<WorkerId>),
    FreeDead,
    CorrectFar,
    DeleteDead,
    Prune,
    Claim(ClaimOrder),
    Apply {
        worker: WorkerId,
        writes: Vec<TaskWrite>,
        applied: Vec<Applied>,
    },
    Insert(Arc<str>),
    Record(NewHandle),
    Discard {
        worker: WorkerId,
        id: Arc<str>,
        epoch: i64,
    },
    CloseFreed(Box<TaskWrite>),
    RequestCancel(String),
    MakeDue(String),
}

/// What the oracle knows.
pub(super) struct Oracle {
    plan: Plan,
    /// The rows as the last statement left them.
    rows: BTreeMap<Arc<str>, TaskRecord>,
    events: usize,
    /// Which process a worker belongs to.
    workers: BTreeMap<WorkerId, usize>,
    /// The workers whose process has been told that they are registered.
    pub(super) known: BTreeSet<WorkerId>,
    /// When a process lost a row that it had owned.
    lost: BTreeMap<(Arc<str>, usize), u64>,
    /// When a cancel was recorded.
    cancels: BTreeMap<Arc<str>, u64>,
    /// The tasks that callers were told of, and by which submit.
    acknowledged: BTreeMap<Arc<str>, usize>,
    by_submit: BTreeMap<usize, Arc<str>>,
    sayings: Sayings,
    calls: Calls,
    /// When the last fault was over, once it is.
    healed: Option<u64>,
}

impl Oracle {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            rows: BTreeMap::new(),
            events: 0,
            workers: BTreeMap::new(),
            known: BTreeSet::new(),
            lost: BTreeMap::new(),
            cancels: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            by_submit: BTreeMap::new(),
            sayings: Sayings::default(),
            calls: Calls::default(),
            healed: None,
        }
    }

    fn lease_ms(&self) -> u64 {
        u64::from(self.plan.settings.lease_seconds) * 1_000
    }

    /// Whether anything but a server is wrong, or was shortly before, between `from` and `to`; for one process, or any.
    fn disturbed(&self, process: Option<usize>, from: u64, to: u64) -> bool {
        Self::any_disturbs(self.plan.faults.iter(), process, from, to)
    }

    fn any_disturbs<'a>(
        mut faults: impl Iterator<Item = &'a Fault>,
        process: Option<usize>,
        from: u64,
        to: u64,
    ) -> bool {
        /// How long it takes for the consequences of a fault to be over.
        const AFTER_MS: u64 = 12_000;
        faults.any(|fault| {
            let concerns = match &fault.kind {
                FaultKind::Store { process: of, .. } => of.is_none() || process.is_none() || *of == process,
                FaultKind::StoreClock(_) => true,
                FaultKind::Server { .. } => false,
                FaultKind::Crash { process: of, .. }
                | FaultKind::Freeze { process: of }
                | FaultKind::Restart { process: of, .. }
                | FaultKind::Leave { process: of } => process.is_none_or(|process| process == *of),
            };
            concerns && fault.at_ms <= to && from <= fault.at_ms + fault.lasts_ms + AFTER_MS
        })
    }

    /// Whoever is found dead has died, stood still, could not reach the store, or left.
    fn found_dead(&self, target: &WorkerId, now: u64) -> Judgement {
        let since = now.saturating_sub(2 * self.lease_ms());
        let process = self.workers.get(target).copied();
        let clock = |fault: &Fault| matches!(fault.kind, FaultKind::StoreClock(_));
        let faults = self.plan.faults.iter().filter(|fault| !clock(fault));
        if Self::any_disturbs(faults, process, since, now) {
            return Ok(());
        }
        Err(Violation::new(
            invariant::ALIVE,
            format!("{target} is marked dead at {now} ms, and nothing is wrong with it"),
        ))
    }

    /// What a caller was told of submit `submit`.
    fn told(
        &mut self,
        submit: usize,
        keyed: bool,
        told: &Result<Submitted, ServiceError>,
        tables: &Tables,
    ) -> Judgement {
        let lost = |text: String| Err(Violation::new(invariant::LOST, text));
        match told {
            Ok(submitted) => {
                let id = &submitted.task.id;
                if !tables.tasks.contains_key(id) {
                    return lost(format!("submit {submit} was acknowledged as {id}, which is not on record"));
                }
                if let Some(earlier) = self.by_submit.insert(submit, Arc::clone(id)).filter(|earlier| earlier != id) {
                    return lost(format!("one Idempotency-Key, two tasks: {earlier} and {id}"));
                }
                self.acknowledged.insert(Arc::clone(id), submit);
            }
            Err(ServiceError::OutcomeUnknown { task_id, .. }) if !keyed => {
                let id: Arc<str> = task_id.as_str().into();
                self.by_submit.entry(submit).or_insert(id);
            }
            Err(_) => {}
        }
        Ok(())
    }
}

impl Universe {
    /// A statement was executed: do all rows still have a history that may be?
    pub(super) fn executed(&self, process: usize, name: &'static str, statement: &Statement, done: bool) {
        if matches!(statement, Statement::Read) || self.memory.look(|tables| !self.changed(tables)) {
            if let Statement::Register(worker) = statement {
                self.note(format_args!("p{process} registers {worker}"));
                self.judge(|oracle| {
                    oracle.workers.insert(Arc::clone(worker), process);
                    Ok(())
                });
            }
            if let Statement::MarkDead(Some(target)) = statement {
                self.note(format_args!("p{process} finds {target} dead"));
                self.judge(|oracle| oracle.found_dead(target, self.now()));
            }
            return;
        }
        self.note(format_args!("p{process} {name} {}", if done { "done" } else { "refused" }));
        let now = self.now();
        let lines = self.memory.look(|tables| self.judge(|oracle| oracle.executed(statement, tables, now)));
        for line in lines.unwrap_or_default() {
            self.note(format_args!("    {line}"));
        }
    }

    fn changed(&self, tables: &Tables) -> bool {
        self.judge(|oracle| Ok(oracle.differs(tables))).unwrap_or(true)
    }

    /// A heartbeat or registration sent at `sent` was answered.
    pub(super) fn renewed(&self, process: usize, sent: u64) {
        self.judge(|oracle| {
            oracle.calls.renewed(process, sent);
            Ok(())
        });
    }

    /// A call to a server begins.
    pub(super) fn called(&self, process: usize, server: usize, tool: Tool, subject: &str) {
        let now = self.now();
        self.judge(|oracle| oracle.called(process, server, tool, subject, now));
    }

    /// A call to a server has ended, with this answer, or an error that may say when to come back.
    pub(super) fn answered(
        &self,
        process: usize,
        server: usize,
        tool: Tool,
        subject: &str,
        answer: Result<&str, Option<Duration>>,
    ) {
        let now = self.now();
        self.judge(|oracle| {
            oracle.answered(process, server, tool, subject, answer, now);
            Ok(())
        });
    }

    /// A call to a server does not run any more.
    pub(super) fn hung_up(&self, process: usize, server: usize, tool: Tool, subject: &str) {
        self.judge(|oracle| {
            oracle.hung_up(process, server, tool, subject);
            Ok(())
        });
    }

    /// What a caller was told of a submit.
    pub(super) fn told(&self, submit: usize, keyed: bool, told: &Result<Submitted, ServiceError>) {
        self.memory.look(|tables| self.judge(|oracle| oracle.told(submit, keyed, told, tables)));
    }

    /// A caller was told that a cancel is recorded. A task that is gone by now was refused by its server.
    pub(super) fn cancel_acknowledged(&self, id: &str) {
        self.judge(|oracle| {
            let on_record = |row: &TaskRecord| row.cancel_requested_at.is_some() || row.status.is_terminal();
            if oracle.rows.get(id).is_none_or(on_record) {
                return Ok(());
            }
            Err(Violation::new(invariant::LOST, format!("the cancel of {id} is not on record")))
        });
    }

    /// The task of a submit, as far as anybody can know it.
    pub(super) fn task_of(&self, submit: usize) -> Option<String> {
        let run = format!("run-{submit}");
        self.memory.look(|tables| {
            let row = tables.tasks.values().find(|row| row.run_id.as_deref() == Some(&run));
            row.map(|row| row.id.to_string())
        })
    }
}

//! The end of a run: faults are over, and everything must come right.

use std::sync::Arc;

use mcp_taskd_core::store::WorkerId;
use mcp_taskd_core::store::memory::Tables;
use mcp_taskd_core::task::Status;

use super::super::plan::{CallKind, ServerFault, StoreFault};
use super::super::server::Server;
use super::super::universe::Universe;
use super::said::{Saying, server_index};
use super::{FaultKind, Judgement, Oracle, Violation, invariant};

/// What a task takes beyond waiting: calls, statements, ticks.
const SLACK_MS: u64 = 6_000;

impl Oracle {
    /// Within how long after the last fault every task must have been asked about again.
    fn patience_ms(&self) -> u64 {
        let policy = self.plan.settings.policy();
        let hints = self.plan.calls.iter().filter_map(|call| match &call.kind {
            CallKind::Submit { work, .. } => work.hint_ms,
            _ => None,
        });
        let waits = [policy.max_backoff_ms * 5 / 4, policy.input_required_interval_ms * 11 / 10];
        let longest_wait = waits.into_iter().chain(hints.map(|hint| hint as i64 * 11 / 10)).max().unwrap_or_default();
        let extra = self.plan.faults.iter().map(|fault| match fault.kind {
            // A lost question to the store counts as lost only after half a minute.
            FaultKind::Store { fault: StoreFault::Hangs(ms), .. } => ms + 30_000,
            FaultKind::Store { fault: StoreFault::Late(ms) | StoreFault::Slow(ms), .. }
            | FaultKind::Server { fault: ServerFault::Busy(Some(ms)), .. } => ms,
            FaultKind::StoreClock(by) => by.unsigned_abs(),
            _ => 0,
        });
        // Found dead, freed within an interval, and waiting its longest.
        self.lease_ms() * 2
            + policy.poll_interval_ms as u64
            + longest_wait as u64
            + extra.max().unwrap_or_default()
            + SLACK_MS
    }

    /// Every acknowledged task is asked about again soon after the last fault (invariant 1).
    fn all_alive(&mut self, now: u64) -> Judgement {
        let healed = *self.healed.get_or_insert(now);
        if now <= healed + self.patience_ms() {
            return Ok(());
        }
        let forgotten = self
            .rows
            .values()
            .find(|row| !row.status.is_terminal() && self.last_call(row).is_none_or(|at| at < healed));
        forgotten.map_or(Ok(()), |row| {
            let last = self.last_call(row);
            let text = format!(
                "{} ({}, owned by {:?}, due {} ms after the epoch) was asked about at {last:?} ms last; faults ended at \
                 {healed} ms, it is {now} ms",
                row.id, row.status, row.lease_owner, row.next_due_at - super::super::clock::EPOCH_MS
            );
            Err(Violation::new(invariant::LOST, text))
        })
    }

    /// Whether nothing is left to wait for: every task has ended, and who has died is out of the register.
    fn is_over(&self, servers: &[Arc<Server>], retired: bool) -> bool {
        let mut running = false;
        for server in servers {
            server.each(|_, _, truth| running |= matches!(truth, Saying::Running(_) | Saying::AsksInput));
        }
        retired && !running && self.rows.values().all(|row| row.status.is_terminal())
    }

    /// Every row shows how its remote task really ended, and every remote task is on record.
    fn all_true(&self, server: usize, id: &str, key: &str, on_record: bool, truth: Saying) -> Judgement {
        let rows = || self.rows.values().filter(|row| server_index(row) == server);
        let Some(row) = rows().find(|row| row.remote_task_id.as_deref() == Some(id)) else {
            let intent = rows().any(|row| *row.id == *key);
            if on_record || intent {
                return Ok(());
            }
            let text = format!("{id} runs on s{server} for {key}, and no row tells of it");
            return Err(Violation::new(invariant::ORPHAN, text));
        };
        let own = row.outcome.error_code.as_deref();
        let agrees = match truth {
            Saying::Ended(status) => row.status == status,
            Saying::NotFound => true,
            _ => false,
        };
        if agrees || matches!(own, Some("contract_violation" | "task_expired")) {
            return Ok(());
        }
        let text = format!("{} is {} ({own:?}), and {id} is {truth:?} on its server", row.id, row.status);
        Err(Violation::new(invariant::TRUTH, text))
    }
}

impl Universe {
    /// The last fault is over, or was a while ago: whether everything has come right by now.
    pub(in crate::sim) fn is_over(&self, servers: &[Arc<Server>], workers: Option<&[WorkerId]>) -> bool {
        let now = self.now();
        let retired = workers.is_some_and(|workers| self.memory.look(|tables| tables.workers.keys().eq(workers)));
        self.judge(|oracle| oracle.all_alive(now).map(|()| oracle.is_over(servers, retired))).unwrap_or(true)
    }

    /// Compares every row with what its server holds, both ways.
    pub(in crate::sim) fn compare(&self, servers: &[Arc<Server>]) {
        for (index, server) in servers.iter().enumerate() {
            server.each(|id, remote, truth| {
                let on_record = remote.was_cancelled() || !remote.handed_over;
                self.judge(|oracle| oracle.all_true(index, id, &remote.key, on_record, truth));
            });
        }
    }

    /// After an orderly stop of all, nobody is left in the register, and nothing is owned. A registration whose process was
    /// never told of it, since it died or nobody knew the outcome, is beyond its reach: its lease ends it.
    pub(in crate::sim) fn all_retired(&self) {
        let known = self.judge(|oracle| Ok(oracle.known.clone())).unwrap_or_default();
        let left = self.memory.look(|tables: &Tables| {
            let owned = tables.tasks.values().find(|row| row.lease_owner.is_some()).map(|row| row.id.to_string());
            let mut live = tables.workers.values().filter(|worker| worker.live).map(|worker| &worker.info.id);
            owned.or(live.find(|id| known.contains(*id)).map(ToString::to_string))
        });
        if let Some(left) = left {
            self.fail(Violation::new("an orderly stop leaves nothing behind", left));
        }
    }

    /// Tasks that were acknowledged, and how tasks ended.
    pub(in crate::sim) fn outcomes(&self) -> (u64, std::collections::BTreeMap<String, u64>) {
        let mut outcomes = std::collections::BTreeMap::new();
        let rows = self.memory.look(|tables| {
            for row in tables.tasks.values() {
                let code = row.outcome.error_code.as_deref();
                let name = match row.status {
                    Status::Failed => code.unwrap_or("failed").to_owned(),
                    status => status.as_str().to_owned(),
                };
                *outcomes.entry(name).or_default() += 1;
            }
            tables.tasks.len() as u64
        });
        (rows, outcomes)
    }

    /// How late a healthy server's task was polled, at most.
    pub(in crate::sim) fn latest_ms(&self) -> u64 {
        self.judge(|oracle| Ok(oracle.calls.latest_ms)).unwrap_or_default()
    }
}

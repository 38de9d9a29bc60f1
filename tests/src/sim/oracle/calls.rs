//! Calls to servers and statements to the store: who may make them, when, and how many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::task::TaskRecord;

use super::super::plan::CallKind;
use super::said::{Tool, server_index};
use super::{FaultKind, Judgement, Oracle, Violation, invariant};

/// Statements that one process may send in one second.
const STATEMENTS: u32 = 60;
/// Polls and cancels that one process may send to a server in one second: some 30 tasks with hints of a tenth of a second, all of
/// them cancelled at once, come near it.
const CALLS: u32 = 60;
/// The same to a server that has not answered anything for a while: a few probes.
const PROBES: u32 = 6;
/// How long a server must have been out of order for that.
const SICK_FOR_MS: u64 = 6_000;
/// How far apart two readings of one clock may be, each corrected by the store's.
const READING_MS: u64 = 20;
/// How late a healthy server's task may be polled by a worker that nothing is wrong with.
const LATE_MS: u64 = 1_500;

/// What is known of calls.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// When a process's last successful heartbeat was sent.
    renewed: BTreeMap<usize, u64>,
    /// The last poll or cancel of a remote task.
    last: BTreeMap<(usize, String), u64>,
    /// When each remote task may and must be polled again.
    expected: BTreeMap<(usize, String), Expected>,
    /// Polls that run.
    running: BTreeSet<(usize, usize, String)>,
    statements: BTreeMap<usize, (u64, u32)>,
    polls: BTreeMap<(usize, usize), (u64, u32)>,
    /// How late polls were, at most.
    pub(super) latest_ms: u64,
}

/// What follows from a poll's answer for the next poll.
#[derive(Debug, Clone, Copy)]
struct Expected {
    process: usize,
    since: u64,
    not_before: u64,
    /// By when, where the answer told how the task stands.
    due: Option<u64>,
}

impl Calls {
    pub(super) fn renewed(&mut self, process: usize, sent: u64) {
        self.renewed.insert(process, sent);
    }

    /// When a remote task was last asked about.
    pub(super) fn last(&self, server: usize, remote: &str) -> Option<u64> {
        self.last.get(&(server, remote.to_owned())).copied()
    }
}

impl Oracle {
    /// A process sends a statement.
    pub(in crate::sim) fn sent(&mut self, process: usize, now: u64) -> Judgement {
        let count = count(self.calls.statements.entry(process).or_default(), now);
        let calls = self.plan.calls.iter().filter(|call| call.at_ms <= now && now < call.at_ms + 2_000).count() as u32;
        if count > STATEMENTS + 10 * calls {
            let text = format!("p{process} sends {count} statements within a second");
            return Err(Violation::new(invariant::RATE, text));
        }
        Ok(())
    }

    /// A process calls a tool.
    pub(in crate::sim) fn called(
        &mut self,
        process: usize,
        server: usize,
        tool: Tool,
        subject: &str,
        now: u64,
    ) -> Judgement {
        if matches!(tool, Tool::Submit | Tool::Input) {
            return Ok(());
        }
        let key = (server, subject.to_owned());
        self.calls.last.insert(key.clone(), now);
        let expected = self.calls.expected.remove(&key);
        let count = count(self.calls.polls.entry((process, server)).or_default(), now);
        let most = if self.sick(server, now.saturating_sub(SICK_FOR_MS), now) { PROBES } else { CALLS };
        if count > most {
            let text = format!("p{process} calls s{server} {count} times within a second, where {most} are allowed");
            return Err(Violation::new(invariant::RATE, text));
        }
        let row = self.rows.values().find(|row| row.remote_task_id.as_deref() == Some(subject));
        match (tool, row) {
            (Tool::Status, row) => {
                if !self.calls.running.insert((process, server, subject.to_owned())) {
                    let text = format!("p{process} polls {subject} while its last poll still runs");
                    return Err(Violation::new(invariant::RATE, text));
                }
                self.leased(process, now)?;
                self.owns(process, row, subject, now)?;
                expected.map_or(Ok(()), |expected| self.in_time(process, server, expected, subject, now))
            }
            (_, Some(row)) => self.may_cancel(process, row),
            _ => Ok(()),
        }
    }

    /// Past its lease a worker starts no call; what was about to happen when it was frozen happens all the same.
    fn leased(&self, process: usize, now: u64) -> Judgement {
        let renewed = self.calls.renewed.get(&process).copied().unwrap_or_default();
        let thawed = self.plan.faults.iter().any(|fault| {
            let end = fault.at_ms + fault.lasts_ms;
            matches!(fault.kind, FaultKind::Freeze { process: of } if of == process)
                && fault.at_ms <= now
                && now <= end + 5
        });
        if now > renewed + self.lease_ms() + 5 && !thawed {
            let text = format!("p{process} renewed its lease at {renewed} ms last, and polls at {now} ms");
            return Err(Violation::new(invariant::FENCE, text));
        }
        Ok(())
    }

    /// A worker may poll what it owns, and what it owned until it can have noticed that it does not.
    fn owns(&self, process: usize, row: Option<&TaskRecord>, subject: &str, now: u64) -> Judgement {
        let Some(row) = row else {
            return Err(Violation::new(invariant::OWNER, format!("p{process} polls {subject}, which nobody tracks")));
        };
        let owner = row.lease_owner.as_deref().and_then(|owner| self.workers.get(owner));
        let lost = self.lost.get(&(Arc::clone(&row.id), process)).copied().unwrap_or_default();
        let noticed = lost + self.lease_ms() + 1_000;
        if owner != Some(&process) && now > noticed && !self.disturbed(Some(process), lost, now) {
            let text = format!("p{process} polls {} at {now} ms, which it lost at {lost} ms", row.id);
            return Err(Violation::new(invariant::OWNER, text));
        }
        Ok(())
    }

    /// Nothing that is tracked is cancelled unless somebody asked for it, or it is too old.
    fn may_cancel(&self, process: usize, row: &TaskRecord) -> Judgement {
        let asked = row.cancel_requested_at.is_some() || self.plan.settings.max_task_age_seconds.is_some();
        if asked || row.status.is_terminal() {
            return Ok(());
        }
        let text = format!("p{process} cancels {}, which nobody asked for", row.id);
        Err(Violation::new(invariant::ORPHAN, text))
    }

    fn in_time(&mut self, process: usize, server: usize, expected: Expected, subject: &str, now: u64) -> Judgement {
        let Expected { process: by, since, not_before, due } = expected;
        if by != process || self.disturbed(None, since, now) {
            return Ok(());
        }
        let asked = self.plan.calls.iter().any(|call| {
            let at_once = matches!(call.kind, CallKind::PollNow(_) | CallKind::Input(_));
            at_once && call.at_ms <= now && since <= call.at_ms + 3_000
        });
        let expires = self.plan.settings.max_task_age_seconds.is_some();
        if now + READING_MS < not_before && !asked && !expires {
            let text = format!("p{process} polls {subject} at {now} ms, not to be polled before {not_before} ms");
            return Err(Violation::new(invariant::RATE, text));
        }
        let Some(late) = due.map(|due| now.saturating_sub(due)).filter(|_| !self.touched(server, since, now)) else {
            return Ok(());
        };
        self.calls.latest_ms = self.calls.latest_ms.max(late);
        if late > LATE_MS {
            let text = format!("p{process} polls {subject} of the healthy s{server} {late} ms too late");
            return Err(Violation::new(invariant::ISOLATION, text));
        }
        Ok(())
    }

    /// A call was answered, or failed.
    pub(in crate::sim) fn answered(
        &mut self,
        process: usize,
        server: usize,
        tool: Tool,
        subject: &str,
        answer: Result<&str, Option<Duration>>,
        now: u64,
    ) {
        if tool != Tool::Status {
            return;
        }
        let policy = self.plan.settings.policy();
        let interval = policy.poll_interval_ms as u64;
        let content = answer.map(|text| serde_json::from_str(text).unwrap_or_default());
        let content = content.map(|answer| contract(&answer));
        let hint = || {
            let seconds = content.as_ref().ok()?["poll_after_seconds"].as_f64().filter(|hint| *hint > 0.0)?;
            Some(((seconds * 1_000.0) as u64).max(100))
        };
        let (wait, told) = match content.as_ref().map(|content| content["status"].as_str()) {
            Ok(Some("running")) => (hint().unwrap_or(interval), true),
            Ok(Some("input_required")) => {
                (hint().unwrap_or(interval).max(policy.input_required_interval_ms as u64), true)
            }
            Ok(_) => (interval, false),
            Err(after) => (after.map_or(0, |after| after.as_millis() as u64).max(interval), false),
        };
        let due = told.then(|| now.saturating_add(wait.saturating_mul(11) / 10));
        let expected = Expected { process, since: now, not_before: now.saturating_add(wait), due };
        self.calls.expected.insert((server, subject.to_owned()), expected);
    }

    /// A call does not run any more, however it ended.
    pub(in crate::sim) fn hung_up(&mut self, process: usize, server: usize, tool: Tool, subject: &str) {
        if tool == Tool::Status {
            self.calls.running.remove(&(process, server, subject.to_owned()));
        }
    }

    /// Whether a server answered nothing at all between `from` and `to`.
    fn sick(&self, server: usize, from: u64, to: u64) -> bool {
        use super::super::plan::ServerFault as F;
        self.plan.faults.iter().any(|fault| {
            let dead = matches!(fault.kind, FaultKind::Server { server: of, percent: 100, fault }
                if of == server && matches!(fault, F::Refuses | F::BreaksBefore | F::BreaksAfter | F::BlackHole | F::BlackHoleAfter));
            dead && fault.at_ms <= from && to <= fault.at_ms + fault.lasts_ms
        })
    }

    /// Whether anything was wrong with a server between `from` and `to`.
    fn touched(&self, server: usize, from: u64, to: u64) -> bool {
        self.plan.faults.iter().any(|fault| {
            let concerns = matches!(fault.kind, FaultKind::Server { server: of, .. } if of == server);
            concerns && fault.at_ms <= to && from <= fault.at_ms + fault.lasts_ms
        })
    }

    /// When the row's remote task was last asked about.
    pub(super) fn last_call(&self, row: &TaskRecord) -> Option<u64> {
        self.calls.last(server_index(row), row.remote_task_id.as_deref()?)
    }
}

/// The members of an answer about a task, whichever way it says them.
fn contract(answer: &serde_json::Value) -> serde_json::Value {
    if answer.get("taskId").is_none() {
        return answer["structuredContent"].clone();
    }
    let status = answer["status"].as_str().map(|status| if status == "working" { "running" } else { status });
    let hint = answer["pollIntervalMs"].as_f64().map(|ms| ms / 1_000.0);
    serde_json::json!({"status": status, "poll_after_seconds": hint})
}

/// Counts one more within the second of `now`.
fn count(counter: &mut (u64, u32), now: u64) -> u32 {
    let second = now / 1_000;
    if counter.0 != second {
        *counter = (second, 0);
    }
    counter.1 += 1;
    counter.1
}

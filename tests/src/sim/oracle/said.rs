//! What servers said of their tasks, and whether a row is explained by it.

use std::collections::{BTreeMap, BTreeSet};

use mcp_taskd_core::task::{Status, TaskRecord, Toolset};

use super::super::plan::{FaultKind, StoreFault};
use super::{Judgement, Oracle, Violation, invariant};

/// A tool of a simulated server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sim) enum Tool {
    Submit,
    Status,
    Cancel,
    Input,
}

/// What a server says of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sim) enum Saying {
    /// It runs, and has come this far.
    Running(u64),
    /// It waits for input.
    AsksInput,
    /// It has ended.
    Ended(Status),
    /// It is not known.
    NotFound,
    /// Something that breaks the contract.
    Violation,
}

/// Everything that was said of one remote task.
#[derive(Debug, Default)]
struct Said {
    steps: BTreeSet<u64>,
    asked: bool,
    by_status: Vec<Saying>,
    /// Ends that a cancel brought, with the time at which that call began.
    by_cancel: Vec<(u64, Saying)>,
}

/// Everything that servers said.
#[derive(Debug, Default)]
pub(super) struct Sayings {
    of: BTreeMap<(usize, String), Said>,
    /// The handles that submits with a key were answered with.
    handles: BTreeSet<(usize, String, String)>,
}

impl Oracle {
    /// A server answered, or would have.
    pub(in crate::sim) fn said(
        &mut self,
        server: usize,
        id: &str,
        key: &str,
        tool: Tool,
        started_ms: u64,
        saying: Saying,
    ) {
        if tool == Tool::Submit {
            self.sayings.handles.insert((server, key.to_owned(), id.to_owned()));
            return;
        }
        let said = self.sayings.of.entry((server, id.to_owned())).or_default();
        match saying {
            Saying::Running(step) => {
                said.steps.insert(step);
            }
            Saying::AsksInput => said.asked = true,
            Saying::Ended(_) | Saying::NotFound | Saying::Violation if tool == Tool::Cancel => {
                said.by_cancel.push((started_ms, saying));
            }
            Saying::Ended(_) | Saying::NotFound | Saying::Violation => said.by_status.push(saying),
        }
    }

    /// A server was asked to start work under `key`, for a second time if `again`.
    pub(in crate::sim) fn submitted(key: &str, again: bool) -> Judgement {
        if again {
            let text = format!("the submit of {key} was repeated, though its server does not honour keys");
            return Err(Violation::new(invariant::ORPHAN, text));
        }
        Ok(())
    }

    /// Whether what `new` shows is something that its server said, or an error that says why not.
    pub(super) fn explained(&self, old: &TaskRecord, new: &TaskRecord, store_now: i64) -> Judgement {
        let server = server_index(new);
        let remote = new.remote_task_id.as_deref().unwrap_or_default();
        let unexplained = |why: &str| {
            let (status, outcome) = (new.status, &new.outcome);
            Err(Violation::new(invariant::TRUTH, format!("{} is {status} with {outcome:?}, but {why}", new.id)))
        };
        let said = self.sayings.of.get(&(server, remote.to_owned()));
        let none = Said::default();
        let said = said.unwrap_or(&none);
        match new.status {
            Status::Submitting => unexplained("nothing goes back to submitting"),
            Status::Submitted => {
                let key = (server, new.id.to_string(), remote.to_owned());
                let handed = self.sayings.handles.contains(&key);
                if handed { Ok(()) } else { unexplained("no submit of it was answered with that id") }
            }
            // A native task's progress is words, which are not kept.
            Status::Working if is_native(new) && !said.steps.is_empty() => Ok(()),
            Status::Working => match step(new) {
                Some(now) if said.steps.contains(&now) => {
                    if step(old).is_some_and(|before| before > now) {
                        return unexplained("it had come further already: an old answer was applied");
                    }
                    Ok(())
                }
                _ => unexplained("its server never said so"),
            },
            Status::InputRequired if said.asked => Ok(()),
            Status::InputRequired => unexplained("its server never asked"),
            Status::Completed | Status::Failed | Status::Cancelled => self.end_explained(old, new, said, store_now),
        }
    }

    fn end_explained(&self, old: &TaskRecord, new: &TaskRecord, said: &Said, store_now: i64) -> Judgement {
        let wrong = |invariant: &str, why: &str| {
            let (status, outcome) = (new.status, &new.outcome);
            Err(Violation::new(invariant, format!("{} ended as {status} with {outcome:?}, but {why}", new.id)))
        };
        let saying = match new.outcome.error_code.as_deref() {
            Some("submit_outcome_unknown") if old.status == Status::Submitting => return Ok(()),
            Some("submit_outcome_unknown") => return wrong(invariant::FAILURE, "its submit was recorded"),
            Some("task_expired") => {
                let age = self.plan.settings.max_task_age_seconds.map(|seconds| seconds as i64 * 1_000);
                let off = self.clock_reach_ms();
                let old_enough = age.is_some_and(|age| store_now - new.created_at + off >= age);
                let why = format!("it was not that old: created {} ms before", store_now - new.created_at);
                return if old_enough { Ok(()) } else { wrong(invariant::FAILURE, &why) };
            }
            Some("contract_violation") if old.cancel_requested_at.is_some() => {
                return wrong(invariant::CANCEL, "its cancel had been recorded");
            }
            Some("contract_violation") if said.by_status.contains(&Saying::Violation) => return Ok(()),
            Some("contract_violation") => return wrong(invariant::FAILURE, "its server broke no contract"),
            Some("task_not_found") => Saying::NotFound,
            _ => Saying::Ended(new.status),
        };
        let expires = self.plan.settings.max_task_age_seconds.is_some();
        let polled = said.by_status.contains(&saying);
        let cancelled = |since: u64| said.by_cancel.iter().any(|(started, told)| *started >= since && *told == saying);
        let explained = match self.cancels.get(&new.id) {
            Some(_) if old.status == Status::Submitting => false,
            Some(recorded) if polled && !cancelled(*recorded) => {
                return wrong(invariant::CANCEL, "only a poll from before its cancel was recorded said so");
            }
            Some(recorded) => cancelled(*recorded),
            None => polled || (expires && cancelled(0)),
        };
        if !explained {
            return wrong(invariant::FAILURE, "its server never said so");
        }
        let id = new.remote_task_id.as_deref().unwrap_or_default();
        if content_is_of(new, id) { Ok(()) } else { wrong(invariant::TRUTH, "those are not the server's words") }
    }

    /// By how much a worker may misjudge a task's age at most: the store's clock jumps, and where its answer is slow,
    /// nobody knows when it looked at it.
    fn clock_reach_ms(&self) -> i64 {
        let jumps = self.plan.faults.iter().filter_map(|fault| match fault.kind {
            FaultKind::StoreClock(by) => Some(by.abs()),
            FaultKind::Store { fault: StoreFault::Slow(ms), .. } => Some(ms as i64),
            _ => None,
        });
        // Two opposite jumps may follow each other.
        2 * jumps.max().unwrap_or_default() + 100
    }
}

/// The number of the server that a row names.
pub(super) fn server_index(row: &TaskRecord) -> usize {
    row.binding.server_name.trim_start_matches('s').parse().unwrap_or(usize::MAX)
}

fn is_native(row: &TaskRecord) -> bool {
    row.binding.driver == Toolset::NATIVE
}

/// How far a row says that its task has come.
fn step(row: &TaskRecord) -> Option<u64> {
    let result: serde_json::Value = serde_json::from_str(row.outcome.result.as_ref()?.as_str()).ok()?;
    result["step"].as_u64()
}

/// Whether an end's words are those that the server has for this task.
fn content_is_of(row: &TaskRecord, remote: &str) -> bool {
    let outcome = &row.outcome;
    match row.status {
        Status::Failed if outcome.error_code.as_deref() == Some("task_not_found") => {
            outcome.error == Some(format!("lost {remote}"))
        }
        Status::Failed => outcome.error == Some(format!("failed {remote}")),
        Status::Cancelled if is_native(row) => outcome.result.is_none(),
        _ if outcome.result_truncated => {
            let preview = outcome.result_preview.as_deref().unwrap_or_default();
            preview.starts_with(&format!("{{\"end\":\"{remote}\"")) && preview.chars().count() == 64
        }
        _ => {
            let result = outcome.result.as_ref().map(mcp_taskd_core::task::Json::as_str);
            result == Some(format!("{{\"end\":\"{remote}\"}}").as_str())
        }
    }
}

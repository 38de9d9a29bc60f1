//! Every change of a row: who made it, and whether it may be.

use std::sync::Arc;

use mcp_taskd_core::store::memory::Tables;
use mcp_taskd_core::store::{Applied, EventRecord};
use mcp_taskd_core::task::{ChangeKind, Status, TaskRecord};

use super::{Judgement, Oracle, Statement, Violation, invariant};

impl Oracle {
    /// Whether a statement has changed anything that is watched.
    pub(super) fn differs(&self, tables: &Tables) -> bool {
        self.events != tables.events.len()
            || self.rows.len() != tables.tasks.len()
            || self.rows.iter().zip(&tables.tasks).any(|((id, old), (other, new))| id != other || old != new)
    }

    /// Judges what `statement` did; returns a line for each row that it changed.
    pub(super) fn executed(
        &mut self,
        statement: &Statement,
        tables: &Tables,
        now: u64,
    ) -> Result<Vec<String>, Violation> {
        let events = &tables.events[self.events.min(tables.events.len())..];
        let mut lines = Vec::new();
        for new in tables.tasks.values() {
            let old = self.rows.get(&new.id);
            let told: Vec<_> = events.iter().filter(|event| *event.task_id == *new.id).collect();
            if old == Some(new) {
                if !told.is_empty() {
                    let text = format!("{} has events {told:?} without a change", new.id);
                    return Err(Violation::new(invariant::ENDED, text));
                }
                continue;
            }
            lines.push(line(old, new, &told));
            match old {
                None => inserted(new, statement, tables)?,
                Some(old) => {
                    guarded(old, new, statement, tables)?;
                    self.counted(old, new, statement)?;
                    announced(old, new, statement, &told, self.plan.settings.policy().degraded_after)?;
                    if old.status != new.status || old.outcome != new.outcome {
                        self.explained(old, new, super::super::clock::EPOCH_MS + now as i64)?;
                    }
                }
            }
        }
        for old in self.rows.values().filter(|old| !tables.tasks.contains_key(&old.id)) {
            lines.push(format!("{} is gone", old.id));
            self.discarded(old, statement)?;
        }
        self.remember(tables, now);
        Ok(lines)
    }

    fn discarded(&self, old: &TaskRecord, statement: &Statement) -> Judgement {
        if self.acknowledged.contains_key(&old.id) {
            return Err(Violation::new(invariant::LOST, format!("{} was acknowledged, and is deleted", old.id)));
        }
        let by_owner = matches!(statement, Statement::Discard { worker, id, epoch }
            if *id == old.id && old.lease_owner.as_deref() == Some(worker) && old.lease_epoch == *epoch);
        if by_owner && old.status == Status::Submitting && old.remote_task_id.is_none() {
            return Ok(());
        }
        Err(Violation::new(invariant::OWNER, format!("{} was deleted by {statement:?}", old.id)))
    }

    /// Whether errors are counted as they must be, so that backoff outlives a worker.
    fn counted(&self, old: &TaskRecord, new: &TaskRecord, statement: &Statement) -> Judgement {
        let wrong = |text: String| Err(Violation::new(invariant::RATE, format!("{}: {text}", new.id)));
        let counts = |row: &TaskRecord| (row.consecutive_poll_error_count, row.cancel_attempt_count);
        let (Statement::Apply { writes, .. }, false) = (statement, new.status.is_terminal()) else {
            if !new.status.is_terminal() && counts(old) != counts(new) {
                return wrong(format!("errors went from {:?} to {:?} without a call", counts(old), counts(new)));
            }
            return Ok(());
        };
        let Some(write) = writes.iter().find(|write| write.id == new.id) else { return Ok(()) };
        let expected = match (write.change.kind, &write.change.outcome) {
            (ChangeKind::Poll, None) => (counts(old).0 + 1, counts(old).1),
            (ChangeKind::Poll, Some(_)) => (0, counts(old).1),
            (ChangeKind::Cancel, None) => (counts(old).0, counts(old).1 + 1),
            _ => counts(old),
        };
        if counts(new) != expected {
            return wrong(format!("errors went from {:?} to {:?}, not to {expected:?}", counts(old), counts(new)));
        }
        let policy = self.plan.settings.policy();
        let failed = write.change.kind == ChangeKind::Poll && write.change.outcome.is_none();
        let backoff = (policy.poll_interval_ms << counts(old).0.min(16)).min(policy.max_backoff_ms);
        let expires = policy.expires_at(new.created_at).unwrap_or(i64::MAX);
        if failed && new.next_due_at - write.change.at < backoff && new.next_due_at < expires {
            return wrong(format!("error {} is followed by a poll within {backoff} ms", counts(new).0));
        }
        if new.poll_attempt_count < old.poll_attempt_count {
            return wrong("its polls are counted backwards".to_owned());
        }
        Ok(())
    }

    fn remember(&mut self, tables: &Tables, now: u64) {
        for new in tables.tasks.values() {
            let old = self.rows.get(&new.id);
            if old == Some(new) {
                continue;
            }
            let before = old.and_then(|old| old.lease_owner.as_deref()).and_then(|owner| self.workers.get(owner));
            let after = new.lease_owner.as_deref().and_then(|owner| self.workers.get(owner));
            if let Some(process) = before.filter(|before| Some(*before) != after) {
                self.lost.insert((Arc::clone(&new.id), *process), now);
            }
            if let Some(process) = after {
                self.lost.remove(&(Arc::clone(&new.id), *process));
            }
            if new.cancel_requested_at.is_some() && old.is_none_or(|old| old.cancel_requested_at.is_none()) {
                self.cancels.insert(Arc::clone(&new.id), now);
            }
            self.rows.insert(Arc::clone(&new.id), new.clone());
        }
        self.rows.retain(|id, _| tables.tasks.contains_key(id));
        self.events = tables.events.len();
    }
}

/// Whether a new row is an intent of somebody alive.
fn inserted(new: &TaskRecord, statement: &Statement, tables: &Tables) -> Judgement {
    let owner = new.lease_owner.as_deref().unwrap_or_default();
    let live = tables.workers.get(owner).is_some_and(|worker| worker.live);
    if matches!(statement, Statement::Insert(id) if *id == new.id) && live && new.status == Status::Submitting {
        return Ok(());
    }
    Err(Violation::new(invariant::OWNER, format!("{} was inserted by {statement:?} for {owner:?}", new.id)))
}

/// Whether the one who changed a row was allowed to.
fn guarded(old: &TaskRecord, new: &TaskRecord, statement: &Statement, tables: &Tables) -> Judgement {
    if old.status.is_terminal() {
        let text = format!("{} had ended as {}, and was changed by {statement:?}", old.id, old.status);
        return Err(Violation::new(invariant::ENDED, text));
    }
    let owner = old.lease_owner.as_deref();
    let live = |worker: &str| tables.workers.get(worker).is_some_and(|worker| worker.live);
    // What a claim, a takeover or a request may touch: everything else stays.
    let otherwise_same = |but: fn(&mut TaskRecord, &TaskRecord)| {
        let mut expected = old.clone();
        expected.lease_owner.clone_from(&new.lease_owner);
        expected.tracked.lease_epoch = new.lease_epoch;
        but(&mut expected, new);
        expected == *new
    };
    let allowed = match statement {
        Statement::Claim(order) => {
            owner.is_none()
                && new.lease_owner.as_deref() == Some(&*order.worker)
                && live(&order.worker)
                && otherwise_same(|_, _| {})
        }
        Statement::Apply { worker, writes, applied } => {
            let at = writes.iter().position(|write| write.id == old.id);
            let done = at.and_then(|at| applied.get(at)).is_some_and(|done| matches!(done, Applied::Done { .. }));
            if writes.iter().filter(|write| write.id == old.id).count() > 1 {
                let text = format!("{} is written more than once by one batch: {writes:?}", old.id);
                return Err(Violation::new(invariant::OWNER, text));
            }
            let late = |at: usize| writes[at].change.kind == ChangeKind::Poll && old.status != Status::Submitting;
            if old.cancel_requested_at.is_some() && at.is_some_and(late) {
                let text = format!("the cancel of {} was recorded, and a poll's answer is applied", old.id);
                return Err(Violation::new(invariant::CANCEL, text));
            }
            done && owner == Some(worker) && at.is_some_and(|at| writes[at].epoch == old.lease_epoch)
        }
        Statement::Record(handle) => {
            owner == Some(&*handle.worker) && old.lease_epoch == handle.epoch && old.status == Status::Submitting
        }
        Statement::FreeDead => {
            owner.is_some_and(|owner| !live(owner))
                && new.lease_owner.is_none()
                && otherwise_same(|expected, new| expected.tracked.next_due_at = new.next_due_at)
        }
        Statement::CorrectFar => {
            owner.is_none()
                && new.next_due_at < old.next_due_at
                && otherwise_same(|expected, new| expected.tracked.next_due_at = new.next_due_at)
        }
        Statement::RequestCancel(id) => {
            **id == *old.id
                && old.cancel_requested_at.is_none()
                && otherwise_same(|expected, new| {
                    expected.tracked.cancel_requested_at = new.cancel_requested_at;
                    expected.tracked.next_due_at = new.next_due_at;
                    expected.updated_at = new.updated_at;
                })
        }
        Statement::MakeDue(id) => {
            **id == *old.id
                && new.lease_owner.is_none()
                && otherwise_same(|expected, new| expected.tracked.next_due_at = new.next_due_at)
        }
        Statement::CloseFreed(write) => {
            owner.is_none()
                && write.epoch == old.lease_epoch
                && old.status == Status::Submitting
                && old.remote_task_id.is_none()
        }
        _ => false,
    };
    let requested = matches!(statement, Statement::RequestCancel(_));
    if !allowed || (new.lease_epoch != old.lease_epoch + 1 && !requested) {
        let text = format!(
            "{} owned by {owner:?} at epoch {} was changed by {statement:?} to epoch {} of {:?}",
            old.id, old.lease_epoch, new.lease_epoch, new.lease_owner
        );
        return Err(Violation::new(invariant::OWNER, text));
    }
    Ok(())
}

/// Whether the events of a change are those that belong to it.
fn announced(
    old: &TaskRecord,
    new: &TaskRecord,
    statement: &Statement,
    told: &[&EventRecord],
    degraded_after: i64,
) -> Judgement {
    let count = |kind: &str| told.iter().filter(|event| event.kind == kind).count();
    let statuses = told.iter().filter(|event| !event.kind.starts_with("tracking_")).count();
    let asks = new.status == Status::InputRequired;
    let as_it_must = if old.status == new.status {
        statuses == 0 || (asks && statuses == 1 && matches!(statement, Statement::Apply { .. }))
    } else {
        statuses == count(new.status.as_str()) && (statuses == 1 || asks && statuses == 0)
    };
    let degrades =
        old.consecutive_poll_error_count < degraded_after && new.consecutive_poll_error_count >= degraded_after;
    if as_it_must && count("tracking_degraded") == usize::from(degrades) {
        return Ok(());
    }
    let text = format!("{} went from {} to {} with {} events: {told:?}", old.id, old.status, new.status, told.len());
    Err(Violation::new(invariant::ENDED, text))
}

fn line(old: Option<&TaskRecord>, new: &TaskRecord, told: &[&EventRecord]) -> String {
    let state = |row: &TaskRecord| {
        let owner = row.lease_owner.as_deref().map_or("nobody", |owner| owner.split_at(owner.len().min(8)).0);
        let cancel = if row.cancel_requested_at.is_some() { " cancelling" } else { "" };
        let errors = row.consecutive_poll_error_count;
        format!("{}@{} of {owner}{cancel} errors {errors}", row.status, row.lease_epoch)
    };
    let events: Vec<_> = told.iter().map(|event| event.kind.as_str()).collect();
    let due = (new.next_due_at - super::super::clock::EPOCH_MS) as f64 / 1_000.0;
    let remote = new.remote_task_id.as_deref().unwrap_or("-");
    let from = old.map_or_else(|| "new".to_owned(), state);
    format!("{} {remote} {from} -> {} due {due:.3} {events:?}", new.id, state(new))
}

//! Claims and the writes of an owner.

use std::sync::Arc;

use async_trait::async_trait;

use super::{MemoryStore, Tables, is_open_intent};
use crate::store::{Applied, ClaimOrder, Leases, Owned, Result, RowState, TaskWrite, WorkerId, bounds};
use crate::task::{Change, TaskRecord, Tracked};

#[async_trait]
impl Leases for MemoryStore {
    async fn claim(&self, order: &ClaimOrder) -> Result<Vec<Tracked>> {
        let mut state = self.state();
        if !state.is_live(&order.worker) {
            return Ok(Vec::new());
        }
        let claimable = |task: &&mut TaskRecord| {
            task.lease_owner.is_none()
                && !task.status.is_terminal()
                && task.cancel_requested_at.is_some() == order.cancels
                && task.next_due_at <= order.due_before
                && ((order.servers.contains(&task.binding.server_name) && order.drivers.contains(&task.binding.driver))
                    || (order.any_server_due_before.is_some_and(|before| task.next_due_at < before)
                        && !(order.known.contains(&task.binding.server_name)
                            && order.drivers.contains(&task.binding.driver))))
        };
        let mut due: Vec<_> = state.tasks.values_mut().filter(claimable).collect();
        due.sort_by(|a, b| (a.next_due_at, &a.id).cmp(&(b.next_due_at, &b.id)));
        due.truncate(order.limit as usize);
        let take = |task: &mut TaskRecord| {
            task.lease_owner = Some(order.worker.to_string());
            task.tracked.lease_epoch += 1;
            task.tracked.clone()
        };
        Ok(due.into_iter().map(take).collect())
    }

    async fn owned(&self, worker: &WorkerId) -> Result<Vec<Owned>> {
        let state = self.state();
        let owned = state.tasks.values().filter(|task| task.lease_owner.as_deref() == Some(&**worker));
        Ok(owned
            .map(|task| Owned { id: task.id.clone(), epoch: task.lease_epoch, status: Some(task.status) })
            .collect())
    }

    async fn load_owned(&self, worker: &WorkerId, ids: &[Arc<str>]) -> Result<Vec<Tracked>> {
        let state = self.state();
        let owned = |task: &&TaskRecord| task.lease_owner.as_deref() == Some(&**worker) && ids.contains(&task.id);
        Ok(state.tasks.values().filter(owned).map(|task| task.tracked.clone()).collect())
    }

    async fn apply(&self, worker: &WorkerId, writes: &[TaskWrite]) -> Result<Vec<Applied>> {
        writes.iter().try_for_each(|write| bounds::check_write("apply", write))?;
        let mut state = self.state();
        let mut order: Vec<usize> = (0..writes.len()).collect();
        order.sort_by_key(|&index| &writes[index].id);
        let mut answers = vec![Applied::Stale; writes.len()];
        for index in order {
            answers[index] = state.write(&writes[index], Some(worker), |_| true);
        }
        Ok(answers)
    }

    async fn inspect(&self, ids: &[Arc<str>]) -> Result<Vec<RowState>> {
        let state = self.state();
        let row = |task: &TaskRecord| RowState {
            id: task.id.clone(),
            owner: task.lease_owner.as_deref().map(Into::into),
            epoch: task.lease_epoch,
            status: Some(task.status),
            remote_task_id: task.remote_task_id.as_deref().map(str::to_owned),
        };
        Ok(state.tasks.values().filter(|task| ids.contains(&task.id)).map(row).collect())
    }
}

impl Tables {
    /// Writes a change where the guards let it through.
    pub(super) fn write(
        &mut self,
        write: &TaskWrite,
        owner: Option<&str>,
        guard: impl Fn(&TaskRecord) -> bool,
    ) -> Applied {
        let Some(task) = self.tasks.get_mut(&write.id) else { return Applied::Stale };
        let matches = task.lease_owner.as_deref() == owner && task.lease_epoch == write.epoch;
        if !matches || task.status.is_terminal() || !guard(task) {
            return Applied::Stale;
        }
        take(task, &write.change);
        let epoch = task.lease_epoch;
        for &event in &write.change.events {
            self.emit(&write.id, event, write.change.at);
        }
        Applied::Done { epoch }
    }

    /// Ends an intent that nobody owns.
    pub(super) fn close_freed(&mut self, write: &TaskWrite) -> Applied {
        self.write(write, None, is_open_intent)
    }
}

/// Puts a change's values into the row.
fn take(task: &mut TaskRecord, change: &Change) {
    let seen = change.outcome.is_some()
        || change.last_poll_error.is_some()
        || change.last_cancel_error.is_some()
        || change.status != task.status;
    let terminal = change.status.is_terminal();
    let tracked = &mut task.tracked;
    if let Some((outcome, digest)) = &change.outcome {
        task.outcome = outcome.clone();
        tracked.digest = Some(digest.as_str().into());
    }
    tracked.status = change.status;
    tracked.event_fingerprint = change.event_fingerprint.as_deref().map(Into::into);
    tracked.next_due_at = change.next_due_at;
    tracked.poll_attempt_count = change.poll_attempt_count;
    tracked.consecutive_poll_error_count = change.consecutive_poll_error_count;
    tracked.last_polled_at = change.last_polled_at;
    tracked.cancel_attempt_count = change.cancel_attempt_count;
    tracked.lease_epoch += 1;
    if let Some(error) = &change.last_poll_error {
        task.last_poll_error.clone_from(error);
    }
    if let Some(error) = &change.last_cancel_error {
        task.last_cancel_error.clone_from(error);
    }
    task.completed_at = terminal.then(|| change.completed_at.unwrap_or(change.at));
    if terminal {
        task.arguments = None;
    }
    if terminal || change.release {
        task.lease_owner = None;
    }
    if seen {
        task.updated_at = change.at;
    }
}

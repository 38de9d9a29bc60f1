//! Reads, and waiting for a change.

use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::{Access, Service, ServiceError, not_found, unavailable};
use crate::store::{Page, TaskFilter};
use crate::task::{Status, TaskRecord};

/// How often a waiting call looks at the row by itself: changes by other processes may not be announced here.
const LOOK: Duration = Duration::from_secs(1);

impl Service {
    pub(super) async fn find(&self, access: &Access, id: &str) -> Result<TaskRecord, ServiceError> {
        let (user, thread) = (access.user_id.as_deref(), access.thread_id.as_deref());
        let task = self.store.find_task(id, user, thread).await.map_err(|error| unavailable(&error))?;
        task.ok_or_else(|| not_found(id))
    }

    /// One task. With `wait`, answers at the next change of status, input, result or degradation, or after `wait`;
    /// a terminal task answers at once. Cancel-safe.
    pub async fn get(&self, access: &Access, id: &str, wait: Duration) -> Result<TaskRecord, ServiceError> {
        // Listen before looking, so that no change falls between.
        let mut changes = self.worker.changes();
        let first = self.find(access, id).await?;
        let before = self.visible(&first);
        let deadline = Instant::now() + wait;
        let mut task = first;
        while !task.status.is_terminal() && self.visible(&task) == before && Instant::now() < deadline {
            let look = deadline.min(Instant::now() + LOOK.mul_f64(0.8 + fastrand::f64() / 5.0));
            loop {
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(look) => break,
                    change = changes.recv() => match change {
                        Ok(changed) if *changed == *id => break,
                        Err(RecvError::Lagged(_)) => break,
                        Ok(_) => {}
                        Err(RecvError::Closed) => tokio::time::sleep_until(look).await,
                    },
                }
            }
            task = self.find(access, id).await?;
        }
        self.overlay(&mut task).await;
        Ok(task)
    }

    /// Tasks, newest first.
    pub async fn list(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskRecord>, ServiceError> {
        self.store.list_tasks(filter, page).await.map_err(|error| unavailable(&error))
    }

    /// What a waiting caller waits to see change.
    fn visible(&self, task: &TaskRecord) -> (Status, Option<Box<str>>, bool) {
        (task.status, task.digest.clone(), task.degraded(&self.worker.context().policy))
    }

    /// Unchanged polls write nothing; where this process holds the task, it knows better than the row.
    async fn overlay(&self, task: &mut TaskRecord) {
        if task.status.is_terminal() {
            return;
        }
        if let Some(live) = self.worker.peek(&task.id).await {
            task.tracked.last_polled_at = live.last_polled_at;
            task.tracked.next_due_at = live.next_due_at;
            task.tracked.poll_attempt_count = live.poll_attempt_count;
        }
    }
}

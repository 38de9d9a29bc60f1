//! Reads, bounded.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::{MemoryStore, belongs_to};
use crate::clock::Millis;
use crate::store::{EventRecord, Page, Queries, Result, StoreStats, TaskFilter};
use crate::task::{Status, TaskRecord};

#[async_trait]
impl Queries for MemoryStore {
    async fn find_task(&self, id: &str, user_id: Option<&str>, thread_id: Option<&str>) -> Result<Option<TaskRecord>> {
        Ok(self.state().tasks.get(id).filter(|task| belongs_to(task, user_id, thread_id)).cloned())
    }

    async fn list_tasks(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskRecord>> {
        let state = self.state();
        let folded = filter.named.as_deref().map(str::to_lowercase);
        let wanted = |task: &&TaskRecord| {
            let name = &task.binding.toolset.name;
            belongs_to(task, filter.user_id.as_deref(), filter.thread_id.as_deref())
                && filter.status.is_none_or(|status| status == task.status)
                && !(filter.active_only && task.status.is_terminal())
                && filter
                    .named
                    .as_deref()
                    .is_none_or(|named| *task.id == *named || name == named || Some(name.to_lowercase()) == folded)
                && page.after.as_ref().is_none_or(|(at, id)| (task.created_at, &*task.id) < (*at, id.as_str()))
        };
        let mut tasks: Vec<TaskRecord> = state.tasks.values().filter(wanted).cloned().collect();
        tasks.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        tasks.truncate(page.limit as usize);
        Ok(tasks)
    }

    async fn list_events(&self, after: i64, filter: &TaskFilter, limit: u32) -> Result<Vec<EventRecord>> {
        let state = self.state();
        let wanted = |event: &&EventRecord| {
            let status = event.status.parse::<Status>().ok();
            event.sequence > after
                && filter.user_id.as_ref().is_none_or(|user| *user == event.user_id)
                && filter.thread_id.as_ref().is_none_or(|thread| *thread == event.thread_id)
                && filter.status.is_none_or(|wanted| status == Some(wanted))
                && !(filter.active_only && status.is_none_or(Status::is_terminal))
                && filter.named.as_ref().is_none_or(|task| *task == event.task_id)
        };
        Ok(state.events.iter().filter(wanted).take(limit as usize).cloned().collect())
    }

    async fn stats(&self, now: Millis, degraded_after: i64, cap: i64) -> Result<StoreStats> {
        let now_ms = self.now_ms();
        let state = self.state();
        let count =
            |status: Status| (state.tasks.values().filter(|task| task.status == status).count() as i64).min(cap);
        let active = || state.tasks.values().filter(|task| !task.status.is_terminal());
        let mut degraded = BTreeMap::<&str, i64>::new();
        let failing = active().filter(|task| task.consecutive_poll_error_count >= degraded_after.max(1));
        for task in failing.take(cap as usize) {
            *degraded.entry(&task.binding.server_name).or_default() += 1;
        }
        let due = |cancels: bool| {
            let due = active().filter(move |task| {
                task.lease_owner.is_none() && task.cancel_requested_at.is_some() == cancels && task.next_due_at <= now
            });
            (due.count() as i64).min(cap)
        };
        let oldest_due_at = active()
            .filter(|task| task.lease_owner.is_none())
            .map(|task| task.next_due_at)
            .min()
            .filter(|at| *at <= now);
        let live = || state.workers.values().filter(|worker| worker.live && worker.lease_expires_at > now_ms);
        Ok(StoreStats {
            tasks: Status::ALL.into_iter().map(|status| (status.as_str().to_owned(), count(status))).collect(),
            degraded: degraded.into_iter().map(|(server, count)| (server.to_owned(), count)).collect(),
            due: due(false) + due(true),
            oldest_due_at,
            workers_live: live().count() as i64,
            workers_polling: live().filter(|worker| worker.info.polls).count() as i64,
            active: Status::ALL.into_iter().filter(|status| !status.is_terminal()).map(count).sum(),
            // Nothing is decoded here, so nothing can be wrong with it.
            quarantined: Vec::new(),
            size_bytes: 0,
            free_bytes: 0,
            log_bytes: 0,
        })
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    fn backend(&self) -> &'static str {
        "memory"
    }

    async fn schema_version(&self) -> Result<(i64, Option<i64>)> {
        Ok((0, Some(0)))
    }
}

//! The register of workers, and takeover: mark dead, free, delete.

use async_trait::async_trait;

use super::{MemoryStore, Tables, free};
use crate::clock::Millis;
use crate::store::{
    Corrected, FAR_AHEAD_MS, Heartbeat, Registry, Result, StoreError, StoreErrorKind, WorkerId, WorkerInfo,
    WorkerRecord, Workers,
};
use crate::task::TaskRecord;

#[async_trait]
impl Registry for MemoryStore {
    async fn register(&self, worker: &WorkerInfo) -> Result<Millis> {
        let now_ms = self.now_ms();
        let mut state = self.state();
        if state.workers.contains_key(&worker.id) {
            return Err(StoreError::new(StoreErrorKind::Data, "register", "the id is taken"));
        }
        let record = WorkerRecord {
            info: worker.clone(),
            live: true,
            heartbeat_count: 0,
            lease_expires_at: now_ms + worker.lease_ms,
            started_at: now_ms,
            held: 0,
        };
        state.workers.insert(worker.id.clone(), record);
        Ok(now_ms)
    }

    async fn heartbeat(&self, worker: &WorkerId, held: i64) -> Result<Heartbeat> {
        let now_ms = self.now_ms();
        match self.state().workers.get_mut(worker) {
            Some(worker) if worker.live => {
                worker.lease_expires_at = now_ms + worker.info.lease_ms;
                worker.heartbeat_count += 1;
                worker.held = held;
                Ok(Heartbeat::Renewed { now_ms })
            }
            _ => Ok(Heartbeat::Refused),
        }
    }

    async fn workers(&self) -> Result<Workers> {
        let mut rows: Vec<_> = self.state().workers.values().cloned().collect();
        rows.sort_by(|a, b| (a.started_at, &a.info.id).cmp(&(b.started_at, &b.info.id)));
        Ok(Workers { now_ms: self.now_ms(), rows })
    }

    async fn mark_dead(&self, marker: &WorkerId, target: &WorkerId, heartbeat_count: Option<i64>) -> Result<bool> {
        let mut state = self.state();
        if !state.is_live(marker) {
            return Ok(false);
        }
        let Some(target) = state.workers.get_mut(target) else { return Ok(false) };
        let marks = target.live && heartbeat_count.is_none_or(|count| count == target.heartbeat_count);
        target.live &= !marks;
        Ok(marks)
    }

    async fn free_dead(&self, now: Millis, limit: u32, spread_ms: i64) -> Result<u64> {
        let mut state = self.state();
        let Tables { tasks, workers, lots, .. } = &mut *state;
        let mut freed = 0;
        let dead = |owner: &str| workers.get(owner).is_some_and(|worker| !worker.live);
        for task in tasks.values_mut() {
            if freed < u64::from(limit) && task.lease_owner.as_deref().is_some_and(dead) {
                free(task);
                task.tracked.next_due_at = task.next_due_at.max(now + lots.i64(0..spread_ms.max(1)));
                freed += 1;
            }
        }
        Ok(freed)
    }

    async fn correct_far(&self, limit: u32, spread_ms: i64) -> Result<Corrected> {
        let now_ms = self.now_ms();
        let mut state = self.state();
        let Tables { tasks, workers, lots, .. } = &mut *state;
        let mut corrected = Corrected::default();
        let far = |task: &&mut TaskRecord| {
            task.lease_owner.is_none() && !task.status.is_terminal() && task.next_due_at > now_ms + FAR_AHEAD_MS
        };
        for task in tasks.values_mut().filter(far).take(limit as usize) {
            task.tracked.next_due_at = now_ms + lots.i64(0..spread_ms.max(1));
            task.tracked.lease_epoch += 1;
            corrected.tasks.push(task.id.to_string());
        }
        for worker in
            workers.values_mut().filter(|worker| worker.live && worker.lease_expires_at > now_ms + FAR_AHEAD_MS)
        {
            worker.lease_expires_at = now_ms + worker.info.lease_ms.min(FAR_AHEAD_MS);
            corrected.workers.push(worker.info.id.to_string());
        }
        Ok(corrected)
    }

    async fn delete_dead(&self) -> Result<u64> {
        let mut state = self.state();
        let Tables { tasks, workers, deliveries, .. } = &mut *state;
        let before = workers.len();
        workers
            .retain(|id, worker| worker.live || tasks.values().any(|task| task.lease_owner.as_deref() == Some(&**id)));
        for delivery in deliveries.values_mut() {
            delivery.lease_owner.take_if(|owner| !workers.contains_key(owner));
        }
        Ok((before - workers.len()) as u64)
    }

    async fn prune(&self, ended_before: Millis, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let Tables { tasks, events, deliveries, .. } = &mut *state;
        let mut ended: Vec<_> = tasks
            .values()
            .filter_map(|task| Some((task.completed_at.filter(|at| *at < ended_before)?, task.id.clone())))
            .collect();
        ended.sort();
        ended.truncate(limit as usize);
        for (_, id) in &ended {
            tasks.remove(id);
            events.retain(|event| event.task_id != **id);
            deliveries.retain(|(task, _), _| task != id);
        }
        Ok(ended.len() as u64)
    }
}

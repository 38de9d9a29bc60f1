//! The register of workers, and takeover: mark dead, free, delete.

use async_trait::async_trait;

use super::engine::{Lane, SqlRow};
use super::statements::Sql;
use super::{SqlStore, input, rows};
use crate::clock::Millis;
use crate::store::{
    Corrected, FAR_AHEAD_MS, Heartbeat, Registry, Result, StoreError, StoreErrorKind, WorkerId, WorkerInfo, Workers,
};

#[async_trait]
impl Registry for SqlStore {
    async fn register(&self, worker: &WorkerInfo) -> Result<Millis> {
        let values = [
            (&worker.id).into(),
            (&worker.host).into(),
            worker.pid.into(),
            (&worker.role).into(),
            (&worker.version).into(),
            worker.polls.into(),
            worker.lease_ms.into(),
        ];
        match self.engine.fetch_one(Lane::Pulse, Sql::Register, &values).await? {
            Some(row) => rows::now_ms(&row),
            None => Err(StoreError::new(StoreErrorKind::Unknown, "register", "no answer")),
        }
    }

    async fn heartbeat(&self, worker: &WorkerId, held: i64) -> Result<Heartbeat> {
        let row = self.engine.fetch_one(Lane::Pulse, Sql::Heartbeat, &[worker.into(), held.into()]).await?;
        row.map_or(Ok(Heartbeat::Refused), |row| Ok(Heartbeat::Renewed { now_ms: rows::now_ms(&row)? }))
    }

    async fn workers(&self) -> Result<Workers> {
        let rows = self.engine.fetch(Lane::Pulse, Sql::Workers, &[]).await?;
        let now_ms = rows.first().map_or(Ok(0), rows::now_ms)?;
        Ok(Workers { now_ms, rows: rows::readable(&rows, rows::worker).into_iter().flatten().collect() })
    }

    async fn mark_dead(&self, marker: &WorkerId, target: &WorkerId, heartbeat_count: Option<i64>) -> Result<bool> {
        let values = [marker.into(), target.into(), heartbeat_count.into()];
        Ok(self.engine.fetch_one(Lane::Pulse, Sql::MarkDead, &values).await?.is_some())
    }

    async fn free_dead(&self, now: Millis, limit: u32, spread_ms: i64) -> Result<u64> {
        let values = [now.into(), limit.into(), spread_ms.max(0).into()];
        Ok(self.engine.fetch(Lane::Write, Sql::FreeDead, &values).await?.len() as u64)
    }

    async fn correct_far(&self, limit: u32, spread_ms: i64) -> Result<Corrected> {
        let values = [FAR_AHEAD_MS.into(), limit.into(), spread_ms.max(0).into()];
        let tasks = self.engine.fetch(Lane::Write, Sql::CorrectTasks, &values).await?;
        let workers = self.engine.fetch(Lane::Write, Sql::CorrectLeases, &[FAR_AHEAD_MS.into()]).await?;
        let ids = |rows: &[SqlRow], table| {
            rows.iter().map(|row| rows::Cells::new(row, table, "id").text("id")).collect::<Result<Vec<_>>>()
        };
        Ok(Corrected { tasks: ids(&tasks, "mcp_tasks")?, workers: ids(&workers, "workers")? })
    }

    async fn delete_dead(&self) -> Result<u64> {
        Ok(self.engine.fetch(Lane::Write, Sql::DeleteDead, &[]).await?.len() as u64)
    }

    async fn prune(&self, ended_before: Millis, limit: u32) -> Result<u64> {
        // The ids are fixed first: several replicas prune, and each must delete the events of just the tasks it deletes.
        let ended = self.engine.fetch(Lane::Read, Sql::Ended, &[ended_before.into(), limit.into()]).await?;
        if ended.is_empty() {
            return Ok(0);
        }
        let ids: Vec<String> =
            ended.iter().map(|row| rows::Cells::new(row, "mcp_tasks", "id").text("id")).collect::<Result<_>>()?;
        let ids = input::texts(&ids);
        self.engine.fetch(Lane::Write, Sql::PruneEvents, &[(&ids).into()]).await?;
        Ok(self.engine.fetch(Lane::Write, Sql::PruneTasks, &[(&ids).into()]).await?.len() as u64)
    }
}

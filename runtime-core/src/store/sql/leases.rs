//! Claims and the writes of an owner.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::engine::{Lane, SqlRow, Value};
use super::rows::{self, Cells, TaskRows};
use super::statements::Sql;
use super::{SqlStore, input};
use crate::clock::Millis;
use crate::store::{Applied, ClaimOrder, Leases, Owned, Result, RowState, StoreError, TaskWrite, WorkerId, bounds};
use crate::task::Tracked;
use crate::task::limits::{ERROR_MAX_CHARS, clip};

/// How long a row that cannot be decoded is left alone before the next claim looks at it (FAILURES 27).
const QUARANTINE_MS: Millis = 24 * 3_600_000;

#[async_trait]
impl Leases for SqlStore {
    async fn claim(&self, order: &ClaimOrder) -> Result<Vec<Tracked>> {
        let servers = input::texts(&order.servers);
        let drivers = input::texts(&order.drivers);
        let (worker, due_before, limit) = ((&order.worker).into(), order.due_before.into(), order.limit.into());
        let rows = if let Some(any_server_due_before) = order.any_server_due_before {
            let sql = if order.cancels { Sql::ClaimCancels } else { Sql::ClaimPolls };
            let known = input::texts(&order.known);
            let values: [Value<'_>; 7] = [
                worker,
                (&servers).into(),
                due_before,
                any_server_due_before.into(),
                limit,
                (&known).into(),
                (&drivers).into(),
            ];
            self.engine.fetch(Lane::Write, sql, &values).await?
        } else {
            let sql = if order.cancels { Sql::ClaimCancelsOf } else { Sql::ClaimPollsOf };
            let values: [Value<'_>; 5] = [worker, (&servers).into(), due_before, limit, (&drivers).into()];
            self.engine.fetch(Lane::Write, sql, &values).await?
        };
        let mut tasks = self.decode(&order.worker, &rows).await;
        tasks.sort_by(|a, b| (a.next_due_at, &a.id).cmp(&(b.next_due_at, &b.id)));
        Ok(tasks)
    }

    async fn owned(&self, worker: &WorkerId) -> Result<Vec<Owned>> {
        let rows = self.engine.fetch(Lane::Read, Sql::Owned, &[worker.into()]).await?;
        Ok(rows::readable(&rows, rows::owned))
    }

    async fn load_owned(&self, worker: &WorkerId, ids: &[Arc<str>]) -> Result<Vec<Tracked>> {
        let ids = input::texts(ids);
        let rows = self.engine.fetch(Lane::Read, Sql::LoadOwned, &[worker.into(), (&ids).into()]).await?;
        Ok(self.decode(worker, &rows).await)
    }

    async fn apply(&self, worker: &WorkerId, writes: &[TaskWrite]) -> Result<Vec<Applied>> {
        let epochs = self.write(Some(worker), writes, false).await?;
        let applied = |write| given(&epochs, write).map_or(Applied::Stale, |epoch| Applied::Done { epoch });
        Ok(writes.iter().map(applied).collect())
    }

    async fn inspect(&self, ids: &[Arc<str>]) -> Result<Vec<RowState>> {
        let ids = input::texts(ids);
        // By the writer's connections: what a lost write did must be seen, wherever reads may go one day.
        let rows = self.engine.fetch(Lane::Write, Sql::Inspect, &[(&ids).into()]).await?;
        Ok(rows::readable(&rows, rows::row_state))
    }
}

impl SqlStore {
    /// Writes what the guards let through; returns the new epochs by id.
    pub(super) async fn write(
        &self,
        owner: Option<&WorkerId>,
        writes: &[TaskWrite],
        freed_intent: bool,
    ) -> Result<HashMap<String, i64>> {
        if writes.is_empty() {
            return Ok(HashMap::new());
        }
        writes.iter().try_for_each(|write| bounds::check_write("apply", write))?;
        let batch = input::writes(writes);
        let values = [owner.map(|owner| &**owner).into(), (&batch).into(), freed_intent.into()];
        let follow = |rows: &[SqlRow]| {
            let changed = epochs(rows)?;
            Ok(input::events(writes, |write| given(&changed, write).is_some()))
        };
        let rows = self.engine.fetch_following(Lane::Write, Sql::Apply, &values, Some(&follow)).await?;
        epochs(&rows)
    }

    /// Decodes rows that `worker` owns, one by one; those that cannot be are given back, due far in the future.
    async fn decode(&self, worker: &WorkerId, rows: &[SqlRow]) -> Vec<Tracked> {
        let mut reader = TaskRows::default();
        let mut tasks = Vec::with_capacity(rows.len());
        for row in rows {
            match reader.tracked(row) {
                Ok(task) => tasks.push(task),
                Err(error) => self.quarantine(worker, row, &error).await,
            }
        }
        tasks
    }

    /// Failing here leaves the row with the worker, whose next reconcile comes by again.
    async fn quarantine(&self, worker: &WorkerId, row: &SqlRow, error: &StoreError) {
        tracing::warn!(%error, "quarantined a row that cannot be decoded");
        let cells = Cells::new(row, "mcp_tasks", "id");
        let Some(id) = cells.id() else { return };
        let message = clip(&format!("{}{}", rows::QUARANTINED, error.message), ERROR_MAX_CHARS);
        let values = [worker.into(), id.into(), (&message).into(), QUARANTINE_MS.into()];
        if let Err(error) = self.engine.fetch(Lane::Write, Sql::Quarantine, &values).await {
            tracing::warn!(%error, task = id, "quarantine failed");
        }
    }
}

/// The epoch that a write has given its row. A row that was freed and claimed again while the store was away may be written
/// twice in one batch, and only the write at its epoch takes effect.
fn given(epochs: &HashMap<String, i64>, write: &TaskWrite) -> Option<i64> {
    epochs.get(&*write.id).copied().filter(|epoch| *epoch == write.epoch + 1)
}

fn epochs(rows: &[SqlRow]) -> Result<HashMap<String, i64>> {
    rows.iter()
        .map(|row| {
            let cells = Cells::new(row, "mcp_tasks", "id");
            Ok((cells.text("id")?, cells.int("lease_epoch")?))
        })
        .collect()
}

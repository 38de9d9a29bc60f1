//! Reads, bounded.

use async_trait::async_trait;

use super::engine::{Database, Lane, SqlRow, Value};
use super::rows::{self, Cells, TaskRows};
use super::statements::Sql;
use super::{SqlStore, input, migrate};
use crate::clock::Millis;
use crate::store::{
    EventRecord, Page, Quarantined, Queries, Result, StoreError, StoreErrorKind, StoreStats, TaskFilter, bounds,
};
use crate::task::{Status, TaskRecord};

/// Longer than any statement may take: a gap in the events' sequence that is older was left by a rolled back write, a younger
/// one may still be filled by a commit.
const EVENT_SETTLE_MS: Millis = 15_000;
/// How many of the unowned tasks that are due last are searched for unreadable ones.
const QUARANTINE_SEARCH: i64 = 10_000;

#[async_trait]
impl Queries for SqlStore {
    async fn find_task(&self, id: &str, user_id: Option<&str>, thread_id: Option<&str>) -> Result<Option<TaskRecord>> {
        if bounds::unstorable([Some(id), user_id, thread_id]) {
            return Ok(None);
        }
        let values = [id.into(), user_id.into(), thread_id.into()];
        let row = self.engine.fetch_one(Lane::Read, Sql::FindTask, &values).await?;
        row.map(|row| TaskRows::default().record(&row)).transpose()
    }

    async fn list_tasks(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskRecord>> {
        if unmatched(filter) {
            return Ok(Vec::new());
        }
        let sql = match filter {
            TaskFilter { thread_id: Some(_), .. } => Sql::TasksOfThread,
            TaskFilter { user_id: Some(_), .. } => Sql::TasksOfUser,
            TaskFilter { status: Some(_), .. } => Sql::TasksInStatus,
            TaskFilter { active_only: true, .. } => Sql::TasksActive,
            _ => Sql::Tasks,
        };
        let folded = filter.named.as_deref().map(str::to_lowercase);
        let (created_at, id) = page.after.as_ref().map_or((Millis::MAX, ""), |(at, id)| (*at, id.as_str()));
        let values: [Value<'_>; 9] = [
            filter.user_id.as_deref().into(),
            filter.thread_id.as_deref().into(),
            filter.status.map(Status::as_str).into(),
            filter.active_only.into(),
            filter.named.as_deref().into(),
            folded.as_deref().into(),
            created_at.into(),
            id.into(),
            page.limit.into(),
        ];
        let rows = self.engine.fetch(Lane::Read, sql, &values).await?;
        let mut reader = TaskRows::default();
        Ok(rows::readable(&rows, |row| reader.record(row)))
    }

    async fn list_events(&self, after: i64, filter: &TaskFilter, limit: u32) -> Result<Vec<EventRecord>> {
        if unmatched(filter) {
            return Ok(Vec::new());
        }
        let sql = match filter {
            TaskFilter { named: Some(_), .. } => Sql::EventsOfTask,
            TaskFilter { thread_id: Some(_), .. } => Sql::EventsOfThread,
            TaskFilter { user_id: Some(_), .. } => Sql::EventsOfUser,
            _ => Sql::Events,
        };
        let values: [Value<'_>; 7] = [
            filter.user_id.as_deref().into(),
            filter.thread_id.as_deref().into(),
            filter.status.map(Status::as_str).into(),
            filter.active_only.into(),
            filter.named.as_deref().into(),
            after.into(),
            limit.into(),
        ];
        let rows = self.engine.fetch(Lane::Read, sql, &values).await?;
        let now_ms = rows.first().map_or(Ok(0), rows::now_ms)?;
        let events = rows::readable(&rows, rows::event);
        let whole = *filter == TaskFilter::default();
        Ok(match self.engine.database() {
            Database::Postgres(_) if whole => settled(events, after, now_ms),
            _ => events,
        })
    }

    async fn stats(&self, now: Millis, degraded_after: i64, cap: i64) -> Result<StoreStats> {
        let statuses = input::texts(&Status::ALL.map(Status::as_str));
        let tasks = self.engine.fetch(Lane::Read, Sql::CountTasks, &[(&statuses).into(), cap.into()]).await?;
        let degraded = self.engine.fetch(Lane::Read, Sql::CountDegraded, &[degraded_after.into(), cap.into()]).await?;
        let due = self.engine.fetch(Lane::Read, Sql::CountDue, &[now.into(), cap.into()]).await?;
        let workers = self.engine.fetch(Lane::Read, Sql::CountWorkers, &[]).await?;
        let bytes = self.engine.fetch(Lane::Read, Sql::CountBytes, &[]).await?;

        let counted = tasks.iter().map(labelled).collect::<Result<Vec<_>>>()?;
        let count = |status: Status| counted.iter().find(|(label, _)| label == status.as_str()).map_or(0, |(_, n)| *n);
        let active = Status::ALL.into_iter().filter(|status| !status.is_terminal()).map(count).sum();
        Ok(StoreStats {
            tasks: Status::ALL.into_iter().map(|status| (status.as_str().to_owned(), count(status))).collect(),
            degraded: degraded.iter().map(labelled).collect::<Result<_>>()?,
            due: only(&due)?.int("total")?,
            oldest_due_at: only(&due)?.find_int("oldest")?,
            workers_live: only(&workers)?.int("total")?,
            workers_polling: only(&workers)?.int("polling")?,
            active,
            quarantined: self.quarantined(now).await?,
            size_bytes: only(&bytes)?.int("total")?,
            free_bytes: only(&bytes)?.int("free")?,
            log_bytes: match self.engine.database() {
                Database::Sqlite(sqlite) => sqlite.log_bytes(),
                Database::Postgres(_) => 0,
            },
        })
    }

    async fn ping(&self) -> Result<()> {
        if let Database::Sqlite(sqlite) = self.engine.database() {
            sqlite.in_place().map_err(|failed| StoreError::new(failed.kind, "ping", failed.message))?;
        }
        let rows = self.engine.fetch(Lane::Read, Sql::Ping, &[]).await?;
        match only(&rows)?.int("read_only")? {
            0 => Ok(()),
            _ => Err(StoreError::new(StoreErrorKind::Unavailable, "ping", "the database is read-only")),
        }
    }

    fn hears_others(&self) -> Option<bool> {
        match self.engine.database() {
            Database::Sqlite(_) => None,
            Database::Postgres(postgres) => postgres.wakeups().hears(),
        }
    }

    fn backend(&self) -> &'static str {
        match self.engine.database() {
            Database::Sqlite(_) => "sqlite",
            Database::Postgres(_) => "postgres",
        }
    }

    async fn schema_version(&self) -> Result<(i64, Option<i64>)> {
        let applied = match self.engine.fetch(Lane::Read, Sql::SchemaVersion, &[]).await {
            Ok(rows) => only(&rows)?.find_int("version")?,
            Err(error) if error.kind == StoreErrorKind::Schema => None,
            Err(error) => return Err(error),
        };
        Ok((migrate::known(), applied))
    }
}

impl SqlStore {
    /// Rows that [`super::leases`] gave back as unreadable: they are due far ahead, which bounds the search.
    async fn quarantined(&self, now: Millis) -> Result<Vec<Quarantined>> {
        let values = [now.into(), QUARANTINE_SEARCH.into()];
        let rows = self.engine.fetch(Lane::Read, Sql::FindQuarantined, &values).await?;
        Ok(rows::readable(&rows, rows::quarantined))
    }
}

/// The events before the first young gap: what fills it later would be missed by a reader that had gone past it.
fn settled(events: Vec<EventRecord>, after: i64, now_ms: Millis) -> Vec<EventRecord> {
    let mut previous = after;
    let young_gap = |event: &EventRecord| {
        let gap = event.sequence != previous + 1;
        previous = event.sequence;
        gap && event.created_at > now_ms - EVENT_SETTLE_MS
    };
    let end = events.iter().position(young_gap);
    let mut events = events;
    events.truncate(end.unwrap_or(usize::MAX));
    events
}

/// Whether a filter asks for what no row can hold.
fn unmatched(filter: &TaskFilter) -> bool {
    bounds::unstorable([filter.user_id.as_deref(), filter.thread_id.as_deref(), filter.named.as_deref()])
}

fn labelled(row: &SqlRow) -> Result<(String, i64)> {
    let cells = Cells::new(row, "mcp_tasks", "label");
    Ok((cells.text("label")?, cells.int("total")?))
}

/// The one row of a statement that always answers one.
fn only(rows: &[SqlRow]) -> Result<Cells<'_>> {
    let row = rows.first().ok_or_else(|| StoreError::new(StoreErrorKind::Unknown, "query", "no answer"))?;
    Ok(Cells::new(row, "the answer", "label"))
}

//! Wake-ups: by a channel within the process on SQLite, by `NOTIFY` between processes on PostgreSQL.

use async_trait::async_trait;
use tokio::sync::broadcast;

use super::SqlStore;
use super::engine::{Database, Lane};
use super::rows::Cells;
use super::statements::Sql;
use crate::store::{News, Result, Wakeup, Wakeups};

#[async_trait]
impl Wakeups for SqlStore {
    fn wake(&self, what: Wakeup) {
        match self.engine.database() {
            Database::Sqlite(sqlite) => sqlite.wakeups().wake(what),
            Database::Postgres(postgres) => postgres.wakeups().wake(what),
        }
    }

    fn wakeups(&self) -> broadcast::Receiver<Wakeup> {
        match self.engine.database() {
            Database::Sqlite(sqlite) => sqlite.wakeups().subscribe(),
            Database::Postgres(postgres) => postgres.wakeups().subscribe(),
        }
    }

    async fn news(&self, after: i64, limit: u32) -> Result<News> {
        let rows = self.engine.fetch(Lane::Read, Sql::News, &[after.into(), limit.into()]).await?;
        let mut news = News { sequence: after, tasks: Vec::with_capacity(rows.len()) };
        for row in &rows {
            let cells = Cells::new(row, "task_events", "task_id");
            news.sequence = news.sequence.max(cells.int("sequence")?);
            news.tasks.push((cells.text("task_id")?.into(), cells.text("thread_id")?.into()));
        }
        Ok(news)
    }
}

//! Running a statement of the catalogue on either engine.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::metrics::{Counted, Metrics};
use super::postgres::Postgres;
use super::sqlite::Sqlite;
use super::statements::{Catalogue, Dialect, Sql};
use crate::store::{Result, StoreError, StoreErrorKind};

/// How often a statement that lost against another is tried again here.
const RETRIES: u32 = 5;

/// A parameter.
#[derive(Debug, Clone)]
pub(super) enum Value<'a> {
    Text(Option<&'a str>),
    Int(Option<i64>),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(text))
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(Some(text))
    }
}

impl<'a> From<&'a Arc<str>> for Value<'a> {
    fn from(text: &'a Arc<str>) -> Self {
        Self::Text(Some(text))
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value<'_> {
    fn from(int: i64) -> Self {
        Self::Int(Some(int))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(int: Option<i64>) -> Self {
        Self::Int(int)
    }
}

impl From<u32> for Value<'_> {
    fn from(int: u32) -> Self {
        Self::Int(Some(int.into()))
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Self::Int(Some(flag.into()))
    }
}

/// An answered row.
#[derive(Debug)]
pub(super) enum SqlRow {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl SqlRow {
    pub(super) fn text(&self, column: &str) -> sqlx::Result<Option<String>> {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }

    pub(super) fn int(&self, column: &str) -> sqlx::Result<Option<i64>> {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }
}

/// Which connections a statement takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A worker's heartbeat and what belongs to it: never behind queries (FAILURES 18).
    Pulse,
}

/// How a statement failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) kind: StoreErrorKind,
    pub(super) message: String,
    /// The connection is of no more use.
    pub(super) evict: bool,
    /// Trying again at once may help.
    pub(super) retry: bool,
}

impl Failed {
    pub(super) fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), evict: false, retry: kind == StoreErrorKind::Conflict }
    }

    /// Getting a connection failed: nothing was executed.
    pub(super) fn acquire(error: &sqlx::Error) -> Self {
        Self::new(StoreErrorKind::Unavailable, error.to_string())
    }

    /// An error that no database reported, after a statement may have been sent.
    pub(super) fn transport(error: &sqlx::Error, lane: Lane) -> Self {
        use sqlx::Error as E;
        let kind = match error {
            E::Encode(_) | E::InvalidArgument(_) => StoreErrorKind::Data,
            E::Decode(_) | E::ColumnDecode { .. } => StoreErrorKind::Corrupt,
            E::ColumnNotFound(_) | E::ColumnIndexOutOfBounds { .. } | E::TypeNotFound { .. } => StoreErrorKind::Schema,
            // A read leaves nothing to find out.
            _ if lane == Lane::Read => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Unknown,
        };
        Self { evict: true, ..Self::new(kind, error.to_string()) }
    }
}

/// On SQLite, what to run after a statement in its transaction: given its rows, the events to insert.
pub(super) type Follow<'a> = dyn Fn(&[SqlRow]) -> Result<Option<String>> + Sync + 'a;

/// A database with its statements.
#[derive(Debug)]
pub(super) struct Engine {
    database: Database,
    catalogue: Catalogue,
    metrics: Metrics,
}

#[derive(Debug)]
pub(super) enum Database {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Engine {
    pub(super) fn new(database: Database, metrics: Metrics) -> Self {
        let dialect = match &database {
            Database::Sqlite(_) => Dialect::Sqlite,
            Database::Postgres(_) => Dialect::Postgres,
        };
        Self { database, catalogue: Catalogue::new(dialect), metrics }
    }

    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    /// What is counted of its statements.
    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How many connections there are.
    pub(super) fn connections(&self) -> Counted {
        match &self.database {
            Database::Sqlite(sqlite) => sqlite.connections(),
            Database::Postgres(postgres) => postgres.connections(),
        }
    }

    /// A statement's text on this engine.
    pub(super) fn text(&self, sql: Sql) -> Arc<str> {
        self.catalogue.text(sql)
    }

    /// Runs a statement to its end and returns its rows. It takes effect as a whole or not at all.
    pub(super) async fn fetch(&self, lane: Lane, sql: Sql, values: &[Value<'_>]) -> Result<Vec<SqlRow>> {
        self.fetch_following(lane, sql, values, None).await
    }

    /// Like [`Engine::fetch`], with the events that follow from the rows; on PostgreSQL the statement writes them itself.
    pub(super) async fn fetch_following(
        &self,
        lane: Lane,
        sql: Sql,
        values: &[Value<'_>],
        follow: Option<&Follow<'_>>,
    ) -> Result<Vec<SqlRow>> {
        let template = sql.template();
        debug_assert_eq!(signature(values), template.parameters, "{}", template.name);
        let mut retries = 0;
        loop {
            let mut attempt = self.metrics.attempt(sql);
            let answer = match &self.database {
                Database::Sqlite(sqlite) => match follow {
                    None => sqlite.fetch(lane, self.text(sql), values, &mut attempt).await,
                    Some(follow) => {
                        let events = self.text(Sql::InsertEvents);
                        sqlite.fetch_following(self.text(sql), values, events, follow, &mut attempt).await
                    }
                },
                Database::Postgres(postgres) => postgres.fetch(lane, self.text(sql), values, &mut attempt).await,
            };
            drop(attempt);
            if let Err(failed) = &answer {
                self.metrics.failed(sql, failed.kind);
            }
            match answer {
                Err(failed) if failed.retry && retries < RETRIES => {
                    retries += 1;
                    tracing::debug!(statement = template.name, retries, error = failed.message, "store conflict");
                    tokio::time::sleep(pause(retries)).await;
                }
                Err(failed) => return Err(StoreError::new(failed.kind, template.name, failed.message)),
                Ok(rows) => return Ok(rows),
            }
        }
    }

    /// Runs a write that answers at most one row.
    pub(super) async fn fetch_one(&self, lane: Lane, sql: Sql, values: &[Value<'_>]) -> Result<Option<SqlRow>> {
        Ok(self.fetch(lane, sql, values).await?.into_iter().next())
    }

    /// Prepares every statement, which finds what does not fit the schema.
    pub(super) async fn prepare_all(&self) -> Result<()> {
        for &sql in Sql::ALL {
            let template = sql.template();
            let prepared = match &self.database {
                Database::Sqlite(sqlite) => sqlite.prepare(self.text(sql)).await,
                Database::Postgres(postgres) => postgres.prepare(self.text(sql), template.parameters).await,
            };
            prepared.map_err(|failed| StoreError::new(failed.kind, template.name, failed.message))?;
        }
        Ok(())
    }
}

/// Between 2 and 10 ms at first, doubling: long enough for a short transaction elsewhere to end.
fn pause(retries: u32) -> Duration {
    Duration::from_micros(fastrand::u64(2_000..10_000) << retries.min(6))
}

fn signature(values: &[Value<'_>]) -> String {
    values
        .iter()
        .map(|value| match value {
            Value::Text(_) => 't',
            Value::Int(_) => 'i',
        })
        .collect()
}

/// A query with its parameters; a macro, since the two engines' query types have no common one.
macro_rules! query {
    ($engine:ty, $text:expr, $values:expr) => {{
        let mut query = sqlx::query::<$engine>(AssertSqlSafe($text));
        for value in $values {
            query = match value {
                Value::Text(text) => query.bind(*text),
                Value::Int(int) => query.bind(*int),
            };
        }
        query
    }};
}

pub(super) fn sqlite_query<'q>(
    text: Arc<str>,
    values: &[Value<'_>],
) -> sqlx::query::Query<'q, sqlx::Sqlite, <sqlx::Sqlite as sqlx::Database>::Arguments> {
    query!(sqlx::Sqlite, text, values)
}

pub(super) fn postgres_query<'q>(
    text: Arc<str>,
    values: &[Value<'_>],
) -> sqlx::query::Query<'q, sqlx::Postgres, <sqlx::Postgres as sqlx::Database>::Arguments> {
    query!(sqlx::Postgres, text, values)
}

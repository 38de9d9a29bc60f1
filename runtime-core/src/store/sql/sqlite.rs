//! SQLite: one writer connection, several readers, write-ahead log.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Connection as _, Executor as _};

use super::engine::{Failed, Follow, Lane, SqlRow, Value, sqlite_query};
use super::metrics::{Attempt, Counted};
use crate::store::wakeup::Channel;
use crate::store::{StoreError, StoreErrorKind};

/// How long SQLite itself waits for another process's write to end; the engine then tries again with jitter.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a caller waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that read.
const READERS: u32 = 4;
/// Pages that each reader keeps, in KiB: a scan for figures must not fill a whole cache a connection, and the operating
/// system has the file in memory anyway.
const READER_CACHE: &str = "-256";
/// What a checkpoint leaves of the log's file (FAILURES 16).
const JOURNAL_SIZE_LIMIT_BYTES: &str = "67108864";
/// How often opening is tried while other processes turn the same new file to write-ahead logging.
const OPEN_ATTEMPTS: u32 = 50;

/// The pools of one database file.
#[derive(Debug)]
pub(super) struct Sqlite {
    writer: SqlitePool,
    readers: SqlitePool,
    path: PathBuf,
    file: Option<FileId>,
    wakeups: Channel,
}

/// What tells a file from another of the same name: device and inode, where there are such.
type FileId = (u64, u64);

impl Sqlite {
    /// Opens the file, making it where there is none.
    pub(super) async fn connect(path: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .busy_timeout(BUSY_TIMEOUT)
            .journal_mode(SqliteJournalMode::Wal)
            // NORMAL survives a killed process, but a power cut may take the last commits back: a submit that was
            // acknowledged must not be among them.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .pragma("journal_size_limit", JOURNAL_SIZE_LIMIT_BYTES)
            .pragma("temp_store", "memory");
        let pool = || {
            SqlitePoolOptions::new()
                .acquire_timeout(ACQUIRE_TIMEOUT)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
        };
        // All writes of a process go through one connection, so that they wait in a fair queue instead of in SQLite's
        // polling busy handler (FAILURES 15).
        let writer = pool().max_connections(1).connect_lazy_with(options.clone());
        let mut attempts = 0;
        loop {
            attempts += 1;
            match writer.acquire().await {
                Ok(_) => break,
                // The switch to write-ahead logging does not wait for the busy timeout.
                Err(error) if attempts < OPEN_ATTEMPTS && classify(&error, Lane::Write).retry => {
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(5..50))).await;
                }
                Err(error) => {
                    let message = format!("{}: {error}", path.display());
                    return Err(StoreError::new(unopened(&error), "connect", message));
                }
            }
        }
        let readers = pool().max_connections(READERS).connect_lazy_with(
            options.create_if_missing(false).pragma("query_only", "on").pragma("cache_size", READER_CACHE),
        );
        let file = file_id(path).ok();
        Ok(Self { writer, readers, path: path.to_owned(), file, wakeups: Channel::default() })
    }

    /// Whether the path still leads to the file that is open. SQLite itself would go on with one that was deleted or
    /// replaced, and what it acknowledged would be gone with the last process that has it open.
    pub(super) fn in_place(&self) -> Result<(), Failed> {
        if self.file.is_none() || file_id(&self.path).ok() == self.file {
            return Ok(());
        }
        let message = format!("{} was deleted or replaced while it was open; restart", self.path.display());
        Err(Failed::new(StoreErrorKind::Unavailable, message))
    }

    /// The size of the write-ahead log's file. It is reused from its beginning once no reader needs it, and cut then.
    pub(super) fn log_bytes(&self) -> i64 {
        let mut path = self.path.clone().into_os_string();
        path.push("-wal");
        std::fs::metadata(path).map_or(0, |metadata| i64::try_from(metadata.len()).unwrap_or(i64::MAX))
    }

    /// How many connections there are.
    pub(super) fn connections(&self) -> Counted {
        Counted::of([&self.writer, &self.readers])
    }

    /// Wake-ups within this process: other processes on the file tick.
    pub(super) fn wakeups(&self) -> &Channel {
        &self.wakeups
    }

    /// A connection that writes, for the migrator.
    pub(super) async fn writer(&self) -> Result<PoolConnection<sqlx::Sqlite>, Failed> {
        self.writer.acquire().await.map_err(|error| acquire(&error))
    }

    /// Runs one statement; a single statement that writes takes the write lock as it begins.
    pub(super) async fn fetch(
        &self,
        lane: Lane,
        sql: Arc<str>,
        values: &[Value<'_>],
        attempt: &mut Attempt<'_>,
    ) -> Result<Vec<SqlRow>, Failed> {
        let pool = if lane == Lane::Read { &self.readers } else { &self.writer };
        if lane != Lane::Read {
            self.in_place()?;
        }
        let mut connection = pool.acquire().await.map_err(|error| acquire(&error))?;
        attempt.acquired();
        let rows = sqlite_query(sql, values).fetch_all(&mut *connection).await;
        rows.map(neutral).map_err(|error| classify(&error, lane))
    }

    /// Runs a statement and inserts the events that follow from its rows, in one immediate transaction.
    pub(super) async fn fetch_following(
        &self,
        sql: Arc<str>,
        values: &[Value<'_>],
        insert_events: Arc<str>,
        follow: &Follow<'_>,
        attempt: &mut Attempt<'_>,
    ) -> Result<Vec<SqlRow>, Failed> {
        self.in_place()?;
        let mut connection = self.writer().await?;
        attempt.acquired();
        let run = async {
            let failed = |error: sqlx::Error| classify(&error, Lane::Write);
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
            let rows = neutral(sqlite_query(sql, values).fetch_all(&mut *transaction).await.map_err(failed)?);
            let events = follow(&rows).map_err(|error| Failed::new(error.kind, error.message))?;
            if let Some(events) = events {
                let values = [Value::from(&events)];
                sqlite_query(insert_events, &values).execute(&mut *transaction).await.map_err(failed)?;
            }
            transaction.commit().await.map_err(failed)?;
            Ok(rows)
        };
        let result = run.await;
        if result.is_err() {
            // A full disk makes SQLite roll back by itself, and then neither it nor the driver knows any more whether a
            // transaction is open: only a fresh connection is certain to have none.
            connection.close_on_drop();
        }
        result
    }

    /// Prepares a statement.
    pub(super) async fn prepare(&self, sql: Arc<str>) -> Result<(), Failed> {
        use sqlx::SqlSafeStr as _;
        let mut connection = self.writer().await?;
        let prepared = connection.prepare(sqlx::AssertSqlSafe(sql).into_sql_str()).await;
        prepared.map(drop).map_err(|error| classify(&error, Lane::Read))
    }

    pub(super) async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

#[cfg(unix)]
fn file_id(path: &Path) -> std::io::Result<FileId> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn file_id(path: &Path) -> std::io::Result<FileId> {
    std::fs::metadata(path).map(|_| (0, 0))
}

/// Why a file could not be opened: waiting does not make a database of what is none.
fn unopened(error: &sqlx::Error) -> StoreErrorKind {
    let sqlx::Error::Database(database) = error else { return StoreErrorKind::Unavailable };
    match database.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or_default() & 0xff {
        26 => StoreErrorKind::Schema,
        11 => StoreErrorKind::Corrupt,
        _ => StoreErrorKind::Unavailable,
    }
}

fn neutral(rows: Vec<sqlx::sqlite::SqliteRow>) -> Vec<SqlRow> {
    rows.into_iter().map(SqlRow::Sqlite).collect()
}

fn acquire(error: &sqlx::Error) -> Failed {
    match error {
        sqlx::Error::Database(_) => classify(error, Lane::Read),
        _ => Failed::acquire(error),
    }
}

/// Sorts an error by SQLite's primary result code.
pub(super) fn classify(error: &sqlx::Error, lane: Lane) -> Failed {
    let sqlx::Error::Database(database) = error else { return Failed::transport(error, lane) };
    let code: i32 = database.code().and_then(|code| code.parse().ok()).unwrap_or_default();
    let message = database.message();
    let kind = match code & 0xff {
        // BUSY, LOCKED, SCHEMA: rolled back.
        5 | 6 | 17 => StoreErrorKind::Conflict,
        // CORRUPT, NOTADB.
        11 | 26 => StoreErrorKind::Corrupt,
        // IOERR: a sync that failed may have written.
        10 if lane != Lane::Read => StoreErrorKind::Unknown,
        1 if message.starts_with("no such") || message.contains("has no column") => StoreErrorKind::Schema,
        // ERROR, TOOBIG, CONSTRAINT, MISMATCH, RANGE.
        1 | 18 | 19 | 20 | 25 => StoreErrorKind::Data,
        // PERM, NOMEM, READONLY, INTERRUPT, FULL, CANTOPEN and the rest: rolled back.
        _ => StoreErrorKind::Unavailable,
    };
    Failed::new(kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::metrics::Metrics;
    use crate::store::sql::statements::Sql;

    #[tokio::test]
    async fn a_file_that_is_no_database_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tasks.db");
        std::fs::write(&path, "not a database, but long enough to be taken for a header of one".repeat(40)).unwrap();
        let error = Sqlite::connect(&path).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Schema);
        assert!(error.message.contains("tasks.db") && error.message.contains("not a database"), "{error}");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_file_that_was_deleted_takes_no_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tasks.db");
        let sqlite = Sqlite::connect(&path).await.unwrap();
        let metrics = Metrics::new().unwrap();
        let write = async || {
            let create = "CREATE TABLE IF NOT EXISTS t (a INTEGER)".into();
            sqlite.fetch(Lane::Write, create, &[], &mut metrics.attempt(Sql::Ping)).await
        };
        write().await.unwrap();
        std::fs::rename(&path, directory.path().join("elsewhere.db")).unwrap();
        let failed = write().await.unwrap_err();
        assert_eq!(failed.kind, StoreErrorKind::Unavailable);
        assert!(failed.message.contains("deleted or replaced"), "{}", failed.message);
        std::fs::copy(directory.path().join("elsewhere.db"), &path).unwrap();
        assert!(sqlite.in_place().is_err(), "another file of the same name is not the one that is open");
        std::fs::rename(directory.path().join("elsewhere.db"), &path).unwrap();
        write().await.unwrap();
    }
}

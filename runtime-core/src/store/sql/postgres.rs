//! PostgreSQL: a pool for statements, and connections of their own for heartbeats.

use std::io;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgRow, PgTypeInfo};
use sqlx::{Connection as _, Executor as _, Row as _};
use tokio::time::{Instant, timeout};

use super::engine::{Failed, Lane, SqlRow, Value, postgres_query};
use super::metrics::{Attempt, Counted};
use super::notify::Wire;
use super::pooler;
use crate::store::{StoreError, StoreErrorKind};

/// How long a caller waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections for heartbeats and what belongs to them.
const PULSE_CONNECTIONS: u32 = 2;
/// How long an idle connection may take to show that it is one.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// How much longer than the server may work on a statement its answer is waited for: only a connection that is half open
/// takes so long.
const ANSWER_MARGIN: Duration = Duration::from_secs(4);
/// How long an answer is waited for where the server sets no bound.
const UNBOUNDED_PATIENCE: Duration = Duration::from_mins(2);
/// The server ends what takes too long; this side waits longer than that, so that no time-out of its own falls between a
/// commit and its answer (FAILURES 19). They are connection options, so that they hold without session state.
const SERVER_TIMEOUTS: [(&str, &str); 3] =
    [("statement_timeout", "10s"), ("lock_timeout", "5s"), ("idle_in_transaction_session_timeout", "10s")];

/// The pools of one database.
#[derive(Debug)]
pub(super) struct Postgres {
    pool: PgPool,
    pulse: PgPool,
    wakeups: Wire,
    /// How long the answer to a statement is waited for.
    patience: Duration,
    /// Whether every statement is a transaction of its own, prepared within it: for poolers that lend connections by the
    /// transaction and keep no prepared statements (FAILURES 20).
    unprepared: bool,
    doubt: Doubt,
}

/// Since when connections are in doubt: where one turned out to be half open, those that were made before it was noticed may
/// be so too, and each would cost its own time-out.
#[derive(Debug, Clone, Default)]
struct Doubt(Arc<Mutex<Option<Instant>>>);

impl Doubt {
    fn raise(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn concerns(&self, age: Duration) -> bool {
        let raised = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        raised.is_some_and(|raised| raised.elapsed() <= age)
    }
}

/// A connection for one statement. Unless that has ended it does not go back to the pool but is closed: its answer may still
/// come, and a transaction that was just beginning would stay open (FAILURES 19).
struct Lent(Option<PoolConnection<sqlx::Postgres>>);

impl Lent {
    fn connection(&mut self) -> Result<&mut PgConnection, Failed> {
        let gone = || Failed::new(StoreErrorKind::Unavailable, "the connection was given back");
        self.0.as_deref_mut().ok_or_else(gone)
    }

    fn give_back(&mut self) {
        self.0 = None;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

impl Postgres {
    /// Connects once, to find out early whether it can.
    pub(super) async fn connect(url: &str, max_connections: u32) -> Result<Self, StoreError> {
        // The parser's own message may quote parts of the URL, and the URL holds a password.
        let refuse =
            |_| StoreError::new(StoreErrorKind::Schema, "connect", "database.postgres_url cannot be read as a URL");
        let options = PgConnectOptions::from_str(url).map_err(refuse)?;
        let given = options.get_options().unwrap_or_default().to_owned();
        let mut options = options.options(SERVER_TIMEOUTS.into_iter().filter(|(name, _)| !given.contains(name)));
        if options.get_application_name().is_none() {
            options = options.application_name("mcp-taskd");
        }
        let failed = |failed: Failed| StoreError::new(failed.kind, "connect", failed.message);
        reach(&options).await.map_err(failed)?;
        let doubt = Doubt::default();
        let pool = |connections: u32| pool(&doubt, connections).connect_lazy_with(options.clone());
        let mut postgres = Self {
            pool: pool(max_connections),
            pulse: pool(PULSE_CONNECTIONS),
            wakeups: Wire::new(options.clone()),
            patience: UNBOUNDED_PATIENCE,
            unprepared: pooler::keeps_no_statements(url),
            doubt,
        };
        if let Some(bound) = postgres.statement_timeout().await.map_err(failed)? {
            postgres.patience = bound + ANSWER_MARGIN;
        } else {
            tracing::warn!(
                "the PostgreSQL server bounds no statement of this program: it, or a pooler before it, does not take \
                statement_timeout as a connection option; set it for the role"
            );
        }
        if postgres.is_lent().await.map_err(failed)? {
            tracing::info!(
                "a pooler before PostgreSQL lends connections by the transaction: no statement is kept prepared, and the \
                wake-ups of other processes are not heard"
            );
            postgres.unprepared = true;
            postgres.wakeups.deafen();
        }
        Ok(postgres)
    }

    /// Whether connections are lent by the transaction.
    async fn is_lent(&self) -> Result<bool, Failed> {
        let (mut one, mut other) = (self.connection(Lane::Write).await?, self.connection(Lane::Pulse).await?);
        let lent = pooler::lends_by_transaction(&mut one, &mut other).await;
        lent.map_err(|error| classify(&error, Lane::Read))
    }

    /// How long the server lets a statement of ours take.
    async fn statement_timeout(&self) -> Result<Option<Duration>, Failed> {
        let mut connection = self.pool.acquire().await.map_err(|error| pooler::refused(&error))?;
        let sql = sqlx::raw_sql("SELECT setting FROM pg_settings WHERE name = 'statement_timeout'");
        let read = async { connection.fetch_one(sql).await?.try_get::<String, _>(0) };
        let setting = read.await.map_err(|error| classify(&error, Lane::Read))?;
        Ok(setting.parse().ok().filter(|ms| *ms > 0).map(Duration::from_millis))
    }

    /// How many connections there are, less those for wake-ups.
    pub(super) fn connections(&self) -> Counted {
        Counted::of([&self.pool, &self.pulse])
    }

    pub(super) fn wakeups(&self) -> &Wire {
        &self.wakeups
    }

    /// A connection, which nothing but the next statement may hold (FAILURES 18).
    pub(super) async fn connection(&self, lane: Lane) -> Result<PoolConnection<sqlx::Postgres>, Failed> {
        let pool = if lane == Lane::Pulse { &self.pulse } else { &self.pool };
        pool.acquire().await.map_err(|error| Failed::acquire(&error))
    }

    /// Runs one statement, which is its own transaction, until the server is ready for the next one: rows come before the
    /// commit, and only then is it known.
    pub(super) async fn fetch(
        &self,
        lane: Lane,
        sql: Arc<str>,
        values: &[Value<'_>],
        attempt: &mut Attempt<'_>,
    ) -> Result<Vec<SqlRow>, Failed> {
        let mut lent = Lent(Some(self.connection(lane).await?));
        attempt.acquired();
        match timeout(self.patience, self.run(lent.connection()?, sql, values)).await {
            Ok(Ok(rows)) => {
                lent.give_back();
                Ok(rows.into_iter().map(SqlRow::Postgres).collect())
            }
            Ok(Err(error)) => {
                let failed = classify(&error, lane);
                if !failed.evict {
                    lent.give_back();
                }
                Err(failed)
            }
            Err(_) => {
                self.doubt.raise();
                Err(classify(&unanswered(), lane))
            }
        }
    }

    async fn run(
        &self,
        connection: &mut PgConnection,
        sql: Arc<str>,
        values: &[Value<'_>],
    ) -> sqlx::Result<Vec<PgRow>> {
        let query = postgres_query(sql, values);
        if !self.unprepared {
            return query.fetch_all(connection).await;
        }
        let mut transaction = connection.begin().await?;
        let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    /// Prepares a statement for parameters as declared: `t` text, `i` integer.
    pub(super) async fn prepare(&self, sql: Arc<str>, parameters: &str) -> Result<(), Failed> {
        use sqlx::SqlSafeStr as _;
        let types: Vec<PgTypeInfo> =
            parameters.chars().map(|kind| PgTypeInfo::with_name(if kind == 'i' { "int8" } else { "text" })).collect();
        let mut connection = self.connection(Lane::Read).await?;
        let prepared = connection.prepare_with(sqlx::AssertSqlSafe(sql).into_sql_str(), &types).await;
        prepared.map(drop).map_err(|error| classify(&error, Lane::Read))
    }

    pub(super) async fn close(&self) {
        self.wakeups.close().await;
        self.pool.close().await;
        self.pulse.close().await;
    }
}

/// Makes one connection beside the pools: a pool that cannot connect says that it waited, and not for what.
async fn reach(options: &PgConnectOptions) -> Result<(), Failed> {
    let made = match timeout(ACQUIRE_TIMEOUT, PgConnection::connect_with(options)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(explained(options, pooler::refused(&error))),
        Err(_) => {
            let message = format!("no answer in {} s", ACQUIRE_TIMEOUT.as_secs());
            return Err(explained(options, Failed::new(StoreErrorKind::Unavailable, message)));
        }
    };
    // It has served its purpose, whatever becomes of the goodbye.
    let _ = timeout(PING_TIMEOUT, made.close()).await;
    Ok(())
}

/// Says where PostgreSQL was looked for, without the user and the password of the URL.
fn explained(options: &PgConnectOptions, failed: Failed) -> Failed {
    let place = match options.get_socket() {
        Some(folder) => folder.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    Failed { message: format!("PostgreSQL at {place}: {}", failed.message), ..failed }
}

/// Connections that are tried before each use.
fn pool(doubt: &Doubt, connections: u32) -> PgPoolOptions {
    let doubt = doubt.clone();
    PgPoolOptions::new()
        .max_connections(connections.max(1))
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // The driver's own test would wait on a half-open connection for as long as the caller can.
        .test_before_acquire(false)
        .before_acquire(move |connection, about| {
            let doubt = doubt.clone();
            Box::pin(async move {
                if doubt.concerns(about.age) {
                    return Ok(false);
                }
                let Ok(answered) = timeout(PING_TIMEOUT, connection.ping()).await else {
                    doubt.raise();
                    return Err(unanswered());
                };
                Ok(answered.is_ok())
            })
        })
}

fn unanswered() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer on this connection"))
}

/// Sorts an error by its SQLSTATE.
pub(super) fn classify(error: &sqlx::Error, lane: Lane) -> Failed {
    let sqlx::Error::Database(database) = error else { return Failed::transport(error, lane) };
    let code = database.code().unwrap_or_default();
    let kind = kind_of(&code, lane);
    // A prepared statement that is not there, or another one in its place: it was executed on neither.
    let pooled = code == "26000" || code == "42P05";
    // What a failover or a shutdown says is true of the connection, not of the statement (FAILURES 22).
    let evict = pooled || code == "25006" || code == "25P03" || code.starts_with("57P") || code.starts_with("08");
    // Who waited for a lock as long as allowed has waited enough.
    let retry = kind == StoreErrorKind::Conflict && code != "55P03";
    let mut message = format!("{} ({code})", database.message());
    if pooled {
        message = format!("{message}; {}", pooler::STATEMENTS);
    }
    Failed { kind, message, evict, retry }
}

fn kind_of(code: &str, lane: Lane) -> StoreErrorKind {
    match code {
        // Serialisation failure, deadlock, lock time-out.
        "40001" | "40P01" | "55P03" => StoreErrorKind::Conflict,
        // A pooler's doing; the schema is as it was.
        "42P05" => StoreErrorKind::Unavailable,
        // The connection's end, told while a statement ran: nearly always before its commit, and not provably so.
        "57P01" | "57P02" if lane != Lane::Read => StoreErrorKind::Unknown,
        _ => match code.get(..2).unwrap_or_default() {
            "22" | "23" | "54" => StoreErrorKind::Data,
            "42" | "3F" => StoreErrorKind::Schema,
            "XX" => StoreErrorKind::Corrupt,
            "08" | "58" if lane != Lane::Read => StoreErrorKind::Unknown,
            // Read-only server, shutting down, starting up, out of connections, statement time-out: rolled back.
            _ => StoreErrorKind::Unavailable,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_states_are_sorted_by_what_a_caller_does_about_them() {
        for (code, kind) in [
            ("40001", StoreErrorKind::Conflict),
            ("40P01", StoreErrorKind::Conflict),
            ("22001", StoreErrorKind::Data),
            ("23514", StoreErrorKind::Data),
            ("25006", StoreErrorKind::Unavailable),
            ("57P03", StoreErrorKind::Unavailable),
            ("57014", StoreErrorKind::Unavailable),
            ("53300", StoreErrorKind::Unavailable),
            ("57P01", StoreErrorKind::Unknown),
            ("08006", StoreErrorKind::Unknown),
            ("42P01", StoreErrorKind::Schema),
            ("42P05", StoreErrorKind::Unavailable),
            ("26000", StoreErrorKind::Unavailable),
        ] {
            assert_eq!(kind_of(code, Lane::Write), kind, "{code}");
        }
        assert_eq!(kind_of("57P01", Lane::Read), StoreErrorKind::Unavailable, "a read leaves nothing to find out");
    }
}

//! What goes wrong with a store beneath the daemons.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, SqliteConnection};

use super::fault::Lock;
use crate::postgres::Server;

/// The database of a run on PostgreSQL.
pub(super) const NAME: &str = "chaos";

/// A store, from beneath.
#[derive(Debug)]
pub(super) enum Database {
    /// A server of the run's own.
    Postgres(Server),
    /// A file.
    Sqlite(PathBuf),
}

/// A lock that another session holds until this is released.
#[derive(Debug)]
pub(super) enum Held {
    /// On PostgreSQL.
    Postgres(PgConnection),
    /// On a file.
    Sqlite(SqliteConnection),
}

impl Held {
    /// Ends the session's transaction, and the session.
    pub(super) async fn release(self) {
        match self {
            Self::Postgres(mut connection) => {
                execute(&mut connection, "ROLLBACK").await;
                let _ = connection.close().await;
            }
            Self::Sqlite(mut connection) => {
                sqlx::query("ROLLBACK").execute(&mut connection).await.expect("the end of a transaction");
                let _ = connection.close().await;
            }
        }
    }
}

impl Database {
    fn server(&self) -> &Server {
        match self {
            Self::Postgres(server) => server,
            Self::Sqlite(path) => panic!("{} has no server", path.display()),
        }
    }

    /// Stops the server, in an orderly way or not.
    pub(super) fn stop(&self, orderly: bool) {
        if orderly { self.server().shut_down() } else { self.server().crash() }
    }

    /// Starts a stopped server, and waits until it answers.
    pub(super) async fn resume(&self) {
        self.server().resume();
        let _ = self.server().ready().await.close().await;
    }

    /// Ends connections to the database, all or one in three.
    pub(super) async fn disconnect(&self, all: bool) {
        let statement =
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND ($2 OR pid % 3 = 0)";
        let mut admin = self.server().ready().await;
        sqlx::query(statement).bind(NAME).bind(all).execute(&mut admin).await.expect("an end to connections");
        let _ = admin.close().await;
    }

    /// Makes the server read-only for everybody, or ends that.
    pub(super) async fn set_read_only(&self, read_only: bool) {
        let mut admin = self.server().ready().await;
        let value = if read_only { "on" } else { "off" };
        execute(&mut admin, &format!("ALTER SYSTEM SET default_transaction_read_only = {value}")).await;
        execute(&mut admin, "SELECT pg_reload_conf()").await;
        let _ = admin.close().await;
    }

    /// Takes a lock in a session of its own.
    pub(super) async fn lock(&self, on: Lock) -> Held {
        let statement = match (self, on) {
            (Self::Sqlite(path), _) => return Held::Sqlite(lock_file(path).await),
            (_, Lock::Tasks) => "SELECT id FROM mcp_tasks WHERE id < 'mcp-task-8' ORDER BY id FOR UPDATE",
            (_, Lock::Workers) => "SELECT id FROM workers ORDER BY id FOR UPDATE",
            (_, Lock::Table | Lock::File) => "LOCK TABLE mcp_tasks IN ACCESS EXCLUSIVE MODE",
        };
        let mut connection = PgConnection::connect(&self.server().url(NAME)).await.expect("a session");
        execute(&mut connection, "BEGIN").await;
        execute(&mut connection, statement).await;
        Held::Postgres(connection)
    }
}

async fn lock_file(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::from_str(path.to_str().expect("a plain path")).expect("a path");
    let mut connection = options.connect().await.expect("a session");
    // Writers come and go: the lock is waited for like they do.
    sqlx::query("PRAGMA busy_timeout = 30000").execute(&mut connection).await.expect("patience");
    sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await.expect("the lock");
    connection
}

async fn execute(connection: &mut PgConnection, statement: &str) {
    sqlx::query(AssertSqlSafe(statement.to_owned()))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"));
}

//! One store over two SQL engines: SQLite and PostgreSQL.

mod deliveries;
mod engine;
mod input;
mod intents;
mod keys;
mod leases;
mod metrics;
mod migrate;
mod notify;
mod pooler;
mod postgres;
mod queries;
mod registry;
mod rows;
mod shared;
mod sqlite;
mod statements;
mod templates;
mod tokens;
mod wakeups;

use std::path::Path;
use std::sync::Arc;

use engine::{Database, Engine};
use metrics::Metrics;
use statements::Sql;

use super::{Result, StoreError, StoreErrorKind};

/// A statement of a store's catalogue.
#[derive(Debug, Clone)]
pub struct Statement {
    /// Its name in errors, logs and metrics.
    pub name: &'static str,
    /// Its parameters in order: `t` text, `i` 64-bit integer; each may be null.
    pub parameters: &'static str,
    /// Its text in the engine's dialect.
    pub text: Arc<str>,
}

/// A store in a SQL database.
///
/// Every call is one statement (on SQLite also a short immediate transaction): no connection is held across anything else, and
/// the server, not this side, bounds how long a statement takes. A statement that lost a deadlock or found the database busy is
/// tried again here, with jitter; it was rolled back.
#[derive(Debug, Clone)]
pub struct SqlStore {
    engine: Arc<Engine>,
}

impl SqlStore {
    /// Opens a SQLite file, making it where there is none. The schema is left to [`SqlStore::migrate`].
    pub async fn connect_sqlite(path: impl AsRef<Path>) -> Result<Self> {
        let sqlite = sqlite::Sqlite::connect(path.as_ref()).await?;
        Self::new(Database::Sqlite(sqlite))
    }

    /// Connects to PostgreSQL; beside `max_connections`, two are kept for heartbeats and, by whoever listens or wakes, two for
    /// wake-ups. The schema is left to [`SqlStore::migrate`].
    ///
    /// Works behind a pooler that lends connections by the transaction, with two more round trips a statement and without
    /// wake-ups; it must take the startup parameters `options` and `extra_float_digits`, or ignore them.
    pub async fn connect_postgres(url: &str, max_connections: u32) -> Result<Self> {
        let postgres = postgres::Postgres::connect(url, max_connections).await?;
        Self::new(Database::Postgres(postgres))
    }

    fn new(database: Database) -> Result<Self> {
        let metrics =
            Metrics::new().map_err(|error| StoreError::new(StoreErrorKind::Schema, "metrics", error.to_string()))?;
        Ok(Self { engine: Arc::new(Engine::new(database, metrics)) })
    }

    /// Shows in `registry` what its statements cost, how they fail, and how many connections there are.
    ///
    /// # Errors
    ///
    /// Where metrics of these names are registered already.
    pub fn register_metrics(&self, registry: &prometheus::Registry) -> prometheus::Result<()> {
        self.engine.metrics().register(registry, Arc::clone(&self.engine))
    }

    /// Brings the schema up to date; returns the names of the migrations that were applied.
    pub async fn migrate(&self) -> Result<Vec<&'static str>> {
        migrate::migrate(&self.engine).await
    }

    /// Prepares every statement of the catalogue, which finds a schema that does not fit.
    pub async fn prepare_all(&self) -> Result<()> {
        self.engine.prepare_all().await
    }

    /// The catalogue: every statement, as this engine runs it.
    pub fn statements(&self) -> Vec<Statement> {
        let statement = |&sql: &Sql| {
            let template = sql.template();
            Statement { name: template.name, parameters: template.parameters, text: self.engine.text(sql) }
        };
        Sql::ALL.iter().map(statement).collect()
    }

    /// Closes all connections, after what runs on them.
    pub async fn close(&self) {
        match self.engine.database() {
            Database::Sqlite(sqlite) => sqlite.close().await,
            Database::Postgres(postgres) => postgres.close().await,
        }
    }
}

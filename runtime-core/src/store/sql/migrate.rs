//! Our own small migrator: the same numbers and names in both dialects, applied under a lock that needs no session state.

use sqlx::{AssertSqlSafe, Connection as _};

use super::engine::{Database, Engine, Failed, Lane};
use super::{postgres, sqlite};
use crate::store::{Result, StoreError};

/// A migration.
#[derive(Debug, Clone, Copy)]
struct Migration {
    version: i64,
    name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

macro_rules! migration {
    ($version:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            sqlite: include_str!(concat!("../../../../migrations/sqlite/", $name, ".sql")),
            postgres: include_str!(concat!("../../../../migrations/postgres/", $name, ".sql")),
        }
    };
}

/// Every migration, oldest first.
const MIGRATIONS: &[Migration] = &[
    migration!(1, "0001_tasks"),
    migration!(2, "0002_shared_state"),
    migration!(3, "0003_oauth_tokens"),
    migration!(4, "0004_api_keys"),
    migration!(5, "0005_event_deliveries"),
    migration!(6, "0006_claim_by_server"),
];

/// Any number that no other program takes for its lock in the same database: "mcp-task" in ASCII.
const LOCK_KEY: i64 = 0x6d63_702d_7461_736b;

/// The newest migration this binary knows.
pub(super) fn known() -> i64 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}

/// Applies what is missing, all or nothing; of several that start at once, one works and the others find it done.
///
/// A schema newer than known is left as it is: the binary before the newest works on it (FAILURES 21).
pub(super) async fn migrate(engine: &Engine) -> Result<Vec<&'static str>> {
    let applied = match engine.database() {
        Database::Sqlite(sqlite) => migrate_sqlite(sqlite).await,
        Database::Postgres(postgres) => migrate_postgres(postgres).await,
    };
    applied.map_err(|failed| StoreError::new(failed.kind, "migrate", failed.message))
}

/// Runs the steps in a transaction; a macro, since the two engines' connections have no common type.
macro_rules! apply {
    ($transaction:expr, $dialect:ident, $now_ms:expr, $integer:expr) => {{
        let transaction = &mut *$transaction;
        let create = concat!(
            "CREATE TABLE IF NOT EXISTS schema_migrations (version ",
            $integer,
            " PRIMARY KEY, name TEXT NOT NULL, applied_at ",
            $integer,
            " NOT NULL)"
        );
        sqlx::raw_sql(create).execute(&mut *transaction).await?;
        let done: Vec<i64> =
            sqlx::query_scalar("SELECT version FROM schema_migrations").fetch_all(&mut *transaction).await?;
        let mut applied = Vec::new();
        for migration in MIGRATIONS.iter().filter(|migration| !done.contains(&migration.version)) {
            sqlx::raw_sql(AssertSqlSafe(migration.$dialect)).execute(&mut *transaction).await?;
            let insert =
                concat!("INSERT INTO schema_migrations (version, name, applied_at) VALUES ($1, $2, ", $now_ms, ")");
            sqlx::query(insert).bind(migration.version).bind(migration.name).execute(&mut *transaction).await?;
            applied.push(migration.name);
        }
        applied
    }};
}

async fn migrate_sqlite(sqlite: &sqlite::Sqlite) -> std::result::Result<Vec<&'static str>, Failed> {
    let mut connection = sqlite.writer().await?;
    let run = async {
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
        let applied = apply!(transaction, sqlite, "CAST(unixepoch('subsec') * 1000 AS INTEGER)", "INTEGER");
        transaction.commit().await?;
        Ok(applied)
    };
    run.await.map_err(|error| sqlite::classify(&error, Lane::Write))
}

async fn migrate_postgres(postgres: &postgres::Postgres) -> std::result::Result<Vec<&'static str>, Failed> {
    let mut connection = postgres.connection(Lane::Write).await?;
    let run = async {
        let mut transaction = connection.begin().await?;
        // The lock ends with the transaction, so that it holds behind a transaction pooler too (FAILURES 20).
        sqlx::raw_sql("SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = 0")
            .execute(&mut *transaction)
            .await?;
        sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK_KEY).execute(&mut *transaction).await?;
        let applied = apply!(transaction, postgres, "(extract(epoch FROM clock_timestamp()) * 1000)::bigint", "BIGINT");
        transaction.commit().await?;
        Ok(applied)
    };
    run.await.map_err(|error| postgres::classify(&error, Lane::Write))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_dialects_have_the_same_migrations_and_all_of_them_are_known() {
        let known: Vec<String> = MIGRATIONS.iter().map(|migration| format!("{}.sql", migration.name)).collect();
        for dialect in ["sqlite", "postgres"] {
            let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../migrations/").to_owned() + dialect;
            let mut files: Vec<String> = std::fs::read_dir(directory)
                .expect("the migrations' directory")
                .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
                .collect();
            files.sort();
            assert_eq!(files, known, "{dialect}");
        }
        assert!(MIGRATIONS.is_sorted_by(|one, next| one.version < next.version));
        for migration in MIGRATIONS {
            assert!(migration.name.starts_with(&format!("{:04}_", migration.version)), "{}", migration.name);
        }
    }
}

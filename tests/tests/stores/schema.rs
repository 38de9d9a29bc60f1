//! What a schema asks of the programs that use it, read from a database that a test migrates step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mcp_taskd_tests::postgres::{self, TestDatabase};
use sqlx::postgres::{PgConnection, PgTypeInfo};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Column as _, Connection as _, Executor as _, SqlSafeStr as _, Statement as _};

/// A database with nothing in it but what a test puts there.
pub(crate) enum Raw {
    Sqlite { connection: SqliteConnection, _directory: tempfile::TempDir },
    Postgres { connection: PgConnection, _database: TestDatabase },
}

/// A schema's tables by their names.
pub(crate) type Schema = BTreeMap<String, Table>;

/// A table, as far as it matters to who writes and reads it.
#[derive(Debug, Default)]
pub(crate) struct Table {
    columns: BTreeMap<String, Column>,
    demands: BTreeSet<Demand>,
}

#[derive(Debug, PartialEq, Eq)]
struct Column {
    kind: String,
    required: bool,
    has_default: bool,
}

impl Column {
    /// Whether a row may be inserted without it.
    fn may_be_left_out(&self) -> bool {
        !self.required || self.has_default
    }
}

/// What rows have to keep: a unique index, a check or a reference.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Demand {
    text: String,
    columns: BTreeSet<String>,
    is_unique: bool,
}

/// Why programs that know `old` could not work on `new`; nothing where `new` only adds.
pub(crate) fn breaks(old: &Schema, new: &Schema) -> Vec<String> {
    let mut found = Vec::new();
    for (name, old) in old {
        let Some(new) = new.get(name) else {
            found.push(format!("{name} is gone"));
            continue;
        };
        for (column, known) in &old.columns {
            match new.columns.get(column) {
                None => found.push(format!("{name}.{column} is gone")),
                Some(now) if now.kind != known.kind => found.push(format!("{name}.{column} is {}", now.kind)),
                Some(now) if known.may_be_left_out() && !now.may_be_left_out() || now.required && !known.required => {
                    found.push(format!("{name}.{column} has become required"));
                }
                Some(_) => {}
            }
        }
        let added: BTreeMap<_, _> =
            new.columns.iter().filter(|(column, _)| !old.columns.contains_key(*column)).collect();
        for (column, _) in added.iter().filter(|(_, column)| !column.may_be_left_out()) {
            found.push(format!("{name}.{column} is new and required"));
        }
        for demand in new.demands.difference(&old.demands) {
            // Rows of a program that does not know the column have null in it, or its default: of nulls there may be many.
            let spares_others = |column: &Column| !demand.is_unique || !column.required && !column.has_default;
            let is_about = |column: &&String| added.get(*column).is_some_and(|column| spares_others(column));
            if !demand.columns.iter().any(|column| is_about(&column)) {
                found.push(format!("{name} asks for more: {}", demand.text));
            }
        }
    }
    found
}

/// The migrations of an engine, oldest first: numbers and texts.
pub(crate) fn migrations(engine: &str) -> Vec<(i64, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(engine);
    let entries = std::fs::read_dir(folder).expect("the migrations");
    let mut found: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let number = name[..4].parse().expect("a number");
            (number, std::fs::read_to_string(path).expect("readable"))
        })
        .collect();
    found.sort();
    found
}

impl Raw {
    pub(crate) async fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let options = SqliteConnectOptions::new().filename(directory.path().join("tasks.db")).create_if_missing(true);
        let connection = SqliteConnection::connect_with(&options).await.expect("connects");
        Self::Sqlite { connection, _directory: directory }
    }

    pub(crate) async fn postgres() -> Self {
        let database = postgres::database().await;
        let connection = PgConnection::connect(database.url()).await.expect("connects");
        Self::Postgres { connection, _database: database }
    }

    pub(crate) fn engine(&self) -> &'static str {
        match self {
            Self::Sqlite { .. } => "sqlite",
            Self::Postgres { .. } => "postgres",
        }
    }

    pub(crate) async fn run(&mut self, sql: &str) {
        let query = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            Self::Sqlite { connection, .. } => query.execute(connection).await.map(drop),
            Self::Postgres { connection, .. } => query.execute(connection).await.map(drop),
        }
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    /// Prepares a statement; the names of the columns that it answers with.
    pub(crate) async fn prepare(&mut self, parameters: &str, sql: &str) -> Result<Vec<String>, sqlx::Error> {
        let text = AssertSqlSafe(sql).into_sql_str();
        match self {
            Self::Sqlite { connection, .. } => {
                connection.clear_cached_statements().await?;
                let prepared = connection.prepare(text).await?;
                Ok(prepared.columns().iter().map(|column| column.name().to_owned()).collect())
            }
            Self::Postgres { connection, .. } => {
                connection.clear_cached_statements().await?;
                let kind = |kind| PgTypeInfo::with_name(if kind == 'i' { "int8" } else { "text" });
                let prepared = connection.prepare_with(text, &parameters.chars().map(kind).collect::<Vec<_>>()).await?;
                Ok(prepared.columns().iter().map(|column| column.name().to_owned()).collect())
            }
        }
    }

    pub(crate) async fn schema(&mut self) -> Schema {
        let (columns, demands) = match self {
            Self::Sqlite { .. } => (SQLITE_COLUMNS, SQLITE_DEMANDS),
            Self::Postgres { .. } => (POSTGRES_COLUMNS, POSTGRES_DEMANDS),
        };
        let mut schema = Schema::new();
        for [table, name, kind, required, has_default] in self.rows(columns).await {
            let column = Column { kind, required: required == "1", has_default: has_default == "1" };
            schema.entry(table).or_default().columns.insert(name, column);
        }
        for [table, text, columns, is_unique] in self.rows(demands).await {
            let columns = columns.split(' ').map(str::to_owned).collect();
            let demand = Demand { text, columns, is_unique: is_unique == "1" };
            schema.entry(table).or_default().demands.insert(demand);
        }
        schema
    }

    /// The answer of a query all of whose columns are text.
    async fn rows<const N: usize>(&mut self, sql: &'static str) -> Vec<[String; N]> {
        use sqlx::Row as _;
        match self {
            Self::Sqlite { connection, .. } => {
                let rows = sqlx::query(sql).fetch_all(connection).await.expect("answers");
                rows.iter().map(|row| std::array::from_fn(|index| row.get(index))).collect()
            }
            Self::Postgres { connection, .. } => {
                let rows = sqlx::query(sql).fetch_all(connection).await.expect("answers");
                rows.iter().map(|row| std::array::from_fn(|index| row.get(index))).collect()
            }
        }
    }
}

const SQLITE_COLUMNS: &str = "SELECT t.name, c.name, c.type, CAST(c.\"notnull\" OR c.pk > 0 AS TEXT),
        CAST(c.dflt_value IS NOT NULL OR (c.pk = 1 AND c.type = 'INTEGER') AS TEXT)
    FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c
    WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'";

/// Checks are left to PostgreSQL, whose migrations are the same.
const SQLITE_DEMANDS: &str = "SELECT t.name, 'unique ' || i.name,
        (SELECT group_concat(coalesce(name, '(expression)'), ' ') FROM pragma_index_info(i.name)), '1'
    FROM sqlite_schema AS t JOIN pragma_index_list(t.name) AS i
    WHERE t.type = 'table' AND i.\"unique\"
    UNION ALL
    SELECT t.name, 'references ' || f.\"table\", f.\"from\", '0'
    FROM sqlite_schema AS t JOIN pragma_foreign_key_list(t.name) AS f WHERE t.type = 'table'";

const POSTGRES_COLUMNS: &str = "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod),
        a.attnotnull::int::text, (a.atthasdef OR a.attidentity <> '')::int::text
    FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
    WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped";

const POSTGRES_DEMANDS: &str = "SELECT c.relname::text, pg_get_indexdef(i.indexrelid),
        (SELECT string_agg(coalesce(a.attname::text, '(expression)'), ' ')
            FROM unnest(i.indkey) AS k LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k), '1'
    FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
    WHERE i.indisunique AND c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT c.relname::text, pg_get_constraintdef(n.oid),
        coalesce((SELECT string_agg(a.attname::text, ' ') FROM pg_attribute AS a
            WHERE a.attrelid = n.conrelid AND a.attnum = ANY (n.conkey)), ''), '0'
    FROM pg_constraint AS n JOIN pg_class AS c ON c.oid = n.conrelid
    WHERE n.contype IN ('c', 'f') AND c.relnamespace = 'public'::regnamespace";

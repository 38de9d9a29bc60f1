//! The program of the version before on the schema of this one (FAILURES 21; docs/RELEASING.md). With that program itself:
//! the scenarios' `upgrade.rs`.
//!
//! `released/` has the statements of the version before. After a release they are those of this one:
//!
//! ```sh
//! RECORD_STATEMENTS=1 cargo test -p mcp-taskd-tests --test stores upgrades::
//! ```

use std::path::PathBuf;

use mcp_taskd_core::store::Queries as _;

use crate::bench::Bench;
use crate::schema::{Raw, breaks, migrations};

/// The statements of a program, and the schema that it knows.
struct Released {
    schema: i64,
    statements: Vec<Statement>,
}

struct Statement {
    name: String,
    parameters: String,
    text: String,
}

const HEAD: &str = "-- The statements of a program whose newest migration is ";

fn file(engine: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/stores/released").join(engine).with_extension("sql")
}

impl Released {
    fn read(engine: &str) -> Self {
        let text = std::fs::read_to_string(file(engine)).expect("the released statements");
        let (head, text) = text.split_once("\n\n-- ").expect("a head");
        let schema = head.strip_prefix(HEAD).and_then(|rest| rest.parse().ok()).expect("a number");
        let statement = |text: &str| {
            let (head, text) = text.split_once('\n').expect("a statement");
            let (name, parameters) = head.split_once(' ').unwrap_or((head, ""));
            Statement { name: name.into(), parameters: parameters.into(), text: text.trim_end().into() }
        };
        Self { schema, statements: text.split("\n\n-- ").map(statement).collect() }
    }

    /// Those of this program.
    async fn current(engine: &str) -> Self {
        let bench = if engine == "sqlite" { Bench::sqlite().await } else { Bench::postgres().await };
        let statement = |known: mcp_taskd_core::store::sql::Statement| Statement {
            name: known.name.into(),
            parameters: known.parameters.into(),
            text: known.text.to_string(),
        };
        let schema = bench.sql().schema_version().await.expect("answers").0;
        Self { schema, statements: bench.sql().statements().into_iter().map(statement).collect() }
    }

    fn write(&self, engine: &str) {
        use std::fmt::Write as _;
        let mut text = format!("{HEAD}{}\n", self.schema);
        for Statement { name, parameters, text: sql } in &self.statements {
            let head = format!("{name} {parameters}");
            let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ");
            write!(text, "\n-- {}\n{sql}\n", head.trim_end()).expect("a text");
        }
        std::fs::write(file(engine), text).expect("the released statements");
    }

    /// The columns of each answer, as a program learns them once, when it prepares.
    async fn prepare_on(&self, database: &mut Raw) -> Vec<(String, Vec<String>)> {
        let mut answers = Vec::new();
        for Statement { name, parameters, text } in &self.statements {
            let columns = database.prepare(parameters, text).await;
            answers.push((name.clone(), columns.unwrap_or_else(|error| panic!("{name}: {error}"))));
        }
        answers
    }
}

/// Applies the migrations with these numbers.
async fn migrate(database: &mut Raw, numbers: impl std::ops::RangeBounds<i64>) {
    database.run("CREATE TABLE IF NOT EXISTS schema_migrations (version BIGINT PRIMARY KEY)").await;
    for (_, text) in migrations(database.engine()).iter().filter(|(number, _)| numbers.contains(number)) {
        database.run(text).await;
    }
}

/// A running program meets the newest schema between two executions of a statement; one that starts meets it at once. On
/// PostgreSQL a prepared statement that would answer with other columns than before fails from then on.
async fn work_on_the_newest_schema(mut database: Raw) {
    let engine = database.engine();
    if std::env::var_os("RECORD_STATEMENTS").is_some() {
        Released::current(engine).await.write(engine);
    }
    let released = Released::read(engine);
    assert!(released.statements.len() > 30);
    migrate(&mut database, ..=released.schema).await;
    let before = released.prepare_on(&mut database).await;
    migrate(&mut database, released.schema + 1..).await;
    assert_eq!(released.prepare_on(&mut database).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_the_version_before_work_on_the_newest_schema_of_sqlite_21() {
    work_on_the_newest_schema(Raw::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_the_version_before_work_on_the_newest_schema_of_postgres_21() {
    work_on_the_newest_schema(Raw::postgres().await).await;
}

/// No statement may answer with whatever columns there are.
#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_the_next_version_adds_changes_no_answer_21() {
    for mut database in [Raw::sqlite().await, Raw::postgres().await] {
        let current = Released::current(database.engine()).await;
        migrate(&mut database, ..).await;
        let before = current.prepare_on(&mut database).await;
        for table in database.schema().await.keys() {
            database.run(&format!("ALTER TABLE {table} ADD COLUMN of_the_next_version INTEGER")).await;
        }
        assert_eq!(current.prepare_on(&mut database).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_only_adds_21() {
    for mut database in [Raw::sqlite().await, Raw::postgres().await] {
        let mut before = database.schema().await;
        for (number, text) in migrations(database.engine()) {
            database.run(&text).await;
            let after = database.schema().await;
            assert_eq!(breaks(&before, &after), [""; 0], "migration {number}");
            before = after;
        }
        assert!(before.len() > 3, "{before:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_of_the_version_before_cannot_live_with_is_found_21() {
    for mut database in [Raw::sqlite().await, Raw::postgres().await] {
        migrate(&mut database, ..).await;
        database.run("CREATE TABLE shelf (id BIGINT PRIMARY KEY, room TEXT NOT NULL, note TEXT)").await;
        for (change, expected) in [
            ("ALTER TABLE shelf ADD COLUMN colour TEXT", ""),
            ("ALTER TABLE shelf ADD COLUMN height BIGINT NOT NULL DEFAULT 0", ""),
            ("CREATE UNIQUE INDEX shelf_colour ON shelf (room, colour)", "shelf asks for more"),
            ("ALTER TABLE shelf ADD COLUMN label TEXT; CREATE UNIQUE INDEX shelf_label ON shelf (room, label)", ""),
            ("CREATE INDEX shelf_note ON shelf (note)", ""),
            ("CREATE UNIQUE INDEX shelf_room ON shelf (room)", "shelf asks for more"),
            ("ALTER TABLE shelf RENAME COLUMN note TO remark", "shelf.note is gone"),
            (
                "DROP TABLE shelf; CREATE TABLE shelf (id BIGINT PRIMARY KEY, room BIGINT NOT NULL, remark TEXT NOT NULL,
                    colour TEXT, height BIGINT NOT NULL, depth BIGINT NOT NULL, label TEXT)",
                "shelf.depth is new and required, shelf.height has become required, shelf.remark has become required, \
                shelf.room is ",
            ),
            ("DROP TABLE shelf", "shelf is gone"),
        ] {
            let before = database.schema().await;
            database.run(change).await;
            let mut found = breaks(&before, &database.schema().await);
            found.sort();
            let found = found.join(", ");
            assert!(found.starts_with(expected) && (found.is_empty() == expected.is_empty()), "{change}: {found}");
        }
    }
}

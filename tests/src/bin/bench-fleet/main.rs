//! What a fleet costs and how fast it recovers: `cargo run --release -p mcp-taskd-tests --bin bench-fleet` (docs/BENCHMARKS.md).
//!
//! `takeover`: a worker that holds 100,000 tasks dies beside two that live. `notify`: how fast 32 writers write, with and
//! without wake-ups and listeners.

mod notify;
mod takeover;
mod upstream;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use mcp_taskd_core::store::SharedStore;
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_tests::bench::program::measure;
use mcp_taskd_tests::postgres::{self, TestDatabase};

const USAGE: &str = "bench-fleet [takeover|notify] [--store postgres|sqlite] [--tasks N] [--rounds N] [--seconds N]";

/// What is measured, and how much of it.
#[derive(Debug)]
struct Plan {
    only: Option<String>,
    store: Option<String>,
    tasks: usize,
    rounds: usize,
    seconds: f64,
}

fn main() -> ExitCode {
    measure(USAGE, plan(std::env::args().skip(1)), all)
}

fn plan(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Plan> {
    let mut plan = Plan { only: None, store: None, tasks: 100_000, rounds: 5, seconds: 4.0 };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "takeover" | "notify" => plan.only = Some(argument),
            "--store" => plan.store = Some(value()?),
            "--tasks" => plan.tasks = value()?.parse()?,
            "--rounds" => plan.rounds = value()?.parse()?,
            "--seconds" => plan.seconds = value()?.parse()?,
            other => anyhow::bail!("unknown argument {other}"),
        }
    }
    Ok(plan)
}

/// Whether every target was met.
async fn all(plan: Plan) -> anyhow::Result<bool> {
    let wants = |what: &str| plan.only.as_ref().is_none_or(|only| only == what);
    let on = |store: &str| plan.store.as_ref().is_none_or(|only| only == store);
    let mut met = true;
    if wants("takeover") {
        for store in ["postgres", "sqlite"].into_iter().filter(|store| on(store)) {
            met &= takeover::run(&Place::new(store).await?, plan.tasks).await?;
        }
    }
    if wants("notify") && on("postgres") {
        met &= notify::run(&Place::new("postgres").await?, plan.rounds, plan.seconds).await?;
    }
    Ok(met)
}

/// A database that several processes would share.
#[derive(Debug)]
enum Place {
    Postgres(TestDatabase),
    Sqlite(tempfile::TempDir),
}

impl Place {
    async fn new(store: &str) -> anyhow::Result<Self> {
        let place = match store {
            "postgres" => Self::Postgres(postgres::database().await),
            _ => Self::Sqlite(tempfile::tempdir()?),
        };
        place.connect().await?.migrate().await?;
        Ok(place)
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "postgres",
            Self::Sqlite(_) => "sqlite",
        }
    }

    /// A store as another process would have it: with connections of its own.
    async fn connect(&self) -> anyhow::Result<SqlStore> {
        Ok(match self {
            Self::Postgres(database) => SqlStore::connect_postgres(database.url(), 10).await?,
            Self::Sqlite(folder) => SqlStore::connect_sqlite(self.file(folder)).await?,
        })
    }

    async fn shared(&self) -> anyhow::Result<SharedStore> {
        Ok(Arc::new(self.connect().await?))
    }

    fn file(&self, folder: &tempfile::TempDir) -> std::path::PathBuf {
        folder.path().join(format!("{}.db", self.name()))
    }
}

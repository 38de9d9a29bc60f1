//! What a fleet costs and how fast it recovers: `cargo run --release -p mcp-taskd-tests --bin bench-fleet` (docs/BENCHMARKS.md).

mod notify;
mod takeover;
mod upstream;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use mcp_taskd_core::store::SharedStore;
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_tests::bench::program::measure;
use mcp_taskd_tests::postgres::{self, TestDatabase};

/// What a fleet costs and how fast it recovers.
#[derive(Debug, Parser)]
struct Plan {
    /// Measures this only.
    #[arg(value_enum)]
    only: Option<Figure>,
    /// Measures on this store only.
    #[arg(long, value_enum)]
    store: Option<Engine>,
    /// Tasks that change hands.
    #[arg(long, default_value_t = 100_000)]
    tasks: usize,
    /// Rounds of each kind of writing.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The length of a round.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// A worker that holds all tasks dies beside two that live.
    Takeover,
    /// How fast 32 writers write, with and without wake-ups and listeners.
    Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    Postgres,
    Sqlite,
}

fn main() -> ExitCode {
    measure(all(Plan::parse()))
}

/// Whether every target was met.
async fn all(plan: Plan) -> anyhow::Result<bool> {
    let wants = |what| plan.only.is_none_or(|only| only == what);
    let on = |engine: &Engine| plan.store.is_none_or(|only| only == *engine);
    let mut met = true;
    if wants(Figure::Takeover) {
        for engine in [Engine::Postgres, Engine::Sqlite].into_iter().filter(on) {
            met &= takeover::run(&Place::new(engine).await?, plan.tasks).await?;
        }
    }
    if wants(Figure::Notify) && on(&Engine::Postgres) {
        met &= notify::run(&Place::new(Engine::Postgres).await?, plan.rounds, plan.seconds).await?;
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
    async fn new(engine: Engine) -> anyhow::Result<Self> {
        let place = match engine {
            Engine::Postgres => Self::Postgres(postgres::database().await),
            Engine::Sqlite => Self::Sqlite(tempfile::tempdir()?),
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

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
use mcp_taskd_core::task::{Binding, Toolset};
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
    let plan = match plan(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error:#}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let met = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(all(plan)));
    match met {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
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
    if cfg!(debug_assertions) {
        println!("This is a debug build; its figures say nothing.");
    }
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

/// The toolset of all tasks.
fn binding() -> Binding {
    let toolset = Toolset {
        name: "report".into(),
        submit_tool: "submit".into(),
        status_tool: "status".into(),
        cancel_tool: "cancel".into(),
        input_tool: None,
        idempotent_submit: false,
    };
    Binding { server_name: "server".into(), driver: "tools".into(), toolset }
}

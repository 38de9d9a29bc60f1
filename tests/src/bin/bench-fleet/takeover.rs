//! How long the tasks of a dead worker wait for the living.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::config::{ServerConfig, TaskSettings, Transport};
use mcp_taskd_core::runtime::{Process, Runtime};
use mcp_taskd_core::store::{Heartbeat, Queries as _, Registry as _, WorkerInfo};
use mcp_taskd_core::task::{Binding, Toolset};
use mcp_taskd_core::upstream::SharedUpstream;
use mcp_taskd_tests::rows;
use sqlx::{AssertSqlSafe, Connection as _};
use tokio::time::{Instant, sleep};

use crate::Place;
use crate::upstream::Endless;

const LEASE: Duration = Duration::from_secs(5);
/// What the takeover may take beyond the lease.
const TARGET: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_mins(5);

/// A worker with all that another process would have of its own.
struct Living {
    runtime: Runtime,
    registry: prometheus::Registry,
}

impl Living {
    async fn start(place: &Place, folder: &tempfile::TempDir, server: &Arc<Endless>) -> anyhow::Result<Self> {
        let registry = prometheus::Registry::new();
        let settings = TaskSettings { lease_seconds: 5, ..TaskSettings::default() };
        let transport = Transport::Http { url: "http://127.0.0.1:1/mcp".into(), headers: Vec::new() };
        let mut config = ServerConfig::new("server", transport);
        config.toolsets = vec![rows::toolset()];
        let servers = [(config, Arc::clone(server) as SharedUpstream)];
        let process = Process { role: "bench".into(), polls: true, state_dir: folder.path().to_owned() };
        let runtime = Runtime::start(&settings, process, place.shared().await?, servers, &registry).await?;
        Ok(Self { runtime, registry })
    }

    fn held(&self) -> usize {
        let families = self.registry.gather();
        let held = families.iter().find(|family| family.name() == "mcp_taskd_leases_held");
        held.and_then(|family| family.get_metric().first()).map_or(0, |metric| metric.get_gauge().get_value() as usize)
    }
}

/// Whether the target was met.
pub(crate) async fn run(place: &Place, tasks: usize) -> anyhow::Result<bool> {
    println!("takeover on {}: {tasks} tasks of a worker that dies, two that live, a lease of {LEASE:?}", place.name());
    let store = place.connect().await?;
    let dead = WorkerInfo { lease_ms: i64::try_from(LEASE.as_millis())?, ..rows::worker("dead") };
    store.register(&dead).await?;
    let beating = tokio::spawn({
        let (store, id, held) = (store.clone(), Arc::clone(&dead.id), i64::try_from(tasks)?);
        async move {
            while matches!(store.heartbeat(&id, held).await, Ok(Heartbeat::Renewed { .. })) {
                sleep(LEASE / 3).await;
            }
        }
    });

    let (first_folder, second_folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let server = Arc::new(Endless::default());
    let living =
        [Living::start(place, &first_folder, &server).await?, Living::start(place, &second_folder, &server).await?];
    // One that is polled by the living shows what the others must look like for their polls to find nothing new.
    execute(place, &rows(place, 1, "pattern", None)).await?;
    let started = Instant::now();
    while store.find_task("pattern-1", None, None).await?.is_none_or(|task| task.digest.is_none()) {
        anyhow::ensure!(started.elapsed() < PATIENCE, "a first task is not polled");
        sleep(Duration::from_millis(50)).await;
    }
    execute(place, &rows(place, tasks, "task", Some("pattern-1"))).await?;
    let tasks = tasks + 1;
    beating.abort();
    store.heartbeat(&dead.id, 0).await?;
    let died = Instant::now();

    let held = || living.iter().map(Living::held).sum::<usize>();
    let mut began = None;
    while held() < tasks && died.elapsed() < PATIENCE {
        if held() > 0 {
            began.get_or_insert_with(|| died.elapsed());
        }
        sleep(Duration::from_millis(100)).await;
    }
    let took = died.elapsed();
    let shares: Vec<_> = living.iter().map(Living::held).collect();
    let polled = server.calls();
    for worker in &living {
        worker.runtime.shutdown(Duration::from_secs(30)).await;
    }
    let beyond = took.saturating_sub(LEASE);
    let met = shares.iter().sum::<usize>() >= tasks && beyond <= TARGET;
    println!(
        "  {}  all are owned by the living {:.1} s after the last heartbeat: lease + {:.1} s (target ≤ lease + {} s)",
        if met { "pass" } else { "FAIL" },
        took.as_secs_f64(),
        beyond.as_secs_f64(),
        TARGET.as_secs()
    );
    println!(
        "        the first after {:.1} s; shares {shares:?}; {polled} polls by then",
        began.unwrap_or_default().as_secs_f64()
    );
    Ok(met)
}

/// An insert of rows that are due within the next interval: unowned ones, or, where they look like another row, `dead`'s.
fn rows(place: &Place, count: usize, prefix: &str, like: Option<&str>) -> String {
    let binding = rows::binding("server");
    let Binding { server_name, driver, toolset } = &*binding;
    let Toolset { name, submit_tool, status_tool, cancel_tool, .. } = toolset;
    let (numbers, now) = match place {
        Place::Postgres(_) => {
            (format!("generate_series(1, {count}) AS s (n)"), "(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        }
        Place::Sqlite(_) => (
            format!(
                "(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s) AS s"
            ),
            "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
        ),
    };
    let (owner, digest, fingerprint, pattern) = match like {
        Some(id) => {
            ("'dead'", "p.snapshot_digest", "p.event_fingerprint", format!(", mcp_tasks AS p WHERE p.id = '{id}'"))
        }
        None => ("NULL", "NULL", "NULL", String::new()),
    };
    format!(
        "INSERT INTO mcp_tasks (id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool,
            cancel_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at,
            lease_owner, lease_epoch, created_at, updated_at)
        SELECT '{prefix}-' || n, 'user', 'thread-' || (n % 1000), '{server_name}', '{driver}', '{name}', '{submit_tool}',
            '{status_tool}', '{cancel_tool}', 0, 'remote-{prefix}-' || n, 'working', {digest}, {fingerprint},
            {now} + n % 5000, {owner}, 2, {now}, {now} FROM {numbers}{pattern}"
    )
}

async fn execute(place: &Place, sql: &str) -> anyhow::Result<()> {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    match place {
        Place::Postgres(database) => {
            sql.execute(&mut sqlx::PgConnection::connect(database.url()).await?).await?;
        }
        Place::Sqlite(folder) => {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(place.file(folder));
            sql.execute(&mut sqlx::SqliteConnection::connect_with(&options).await?).await?;
        }
    }
    Ok(())
}

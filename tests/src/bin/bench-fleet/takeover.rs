//! How long the tasks of a dead worker wait for the living.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::config::{ServerConfig, TaskSettings, Transport};
use mcp_taskd_core::runtime::{Process, Runtime};
use mcp_taskd_core::store::{Heartbeat, Registry as _, WorkerInfo};
use mcp_taskd_core::upstream::SharedUpstream;
use sqlx::{AssertSqlSafe, Connection as _};
use tokio::time::{Instant, sleep};

use crate::upstream::Endless;
use crate::{Place, binding};

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
        let mut config = ServerConfig::new(&binding().server_name, transport);
        config.toolsets = vec![binding().toolset];
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
    let dead = WorkerInfo {
        id: "dead".into(),
        host: "another".into(),
        pid: 1,
        role: "all".into(),
        version: "0".into(),
        lease_ms: i64::try_from(LEASE.as_millis())?,
        polls: true,
    };
    store.register(&dead).await?;
    let beating = tokio::spawn({
        let (store, id, held) = (store.clone(), Arc::clone(&dead.id), i64::try_from(tasks)?);
        async move {
            while matches!(store.heartbeat(&id, held).await, Ok(Heartbeat::Renewed { .. })) {
                sleep(LEASE / 3).await;
            }
        }
    });
    fill(place, tasks).await?;

    let (first_folder, second_folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let server = Arc::new(Endless::default());
    let living =
        [Living::start(place, &first_folder, &server).await?, Living::start(place, &second_folder, &server).await?];
    // Whoever lives has looked around a few times.
    sleep(Duration::from_secs(3)).await;
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

/// Rows that `dead` owns, due within the next interval.
async fn fill(place: &Place, tasks: usize) -> anyhow::Result<()> {
    let binding = binding();
    let toolset = &binding.toolset;
    let (numbers, now) = match place {
        Place::Postgres(_) => (
            format!("FROM generate_series(1, {tasks}) AS s (n)"),
            "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
        ),
        Place::Sqlite(_) => (
            format!(
                "FROM (WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {tasks}) SELECT n FROM s)"
            ),
            "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
        ),
    };
    let sql = format!(
        "INSERT INTO mcp_tasks (id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool,
            cancel_tool, idempotent_submit, remote_task_id, status, next_due_at, lease_owner, lease_epoch, created_at,
            updated_at)
        SELECT 'task-' || n, 'user', 'thread-' || (n % 1000), '{}', '{}', '{}', '{}', '{}', '{}', 0, 'remote-' || n,
            'working', {now} + n % 5000, 'dead', 2, {now}, {now} {numbers}",
        binding.server_name,
        binding.driver,
        toolset.name,
        toolset.submit_tool,
        toolset.status_tool,
        toolset.cancel_tool,
    );
    match place {
        Place::Postgres(database) => {
            let mut connection = sqlx::PgConnection::connect(database.url()).await?;
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        }
        Place::Sqlite(folder) => {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(place.file(folder));
            let mut connection = sqlx::SqliteConnection::connect_with(&options).await?;
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        }
    }
    Ok(())
}

//! A runtime on a SQLite file with scripted servers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::config::{Secrets, ServerConfig, TaskSettings, Transport};
use mcp_taskd_core::runtime::{Process, Runtime, Surroundings};
use mcp_taskd_core::service::{Access, Service, Submit, Submitted};
use mcp_taskd_core::store::memory::MemoryStore;
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::store::{SharedStore, TaskFilter};
use mcp_taskd_core::task::{Status, TaskRecord, Toolset};
use mcp_taskd_core::upstream::SharedUpstream;
use mcp_taskd_core::world::World;
use mcp_taskd_tests::scripted::Scripted;
use mcp_taskd_tests::sim::clock::Skewed;
use mcp_taskd_tests::wait::until;
use prometheus::Registry;
use serde_json::value::RawValue;
use tokio::time::Instant;

/// What a test works on.
pub(crate) struct Bench {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) store: SharedStore,
    pub(crate) servers: Vec<(String, Arc<Scripted>)>,
    pub(crate) settings: TaskSettings,
    pub(crate) world: World,
}

/// A running worker of it.
pub(crate) struct Running {
    pub(crate) runtime: Runtime,
    pub(crate) registry: Registry,
}

pub(crate) fn settings() -> TaskSettings {
    TaskSettings {
        poll_interval_seconds: 1,
        lease_seconds: 5,
        max_poll_backoff_seconds: 2,
        input_required_poll_interval_seconds: 5,
        ..TaskSettings::default()
    }
}

impl Bench {
    pub(crate) async fn new(servers: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqlStore::connect_sqlite(folder.path().join("tasks.db")).await.unwrap();
        store.migrate().await.unwrap();
        let servers = servers.iter().map(|name| ((*name).to_owned(), Arc::new(Scripted::new()))).collect();
        Self { folder, store: Arc::new(store), servers, settings: settings(), world: World::system() }
    }

    /// The same on a store in memory, for many tasks.
    pub(crate) fn in_memory(servers: &[&str]) -> Self {
        Self::in_memory_of(World::system(), servers)
    }

    /// The same in virtual time, for tests with `start_paused`: what is watched for a while takes none, and has all it needs.
    pub(crate) fn in_virtual_time(servers: &[&str]) -> Self {
        let clock = Arc::new(Skewed::new(Instant::now(), 0));
        Self::in_memory_of(World { clock, ..World::system() }, servers)
    }

    fn in_memory_of(world: World, servers: &[&str]) -> Self {
        let servers = servers.iter().map(|name| ((*name).to_owned(), Arc::new(Scripted::new()))).collect();
        let store = Arc::new(MemoryStore::new(Arc::clone(&world.clock)));
        Self { folder: tempfile::tempdir().unwrap(), store, servers, settings: settings(), world }
    }

    pub(crate) fn server(&self) -> &Scripted {
        &self.servers[0].1
    }

    pub(crate) async fn start(&self) -> Running {
        self.start_with(&self.settings, true, &self.store, |_| {}).await
    }

    pub(crate) async fn start_with(
        &self,
        settings: &TaskSettings,
        polls: bool,
        store: &SharedStore,
        change: impl Fn(&mut ServerConfig),
    ) -> Running {
        let registry = Registry::new();
        let state: PathBuf = self.folder.path().join("state");
        let servers = self.servers.iter().map(|(name, server)| {
            let transport = Transport::Http { url: "http://127.0.0.1:1/mcp".into(), headers: Vec::new() };
            let mut config = ServerConfig::new(name, transport);
            let toolset = Toolset::new("report", "submit", "status", "cancel");
            config.toolsets = vec![Toolset { input_tool: Some("input".into()), ..toolset }];
            change(&mut config);
            (config, Arc::clone(server) as SharedUpstream)
        });
        let servers: Vec<_> = servers.collect();
        let process = Process { role: "test".into(), polls, state_dir: state };
        let surroundings = Surroundings { world: self.world.clone(), connections: None };
        let store = Arc::clone(store);
        let runtime = Runtime::start_in(surroundings, settings, process, store, servers, &registry).await.unwrap();
        Running { runtime, registry }
    }

    /// The row, read from the store.
    pub(crate) async fn task(&self, id: &str) -> TaskRecord {
        self.store.find_task(id, None, None).await.unwrap().expect("the task is on record")
    }

    pub(crate) async fn wait_for(&self, id: &str, status: Status) -> TaskRecord {
        until(&format!("{id} is {status}"), || async { self.task(id).await.status == status }).await;
        self.task(id).await
    }

    /// The kinds of the events of a task.
    pub(crate) async fn events(&self, id: &str) -> Vec<String> {
        let events = self.store.list_events(0, &TaskFilter::default(), 1_000).await.unwrap();
        events.into_iter().filter(|event| event.task_id == id).map(|event| event.kind).collect()
    }
}

impl Running {
    pub(crate) fn service(&self) -> &Service {
        self.runtime.service()
    }

    /// A counter's or gauge's value, summed over the series whose labels include `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == format!("mcp_taskd_{name}"));
        let series = family.unwrap_or_else(|| panic!("no metric {name}")).get_metric().iter();
        let matching = series.filter(|series| {
            labels.iter().all(|(key, value)| {
                series.get_label().iter().any(|label| label.name() == *key && label.value() == *value)
            })
        });
        matching.map(|series| series.get_counter().get_value() + series.get_gauge().get_value()).sum()
    }

    pub(crate) async fn submit(&self, server: &str) -> TaskRecord {
        self.try_submit(submit(server)).await.unwrap().task
    }

    pub(crate) async fn try_submit(&self, submit: Submit) -> Result<Submitted, mcp_taskd_core::service::ServiceError> {
        self.service().submit(submit).await
    }

    pub(crate) async fn stop(self) {
        self.runtime.shutdown(Duration::from_secs(10)).await;
    }
}

pub(crate) fn submit(server: &str) -> Submit {
    Submit {
        user_id: "ann".into(),
        thread_id: "t".into(),
        server: server.into(),
        task: "report".into(),
        arguments: RawValue::from_string(r#"{"title":"q3"}"#.into()).unwrap(),
        run_id: None,
        tool_call_id: None,
        idempotency_key: None,
        secrets: Secrets::default(),
    }
}

pub(crate) fn anyone() -> Access {
    Access::default()
}

//! Where the daemon takes its parts from: the only calls into the core that build something.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mcp_taskd_core::catalog::{Live, LiveOptions, Personal, Tool, Withheld};
use mcp_taskd_core::clock::{Clock, SystemClock};
use mcp_taskd_core::config::edit::Seal;
use mcp_taskd_core::config::{
    self, Backend, ConfigError, Environment, Extensions, LoadOptions, Secrets, Settings, Source,
};
use mcp_taskd_core::credentials::{Chains, Keys, Vault};
use mcp_taskd_core::runtime;
use mcp_taskd_core::store::memory::MemoryStore;
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::store::{ApiKeys, Deliveries, SharedState, SharedStore, StoreError, StoreErrorKind, TokenChains};
use mcp_taskd_core::upstream::oauth::ChainStore;
use mcp_taskd_core::upstream::{
    self, CallError, CallErrorKind, Connections, Factory, Method, Scope, SharedUpstream, ToolCall, Upstreams,
};
use secrecy::ExposeSecret as _;
use serde_json::value::RawValue;
use tokio::sync::watch;

use crate::daemon::{Tasks, Tools};
use crate::delivery::{self, Couriers, Subscribers};
use crate::exit::{Failure, Result};
use crate::health::{Lease, Pulse};
use crate::trace::Tracing;

/// What is left of the grace period for closing sessions and connections after the drain.
const CLOSING: Duration = Duration::from_secs(1);
/// The most of the grace period that deliveries under way may take, as calls of servers may.
const DELIVERIES: Duration = Duration::from_secs(5);

/// Where the configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--extensions-config`.
    pub extensions_config: Option<PathBuf>,
    /// `--set`: dotted keys and their values.
    pub overrides: Vec<(String, String)>,
}

/// Both files, read and checked.
#[derive(Debug, Clone, Default)]
pub struct Configuration {
    /// `config.yaml`.
    pub settings: Settings,
    /// `extensions_config.json`.
    pub extensions: Extensions,
    /// What was odd but usable in the former.
    pub warnings: Vec<String>,
    /// Where the latter comes from.
    pub source: Source,
}

/// Reads and checks both files.
pub fn load(origins: &Origins) -> std::result::Result<Configuration, ConfigError> {
    let source = Source {
        explicit: origins.extensions_config.clone(),
        environment: Environment::of_process(),
        directory: PathBuf::from("."),
    };
    // Whoever mends both files wants to know of both.
    let (loaded, extensions) = match (settings(origins), source.load()) {
        (Ok(loaded), Ok(extensions)) => (loaded, extensions),
        (Err(one), Err(other)) => return Err(one.and(&other)),
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    config::check(&loaded.settings, &extensions)?;
    Ok(Configuration { settings: loaded.settings, extensions, warnings: loaded.warnings, source })
}

/// Reads and checks `config.yaml`.
pub fn settings(origins: &Origins) -> std::result::Result<config::Loaded, ConfigError> {
    let options = LoadOptions {
        path: origins.config.clone(),
        directory: PathBuf::from("."),
        environment: Environment::of_process(),
        overrides: origins.overrides.clone(),
    };
    Settings::load(&options)
}

/// The effective configuration, secrets masked.
pub fn show(configuration: &Configuration) -> serde_json::Value {
    serde_json::json!({
        "config": configuration.settings.json(),
        "extensions_config": configuration.extensions.json(),
    })
}

/// The JSON Schema of `config.yaml`.
pub fn schema() -> serde_json::Value {
    config::json_schema()
}

/// The JSON Schema of `extensions_config.json`.
pub fn extensions_schema() -> serde_json::Value {
    config::extensions_schema()
}

/// The enabled servers, none of them connected yet; for a look from outside the daemon.
pub fn upstreams(configuration: &Configuration) -> std::result::Result<Upstreams, ConfigError> {
    let options = upstream::Options::new(&configuration.settings.server.state_dir);
    upstream::build(&configuration.extensions, &options)
}

/// A connected store, and what only its owner does with it.
pub struct Backing {
    /// The ports.
    pub store: SharedStore,
    keys: Arc<dyn ApiKeys>,
    deliveries: Arc<dyn Deliveries>,
    sql: Option<SqlStore>,
}

/// Connects once.
pub async fn connect(settings: &Settings) -> std::result::Result<Backing, StoreError> {
    let database = &settings.database;
    let sql = match database.backend {
        Backend::Memory => {
            let store = Arc::new(MemoryStore::new(Arc::new(SystemClock)));
            let keys = Arc::<MemoryStore>::clone(&store);
            return Ok(Backing { keys, deliveries: Arc::<MemoryStore>::clone(&store), store, sql: None });
        }
        Backend::Sqlite => {
            let (folder, key) = match &database.sqlite_dir {
                Some(folder) => (folder, "database.sqlite_dir"),
                None => (&settings.server.state_dir, "server.state_dir"),
            };
            create(folder, key)?;
            SqlStore::connect_sqlite(folder.join("mcp-taskd.sqlite3")).await?
        }
        Backend::Postgres => {
            // Loading has seen to it that there is one.
            let url = database.postgres_url.as_ref().map(|url| url.expose_secret().to_owned()).unwrap_or_default();
            SqlStore::connect_postgres(&url, database.max_connections).await?
        }
    };
    let [keys, deliveries] = [Arc::new(sql.clone()), Arc::new(sql.clone())];
    Ok(Backing { store: Arc::new(sql.clone()), keys, deliveries, sql: Some(sql) })
}

/// Makes a folder that is this user's alone: results lie in it. One that exists keeps its mode.
fn create(folder: &Path, key: &'static str) -> std::result::Result<(), StoreError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let unusable = |what, error: std::io::Error| {
        let message = format!("the folder {} cannot be {what}: {error}", folder.display());
        StoreError::new(StoreErrorKind::Schema, key, message)
    };
    builder.create(folder).map_err(|error| unusable("made", error))?;
    #[cfg(unix)]
    {
        use rustix::fs::Access;
        // SQLite would say that it cannot open the file, which waiting may heal.
        let access = rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK);
        access.map_err(|error| unusable("written", error.into()))?;
    }
    Ok(())
}

impl Backing {
    /// Brings the schema up to date; returns the names of the applied migrations.
    pub async fn migrate(&self) -> std::result::Result<Vec<&'static str>, StoreError> {
        match &self.sql {
            Some(sql) => sql.migrate().await,
            None => Ok(Vec::new()),
        }
    }

    /// Shows what the store's statements cost; nothing where there are none.
    pub fn register_metrics(&self, registry: &prometheus::Registry) -> std::result::Result<(), prometheus::Error> {
        self.sql.as_ref().map_or(Ok(()), |sql| sql.register_metrics(registry))
    }

    /// What the processes on this store share; nothing where there can be only one.
    pub fn shared(&self) -> Option<Arc<dyn SharedState>> {
        self.sql.clone().map(|sql| -> Arc<dyn SharedState> { Arc::new(sql) })
    }

    /// Where chains of OAuth tokens are kept; in the process alone where nothing survives it.
    fn chains(&self, settings: &Settings) -> Option<Arc<dyn ChainStore>> {
        let rows: Arc<dyn TokenChains> = Arc::new(self.sql.clone()?);
        let keys = Keys::new(&settings.credentials_keys, &settings.server.state_dir);
        Some(Arc::new(Chains::new(rows, keys)))
    }

    /// The register of API keys.
    pub fn keys(&self) -> Arc<dyn ApiKeys> {
        Arc::clone(&self.keys)
    }

    /// The deliveries of events.
    pub fn deliveries(&self) -> Arc<dyn Deliveries> {
        Arc::clone(&self.deliveries)
    }

    /// The configured subscribers, where there are any.
    pub fn subscribers(&self, settings: &Settings) -> std::result::Result<Option<Subscribers>, ConfigError> {
        Subscribers::new(&settings.webhooks, SharedStore::clone(&self.store), self.deliveries())
    }

    /// Closes the connections.
    pub async fn close(&self) {
        if let Some(sql) = &self.sql {
            sql.close().await;
        }
    }
}

/// The running core: worker, service, catalogue, upstream servers.
pub struct Runtime {
    /// The façade.
    pub tasks: Arc<dyn Tasks>,
    /// The tools.
    pub tools: Arc<dyn Tools>,
    /// The catalogue behind them, which follows the extensions file.
    pub live: Arc<Live>,
    /// What users connect to themselves.
    pub personal: Arc<Personal>,
    /// Who hears of events, where somebody does.
    pub subscribers: Option<Subscribers>,
    /// The store's time.
    pub clock: Arc<dyn Clock>,
    /// How long ago the worker loop last ran.
    pub pulse: Option<Pulse>,
    /// Whether the worker's lease is certain.
    pub lease: Option<Lease>,
    core: runtime::Runtime,
    couriers: Option<Couriers>,
    tracing: Option<Tracing>,
    grace: Duration,
}

/// Registers a worker and starts its loop: with `polls` it claims and polls tasks, without it only submits and reads.
///
/// `metrics` takes the core's own metrics.
pub async fn start(
    configuration: &Configuration,
    backing: &Backing,
    role: &str,
    polls: bool,
    metrics: &prometheus::Registry,
) -> Result<Runtime> {
    let Configuration { settings, extensions, source, .. } = configuration;
    let state_dir = settings.server.state_dir.clone();
    create(&state_dir, "server.state_dir")?;
    backing.register_metrics(metrics).map_err(anyhow::Error::from)?;
    let sessions = upstream::Metrics::register(metrics, extensions).map_err(anyhow::Error::from)?;
    let guard = std::env::current_exe().ok().map(|program| upstream::guard::Guard::new(program, [crate::GUARD]));
    let tracing = Tracing::start().map_err(|error| error.context("OTEL_EXPORTER_OTLP_…"))?;
    let factory = Factory::new(&upstream::Options {
        metrics: Some(sessions),
        guard,
        chains: backing.chains(settings),
        layer: tracing.as_ref().map(Tracing::layer).unwrap_or_default(),
        ..upstream::Options::new(&state_dir)
    })?;
    let options = LiveOptions { source: source.clone(), settings: settings.clone(), shared: backing.shared() };
    let keys = &settings.credentials_keys;
    let seal = (!keys.is_empty()).then(|| Arc::new(Vault::new(keys)) as Arc<dyn Seal>);
    let personal = Arc::new(Personal::new(&state_dir, settings, &source.environment, seal, &factory));
    let live = Arc::new(Live::new(extensions, factory, options, metrics)?);
    let upstreams = live.upstreams();
    let servers = extensions
        .servers
        .values()
        .filter_map(|server| Some((server.clone(), Arc::clone(upstreams.find(&server.name)?))));
    let process = runtime::Process { role: role.to_owned(), polls, state_dir };
    let connections = Some(Arc::clone(&personal) as Arc<dyn Connections>);
    let around = runtime::Surroundings { connections, ..runtime::Surroundings::default() };
    let store = SharedStore::clone(&backing.store);
    let core = runtime::Runtime::start_in(around, &settings.mcp_tasks, process, store, servers, metrics)
        .await
        .map_err(|error| match error {
            runtime::StartError::Store(error) => error.into(),
            error @ runtime::StartError::Metrics(_) => Failure::from(anyhow::Error::from(error)),
        })?;
    let worker = core.service().worker().clone();
    let leased = worker.clone();
    let clock = worker.clock();
    let subscribers = backing.subscribers(settings)?;
    let couriers = match &subscribers {
        // Who only serves leaves deliveries to those who poll.
        Some(subscribers) if polls => {
            let owner = worker.clone();
            let identity: delivery::Identity = Arc::new(move || owner.id().filter(|_| owner.is_leased()));
            let options =
                delivery::Options { identity, clock: Arc::clone(&clock), policy: settings.mcp_tasks.policy() };
            Some(Couriers::start(subscribers, &options, metrics).await?)
        }
        _ => None,
    };
    let grace = Duration::from_secs(settings.server.shutdown_grace_seconds).saturating_sub(CLOSING);
    Ok(Runtime {
        tasks: Arc::new(core.service().clone()),
        tools: Arc::new(Discovered { live: Arc::clone(&live), personal: Arc::clone(&personal) }),
        live,
        personal,
        subscribers,
        clock,
        pulse: Some(Box::new(move || worker.since_beat())),
        lease: Some(Box::new(move || leased.is_leased())),
        core,
        couriers,
        tracing,
        grace,
    })
}

impl Runtime {
    /// Drains: ends deliveries, releases what is held, waits for open submits, marks the worker dead, ends upstream sessions.
    pub async fn drain(self) {
        let started = tokio::time::Instant::now();
        if let Some(couriers) = self.couriers {
            // First, while the worker is alive: what it has under way is its own.
            couriers.drain((self.grace / 2).min(DELIVERIES)).await;
        }
        self.core.shutdown(self.grace.saturating_sub(started.elapsed())).await;
        tokio::join!(self.live.close(), self.personal.close());
        if let Some(tracing) = self.tracing {
            tracing.stop().await;
        }
    }
}

/// The catalogue, users' own tools beside it, and the way to the servers behind them.
struct Discovered {
    live: Arc<Live>,
    personal: Arc<Personal>,
}

impl Discovered {
    /// The way to a tool's server for a user.
    fn upstream(&self, server: &str, user_id: &str) -> std::result::Result<SharedUpstream, CallError> {
        if let Some(upstream) = self.live.upstream(server) {
            return Ok(upstream);
        }
        let found = self.personal.find(server, user_id).map(|connected| connected.upstream);
        // Whoever has no such connection is told no more than that.
        found.map_err(|_| CallError::new(CallErrorKind::Connect, format!("server {server:?} is not configured")))
    }
}

#[async_trait]
impl Tools for Discovered {
    async fn tools(&self, user_id: &str) -> Vec<Arc<Tool>> {
        let (view, own) = tokio::join!(self.live.view(), self.personal.tools(user_id));
        view.tools.iter().cloned().chain(own).collect()
    }

    async fn find(&self, user_id: &str, name: &str) -> Option<Arc<Tool>> {
        match self.live.find(name).await {
            Some(tool) => Some(tool),
            None => self.personal.find_tool(user_id, name).await,
        }
    }

    fn last_find(&self, name: &str) -> Option<Arc<Tool>> {
        self.live.last_view().find(name).cloned()
    }

    async fn problems(&self) -> Vec<String> {
        self.live.view().await.problems.clone()
    }

    fn last_problems(&self) -> Vec<String> {
        self.live.last_view().problems.clone()
    }

    fn last_withheld(&self) -> Vec<Withheld> {
        self.live.last_view().withheld.clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.live.changes()
    }

    fn allows_submit(&self, server: &str, user_id: &str, task: &str) -> bool {
        self.live.allows_submit(server, task) && self.personal.allows_submit(server, user_id, task)
    }

    async fn call(
        &self,
        tool: &Tool,
        arguments: &RawValue,
        scope: &Scope,
        secrets: &Secrets,
    ) -> std::result::Result<Box<RawValue>, CallError> {
        let upstream = self.upstream(&tool.server, &scope.user_id)?;
        let headers = upstream.context_headers(secrets).map_err(|why| CallError::new(CallErrorKind::Denied, why))?;
        // An ordinary call has no deadline of the daemon's own but for `tool_call_timeout` on stdio (109), which the
        // transport sees to.
        let (meta, headers) = (&[], &*headers);
        let call = ToolCall {
            method: Method::Call,
            tool: &tool.raw_name,
            arguments,
            meta,
            headers,
            scope,
            task: None,
            deadline: None,
        };
        let result = upstream.call_tool(call).await?;
        Ok(without_credentials(result, |text| upstream.scrub(text)))
    }
}

/// An error's text may repeat the credentials that were sent (148). Any other result is passed on untouched.
fn without_credentials(result: Box<RawValue>, scrub: impl FnOnce(&str) -> String) -> Box<RawValue> {
    #[derive(serde::Deserialize)]
    struct Head {
        #[serde(rename = "isError", default)]
        is_error: bool,
    }
    match serde_json::from_str(result.get()) {
        Ok(Head { is_error: true }) => RawValue::from_string(scrub(result.get())).unwrap_or(result),
        _ => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_does_not_show_agents_what_was_sent_with_the_call_148() {
        let scrubbed = |text: &str| {
            let result = RawValue::from_string(text.to_owned()).unwrap();
            without_credentials(result, |text| text.replace("hunter2", "***")).get().to_owned()
        };
        let error = r#"{"isError":true,"content":[{"type":"text","text":"hunter2 is no key"}]}"#;
        assert_eq!(scrubbed(error), error.replace("hunter2", "***"));
        for untouched in [r#"{"isError":false,"content":"hunter2"}"#, r#"{"n": 1.10,"content":"hunter2"}"#] {
            assert_eq!(scrubbed(untouched), untouched);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_new_state_folder_is_its_users_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("state");
        create(&folder, "server.state_dir").unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        create(&folder, "server.state_dir").unwrap();
        std::fs::write(folder.join("file"), "").unwrap();
        let error = create(&folder.join("file").join("x"), "server.state_dir").unwrap_err();
        assert_eq!(error.operation, "server.state_dir");
    }
}

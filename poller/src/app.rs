//! The composition root: configuration → store → runtime → API and gateway, and the way back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use mcp_taskd_core::catalog::Guardrail;
use mcp_taskd_core::clock::{Clock as _, SystemClock};
use mcp_taskd_core::config::{Backend, Settings};
use mcp_taskd_core::store::{SharedStore, StoreErrorKind};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::auth::Authenticator;
use crate::daemon::Daemon;
use crate::exit::{Exit, Failure, Result};
use crate::gateway::{self, Caller, Gateway};
use crate::health::Health;
use crate::lifecycle::Shutdown;
use crate::listener;
use crate::metrics::Metrics;
use crate::reload::{Hangups, Reload};
use crate::supervisor;
use crate::wiring::{self, Backing, Configuration, Origins, Runtime};

/// How long an unreachable store is retried at start.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);

/// What a process of the fleet does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Serves and polls.
    #[default]
    All,
    /// Serves the API and the gateway; others poll.
    Gateway,
    /// Polls; serves probes and metrics only.
    Worker,
}

impl Role {
    /// The name in the workers' register.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Gateway => "gateway",
            Self::Worker => "worker",
        }
    }
}

/// Reads the configuration and logs what is odd about it.
pub fn load(origins: &Origins) -> Result<Configuration> {
    let configuration = wiring::load(origins)?;
    for warning in configuration.warnings.iter().chain(&configuration.extensions.warnings) {
        tracing::warn!("{warning}");
    }
    Ok(configuration)
}

/// Connects to the store, retrying for up to 30 s what may heal; then exit 69.
pub async fn connect(settings: &Settings) -> Result<Backing> {
    let retries = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(Duration::from_secs(3))
        .with_jitter()
        .without_max_times()
        .with_total_delay(Some(CONNECT_PATIENCE));
    let mut last = None;
    let connecting = (|| wiring::connect(settings))
        .retry(retries)
        .when(|error| matches!(error.kind, StoreErrorKind::Unavailable | StoreErrorKind::Unknown))
        .notify(|error, pause| {
            tracing::warn!(%error, retry_in = ?pause, "the store cannot be reached");
            last = Some(error.to_string());
        });
    // The retries bound the pauses alone; here are the attempts as well.
    match tokio::time::timeout(CONNECT_PATIENCE, connecting).await {
        Ok(connected) => Ok(connected?),
        Err(_) => Err(Failure::new(Exit::Unavailable, last.unwrap_or_else(|| "the store does not answer".into()))),
    }
}

/// Connects and sees to the schema: SQLite is migrated, PostgreSQL must have been (157).
pub async fn open(settings: &Settings) -> Result<Backing> {
    let backing = connect(settings).await?;
    if settings.database.backend != Backend::Postgres {
        for name in backing.migrate().await? {
            tracing::info!(migration = name, "applied");
        }
    }
    let (known, applied) = backing.store.schema_version().await?;
    check_schema(known, applied)?;
    if applied > Some(known) {
        tracing::info!(
            applied,
            known,
            "the schema is of a newer version of this program; that of the next one will do"
        );
    }
    Ok(backing)
}

fn check_schema(known: i64, applied: Option<i64>) -> Result<()> {
    match applied {
        Some(applied) if applied >= known => Ok(()),
        applied => Err(Failure::new(
            Exit::Config,
            format!(
                "the database's schema has version {}, this program needs {known}: run `mcp-taskd migrate up` first",
                applied.unwrap_or(0)
            ),
        )),
    }
}

/// A process on a store: what `serve`, `mcp` and the commands that write have in common.
pub struct Process {
    /// The parts that are served.
    pub daemon: Daemon,
    runtime: Runtime,
    backing: Backing,
    background: [tokio::task::JoinHandle<()>; 2],
}

impl Process {
    /// Opens the store and starts the runtime.
    pub async fn start(configuration: &Configuration, role: &str, polls: bool, shutdown: &Shutdown) -> Result<Self> {
        let settings = &configuration.settings;
        let backing = tokio::select! {
            backing = open(settings) => backing?,
            () = shutdown.soft().cancelled() => return Err(interrupted()),
        };
        let store = SharedStore::clone(&backing.store);
        let registry = prometheus::Registry::new();
        let servers = configuration.extensions.servers.values().filter(|server| server.has_toolsets());
        let names = servers.map(|server| server.name.as_str());
        let metrics =
            Metrics::register(&registry, store.backend(), names, SystemClock.now_ms()).map_err(anyhow::Error::from)?;
        let polls = polls && settings.mcp_tasks.enabled;
        let mut runtime = tokio::select! {
            runtime = wiring::start(configuration, &backing, role, polls, &registry) => runtime?,
            () = shutdown.soft().cancelled() => return Err(interrupted()),
        };

        let keys = backing.keys();
        let authenticator = Authenticator::configured(&settings.auth, keys, Arc::clone(&runtime.clock), &registry)?;
        let pulse = runtime.pulse.take().unwrap_or_else(|| Box::new(|| Duration::ZERO));
        let lease = runtime.lease.take().unwrap_or_else(|| Box::new(|| true));
        let daemon = Daemon {
            tasks: Arc::clone(&runtime.tasks),
            queries: store.clone(),
            registry: store,
            tools: Arc::clone(&runtime.tools),
            live: Arc::clone(&runtime.live),
            personal: Arc::clone(&runtime.personal),
            subscribers: runtime.subscribers.clone(),
            policy: settings.mcp_tasks.policy(),
            retention_ms: settings.mcp_tasks.retention_days.map(|days| i64::from(days) * 86_400_000),
            builtin_tools: settings.gateway.builtin_tools,
            guardrail: Arc::new(Guardrail::new(&settings.guardrails)),
            tool_search: settings.tool_search.enabled.then_some(settings.tool_search.auto_promote_top_k),
            authenticator: Arc::new(authenticator),
            health: Arc::new(Health::new(polls, pulse, lease)),
            shutdown: shutdown.clone(),
            metrics,
            clock: Arc::clone(&runtime.clock),
        };
        let refreshing = tokio::spawn({
            let daemon = daemon.clone();
            async move { daemon.metrics.refresh(daemon.queries, daemon.clock, daemon.policy, daemon.shutdown).await }
        });
        let following = tokio::spawn({
            let (live, personal) = (Arc::clone(&daemon.live), Arc::clone(&daemon.personal));
            let shutdown = shutdown.clone();
            async move {
                tokio::join!(live.run(shutdown.soft()), personal.run(shutdown.soft()));
            }
        });
        daemon.health.set_started();
        Ok(Self { daemon, runtime, backing, background: [refreshing, following] })
    }

    /// The store that it runs on.
    pub fn store(&self) -> &SharedStore {
        &self.backing.store
    }

    /// Drains; a hard stop ends that at once and leaves the rest to takeover by others.
    pub async fn stop(self) -> Result<()> {
        let shutdown = self.daemon.shutdown.clone();
        shutdown.drain();
        let quiet = || self.background.iter().for_each(tokio::task::JoinHandle::abort);
        let draining = async {
            self.runtime.drain().await;
            // Whoever reads the store in the background must not find it closed, and complain.
            quiet();
            self.backing.close().await;
        };
        let drained = tokio::select! {
            () = draining => true,
            () = shutdown.hard().cancelled() => false,
        };
        quiet();
        if drained { Ok(()) } else { Err(cut_short()) }
    }
}

fn interrupted() -> Failure {
    Failure::failed("stopped before the start was complete")
}

fn cut_short() -> Failure {
    Failure::failed("stopped before the drain was complete; another worker takes over what was held")
}

/// `serve`: until a signal, or a task that ends unasked.
pub async fn serve(origins: &Origins, role: Role) -> Result<()> {
    let hangups = Hangups::new().map_err(anyhow::Error::from)?;
    let configuration = load(origins)?;
    let server = &configuration.settings.server;
    let shutdown = Shutdown::new();
    shutdown.watch_signals(Duration::from_secs(server.shutdown_grace_seconds)).map_err(anyhow::Error::from)?;
    // An address that is taken is known before anything is started.
    let admin = match server.admin_listen {
        Some(address) => Some(bind(address, "server.admin_listen").await?),
        None => None,
    };
    // A worker has nothing to serve but probes and metrics.
    let main = match (role, &admin) {
        (Role::Worker, Some(_)) => None,
        _ => Some(bind(server.listen, "server.listen").await?),
    };

    let process = Process::start(&configuration, role.as_str(), role != Role::Gateway, &shutdown).await?;
    let daemon = process.daemon.clone();
    let closing = CancellationToken::new();
    let verifying = tokio::spawn({
        let (authenticator, closing) = (Arc::clone(&daemon.authenticator), closing.clone());
        async move { authenticator.run(&closing).await }
    });
    let mut servers = JoinSet::new();
    if let Some(main) = main {
        tracing::info!(address = %local(&main), role = role.as_str(), store = daemon.queries.backend(), "listening");
        let routes = if role == Role::Worker {
            api::admin(daemon.clone())
        } else {
            let gateway = gateway::routes(Gateway::new(daemon.clone()), &shutdown);
            api::public(daemon.clone(), gateway, admin.is_none())
        };
        servers.spawn(listener::run(main, routes, closing.clone()));
    }
    if let Some(admin) = admin {
        tracing::info!(address = %local(&admin), "listening for probes and metrics");
        servers.spawn(listener::run(admin, api::admin(daemon), closing.clone()));
    }

    let attending = tokio::spawn(supervisor::attend(process.daemon.clone()));
    let reload =
        Reload { origins: origins.clone(), running: configuration.settings.clone(), daemon: process.daemon.clone() };
    let reloading = tokio::spawn(reload.attend(hangups));
    let failed = tokio::select! {
        () = shutdown.soft().cancelled() => None,
        _ = servers.join_next() => Some(Failure::failed("a listener ended unasked")),
    };
    supervisor::stopping();
    // Probes and reads are answered to the end of the drain, so that a load balancer sees it.
    let stopped = process.stop().await;
    closing.cancel();
    tokio::select! {
        () = async { while servers.join_next().await.is_some() {} } => {}
        // What was held has been handed over; only who asked last, or does not read its answer, is cut off.
        () = shutdown.hard().cancelled() => tracing::warn!("connections that are still open are cut off"),
    };
    attending.abort();
    verifying.abort();
    reloading.abort();
    match failed {
        Some(failure) => Err(failure),
        None => stopped,
    }
}

async fn bind(address: SocketAddr, key: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("; perhaps a daemon runs already, else choose another with --set {key}=ADDRESS:PORT")
            }
            _ => String::new(),
        };
        Failure::failed(format!("{key}: cannot listen on {address}: {error}{hint}"))
    })
}

fn local(listener: &TcpListener) -> String {
    listener.local_addr().map_or_else(|_| "unknown".into(), |address| address.to_string())
}

/// `mcp`: the gateway over stdio, a full worker beside others; drains at the end of input.
pub async fn mcp(origins: &Origins, user_id: String) -> Result<()> {
    let configuration = load(origins)?;
    let shutdown = Shutdown::new();
    let grace = Duration::from_secs(configuration.settings.server.shutdown_grace_seconds);
    shutdown.watch_signals(grace).map_err(anyhow::Error::from)?;
    let process = Process::start(&configuration, "mcp", true, &shutdown).await?;
    let gateway = Gateway::local(process.daemon.clone(), Caller::new(user_id));
    let served = gateway::serve_stdio(gateway, &shutdown).await;
    let stopped = process.stop().await;
    served.map_err(Failure::from).and(stopped)
}

/// `migrate up`: the names of the migrations that were applied.
pub async fn migrate(origins: &Origins) -> Result<Vec<&'static str>> {
    let backing = connect(&load(origins)?.settings).await?;
    let applied = backing.migrate().await?;
    backing.close().await;
    Ok(applied)
}

/// `migrate status`: the newest known and the newest applied migration.
pub async fn schema_version(origins: &Origins) -> Result<(i64, Option<i64>)> {
    let backing = connect(&load(origins)?.settings).await?;
    let version = backing.store.schema_version().await?;
    backing.close().await;
    Ok(version)
}

/// `check-config --connect`: reaches the store and lists every server's tools; returns what is wrong.
pub async fn check_connections(configuration: &Configuration) -> Result<Vec<String>> {
    let shutdown = Shutdown::new();
    let process = Process::start(configuration, "check", false, &shutdown).await?;
    let problems = process.daemon.tools.problems().await;
    process.stop().await?;
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_schema_is_a_configuration_error_that_names_the_command_157() {
        let failure = check_schema(3, Some(2)).unwrap_err();
        assert_eq!(failure.exit, Exit::Config);
        assert!(failure.error.to_string().contains("migrate up"));
        assert!(check_schema(3, None).is_err());
        assert!(check_schema(3, Some(3)).is_ok());
        assert!(check_schema(3, Some(4)).is_ok(), "a newer one during a rolling upgrade");
    }
}

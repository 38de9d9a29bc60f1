//! The composition of store, servers, worker and service: what the daemon runs, and what a Rust agent can embed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;

use crate::config::{ServerConfig, TaskSettings};
use crate::driver::Routes;
use crate::service::Service;
use crate::store::{SharedStore, StoreError};
use crate::upstream::{Connections, SharedUpstream};
use crate::worker::{Metrics, Options, Worker};
use crate::world::World;

/// What a process of the fleet is.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its name in the workers' register: `all`, `gateway`, `worker`, or what else it does.
    pub role: String,
    /// Whether it polls tasks. One that does not registers and heartbeats too, since it can submit.
    pub polls: bool,
    /// Where the lock lies that proves it alive to its successors on this machine.
    pub state_dir: PathBuf,
}

/// Why a runtime does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store or the state directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A metric of this name is registered already: two runtimes on one registry.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A running task runtime.
#[derive(Debug, Clone)]
pub struct Runtime {
    service: Service,
}

impl Runtime {
    /// Registers a worker in `store` and starts it; `servers` are those that may have task toolsets.
    pub async fn start(
        settings: &TaskSettings,
        process: Process,
        store: SharedStore,
        servers: impl IntoIterator<Item = (ServerConfig, SharedUpstream)>,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        Self::start_in(World::system(), settings, process, store, servers, registry).await
    }

    /// The same, with users' own connections beside the servers.
    pub async fn start_with(
        connections: Arc<dyn Connections>,
        settings: &TaskSettings,
        process: Process,
        store: SharedStore,
        servers: impl IntoIterator<Item = (ServerConfig, SharedUpstream)>,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let routes = Routes::new(servers, settings.max_concurrent_polls as usize).with_connections(Some(connections));
        Self::start_on(routes, World::system(), settings, process, store, registry).await
    }

    /// The same in other surroundings than the operating system's.
    pub async fn start_in(
        world: World,
        settings: &TaskSettings,
        process: Process,
        store: SharedStore,
        servers: impl IntoIterator<Item = (ServerConfig, SharedUpstream)>,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let routes = Routes::new(servers, settings.max_concurrent_polls as usize);
        Self::start_on(routes, world, settings, process, store, registry).await
    }

    async fn start_on(
        routes: Routes,
        world: World,
        settings: &TaskSettings,
        process: Process,
        store: SharedStore,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let polls = settings.max_concurrent_polls as usize;
        let routes = Arc::new(routes);
        let metrics = Metrics::register(registry, routes.names())?;
        let options = Options {
            policy: settings.policy(),
            lease: Duration::from_secs(u64::from(settings.lease_seconds)),
            max_concurrent_polls: polls,
            max_held: settings.max_held as usize,
            state_dir: process.state_dir,
            role: process.role,
            polls: settings.enabled && process.polls,
            retention: settings.retention_days.map(|days| Duration::from_secs(u64::from(days) * 86_400)),
        };
        let driver = routes.driver(settings.limits());
        let worker = Worker::start(options, store, driver, routes, metrics, world).await?;
        Ok(Self { service: Service::new(worker) })
    }

    /// What callers can do.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Gives every task back and leaves the register, within `grace`.
    pub async fn shutdown(&self, grace: Duration) {
        self.service.worker().drain(grace).await;
    }
}

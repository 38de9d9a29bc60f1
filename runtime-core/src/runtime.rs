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

/// What a runtime finds around it.
pub struct Surroundings {
    /// Time, tasks and ids: the operating system's by default.
    pub world: World,
    /// Users' own connections beside the servers, if there are any.
    pub connections: Option<Arc<dyn Connections>>,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self { world: World::system(), connections: None }
    }
}

impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").field("connections", &self.connections.is_some()).finish_non_exhaustive()
    }
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
        Self::start_in(Surroundings::default(), settings, process, store, servers, registry).await
    }

    /// The same, with more around it than the operating system, or something else.
    pub async fn start_in(
        surroundings: Surroundings,
        settings: &TaskSettings,
        process: Process,
        store: SharedStore,
        servers: impl IntoIterator<Item = (ServerConfig, SharedUpstream)>,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let Surroundings { world, connections } = surroundings;
        let polls = settings.max_concurrent_polls as usize;
        let routes = Arc::new(Routes::new(servers, polls).with_connections(connections));
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

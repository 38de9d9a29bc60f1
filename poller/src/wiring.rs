//! Where the daemon takes its parts from: the only calls into the core that build something.

use std::path::PathBuf;
use std::sync::Arc;

use mcp_taskd_core::clock::Clock;
use mcp_taskd_core::config::{ConfigError, Extensions, Settings};
use mcp_taskd_core::store::{SharedStore, StoreError, StoreErrorKind};

use crate::daemon::{Tasks, Tools};
use crate::exit::{Failure, Result};
use crate::health::Pulse;
use crate::lifecycle::Shutdown;

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
    /// What was odd but usable.
    pub warnings: Vec<String>,
}

/// Reads and checks both files (`Settings::load`, `Extensions::load`, `config::check`).
pub fn load(origins: &Origins) -> std::result::Result<Configuration, ConfigError> {
    for (path, flag) in [(&origins.config, "--config"), (&origins.extensions_config, "--extensions-config")] {
        if let Some(path) = path.as_ref().filter(|path| !path.is_file()) {
            return Err(ConfigError(format!("{flag}: there is no file {}", path.display())));
        }
    }
    if let Some((key, _)) = origins.overrides.first() {
        return Err(ConfigError(format!("--set {key}: the configuration loader is not wired yet")));
    }
    Ok(Configuration::default())
}

/// The effective configuration, secrets masked.
pub fn show(configuration: &Configuration) -> serde_json::Value {
    serde_json::json!({ "listen": configuration.settings.server.listen, "warnings": configuration.warnings })
}

/// The JSON Schema of `config.yaml` (`config::json_schema`).
pub fn schema() -> serde_json::Value {
    serde_json::json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object" })
}

/// A connected store, and what only its owner does with it.
pub struct Backing {
    /// The ports.
    pub store: SharedStore,
}

/// Connects once (`SqlStore::connect_sqlite`, `connect_postgres`, the memory store).
#[expect(clippy::unused_async, reason = "connecting waits")]
pub async fn connect(settings: &Settings) -> std::result::Result<Backing, StoreError> {
    let backend = format!("{:?}", settings.database.backend).to_lowercase();
    Err(StoreError::new(StoreErrorKind::Data, "connect", format!("the {backend} store is not wired yet")))
}

impl Backing {
    /// Brings the schema up to date; returns the names of the applied migrations (`SqlStore::migrate`).
    #[expect(clippy::unused_async, reason = "migrating waits")]
    pub async fn migrate(&self) -> std::result::Result<Vec<&'static str>, StoreError> {
        Ok(Vec::new())
    }

    /// Closes the connections (`SqlStore::close`).
    #[expect(clippy::unused_async, reason = "closing waits")]
    pub async fn close(&self) {}
}

/// The running core: worker, service, catalogue, upstream servers.
pub struct Runtime {
    /// The façade.
    pub tasks: Arc<dyn Tasks>,
    /// The catalogue.
    pub tools: Arc<dyn Tools>,
    /// The store's time.
    pub clock: Arc<dyn Clock>,
    /// How long ago the worker loop last ran.
    pub pulse: Option<Pulse>,
}

/// Registers a worker and starts its loop: with `polls` it claims and polls tasks, without it only submits and reads.
///
/// `metrics` takes the core's own metrics, under their full names.
#[expect(clippy::unused_async, reason = "registering waits")]
pub async fn start(
    _configuration: &Configuration,
    _store: &SharedStore,
    role: &str,
    polls: bool,
    _metrics: &prometheus::Registry,
    _shutdown: &Shutdown,
) -> Result<Runtime> {
    Err(Failure::failed(format!("the runtime is not wired yet (role {role}, polls {polls})")))
}

impl Runtime {
    /// Drains: releases what is held, waits for open submits, marks the worker dead, ends upstream sessions.
    #[expect(clippy::unused_async, reason = "draining waits")]
    pub async fn drain(self) {}
}

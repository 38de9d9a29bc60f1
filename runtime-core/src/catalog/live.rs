//! The catalogue of a running process: it follows the extensions file and the fleet's resets (BEHAVIOURS 33, 94–97).
//!
//! A lookup looks at the file first, so that an edit is in effect with the next call; a look every two seconds lets connected
//! agents learn of it too. A file that cannot be used changes nothing: what it said before stays in effect, and the reason
//! is logged once and shown.

mod metrics;
mod open;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::shared::{ResetScope, Shared};
use super::{Catalog, Tool, View};
use crate::config::edit::{Change, EditError, Editor};
use crate::config::{ConfigError, Content, Extensions, Frozen, Settings, Signature, Source, check};
use crate::store::{self, SharedState};
use crate::upstream::{Factory, SharedUpstream, Upstreams};
use metrics::Metrics;
use open::Open;

/// How often the file is looked at though nobody asks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The error where the file is no longer there.
const GONE: &str = "the extensions file is gone; what it said last stays in effect";

/// What a live catalogue needs beside the configuration it starts with.
pub struct LiveOptions {
    /// Where the file comes from.
    pub source: Source,
    /// `config.yaml`, which is read once.
    pub settings: Settings,
    /// What the fleet shares; none where nobody does.
    pub shared: Option<Arc<dyn SharedState>>,
}

/// How the last reload went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reload {
    /// Why what the file says now is not in effect; none where it is.
    pub error: Option<String>,
}

/// The tools, the servers behind them, and the file that says which.
pub struct Live {
    source: Source,
    settings: Settings,
    frozen: Frozen,
    editor: Editor,
    catalog: Catalog,
    open: Open,
    shared: Shared,
    state: Mutex<State>,
    /// Held by whoever takes a file in.
    reloading: tokio::sync::Mutex<()>,
    metrics: Metrics,
}

struct State {
    /// The file that is in effect.
    in_effect: Option<Signature>,
    /// The one that was refused last.
    refused: Option<Signature>,
    error: Option<String>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("reload", &self.last_reload()).finish_non_exhaustive()
    }
}

impl Live {
    /// The catalogue of `extensions`, with which this process starts; no server is asked yet.
    pub fn new(
        extensions: &Extensions,
        factory: Factory,
        options: LiveOptions,
        registry: &prometheus::Registry,
    ) -> Result<Self, ConfigError> {
        let metrics = Metrics::register(registry).map_err(|error| ConfigError(format!("metrics: {error}")))?;
        let open = Open::new(factory);
        let upstreams = open.replace(extensions)?;
        let frozen = Frozen::of(extensions);
        let LiveOptions { source, settings, shared } = options;
        metrics.succeeded();
        Ok(Self {
            editor: Editor::new(source.clone(), settings.clone(), frozen.clone()),
            catalog: Catalog::new(extensions, &upstreams, &settings),
            shared: Shared::new(shared),
            state: Mutex::new(State { in_effect: extensions.signature.clone(), refused: None, error: None }),
            reloading: tokio::sync::Mutex::default(),
            source,
            settings,
            frozen,
            open,
            metrics,
        })
    }

    /// The enabled servers.
    pub fn upstreams(&self) -> Upstreams {
        self.open.all()
    }

    /// The way to an enabled server.
    pub fn upstream(&self, server: &str) -> Option<SharedUpstream> {
        self.open.find(server)
    }

    /// What agents see now; see [`Catalog::view`].
    pub async fn view(&self) -> Arc<View> {
        self.refresh().await;
        self.catalog.view().await
    }

    /// The tool with this visible name now; see [`Catalog::find`].
    pub async fn find(&self, name: &str) -> Option<Arc<Tool>> {
        self.refresh().await;
        self.catalog.find(name).await
    }

    /// Whether the guardrail lets a toolset be submitted to; see [`Catalog::allows_submit`].
    pub fn allows_submit(&self, server: &str, task: &str) -> bool {
        self.catalog.allows_submit(server, task)
    }

    /// What agents last saw; asks nobody.
    pub fn last_view(&self) -> Arc<View> {
        self.catalog.last_view()
    }

    /// Changes whenever agents should list the tools again; see [`Catalog::changes`].
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.catalog.changes()
    }

    /// How the last reload went.
    pub fn last_reload(&self) -> Reload {
        Reload { error: self.state().error.clone() }
    }

    /// The servers as the file has them, secrets masked.
    pub async fn shown(&self) -> Result<Map<String, Value>, EditError> {
        let editor = self.editor.clone();
        blocking(move || editor.shown().map_err(EditError::from)).await
    }

    /// Changes the file, and takes the change in; the servers as they are then shown.
    ///
    /// Every server is asked for its tools again (92). Processes that share the file see it by its content. Stored OAuth tokens
    /// of servers that the file no longer has are forgotten (116).
    pub async fn edit(&self, change: Change, after_restart: bool) -> Result<Map<String, Value>, EditError> {
        let editor = self.editor.clone();
        let shown = blocking(move || editor.edit(&change, after_restart)).await?;
        self.reload().await;
        self.catalog.forget();
        self.open.retain_tokens(&shown.keys().cloned().collect::<Vec<_>>()).await;
        Ok(shown)
    }

    /// Forgets every server's tools and lets pooled sessions go, here or on every process of the fleet; how far it reached.
    pub async fn reset(&self, scope: ResetScope) -> store::Result<ResetScope> {
        let reached = match scope {
            ResetScope::SharedConfig => self.shared.reset().await?,
            ResetScope::Process => ResetScope::Process,
        };
        self.catalog.reset().await;
        Ok(reached)
    }

    /// Looks every two seconds until `stop`.
    pub async fn run(&self, stop: &CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {
                    self.refresh().await;
                    self.catalog.tend();
                    self.open.reap();
                }
            }
        }
    }

    /// Ends all sessions and child processes, also those of servers that were replaced.
    pub async fn close(&self) {
        self.open.close().await;
    }

    /// Follows what has happened since the last look.
    async fn refresh(&self) {
        if self.shared.was_reset().await {
            tracing::info!("another process has reset the tool cache");
            self.catalog.reset().await;
        }
        self.reload().await;
    }

    async fn reload(&self) {
        if self.is_known(&self.read().await) {
            return;
        }
        let _reloading = self.reloading.lock().await;
        // What was seen before may be over already.
        let found = self.read().await;
        if self.is_known(&found) {
            return;
        }
        let signature = found.as_ref().ok().and_then(|content| Some(content.as_ref()?.signature.clone()));
        let taken = match found {
            Ok(Some(content)) => self.take(&content).await,
            Ok(None) => Err(ConfigError(GONE.to_owned())),
            Err(error) => Err(error),
        };
        let mut state = self.state();
        match taken {
            Ok(()) => {
                *state = State { in_effect: signature, refused: None, error: None };
                self.metrics.succeeded();
            }
            Err(error) => {
                tracing::error!(%error, "the extensions file cannot be used; what it said before stays in effect");
                (state.refused, state.error) = (signature, Some(error.0));
                self.metrics.failed();
            }
        }
    }

    async fn read(&self) -> Result<Option<Content>, ConfigError> {
        let source = self.source.clone();
        blocking(move || source.read()).await
    }

    /// Whether `found` has been dealt with.
    fn is_known(&self, found: &Result<Option<Content>, ConfigError>) -> bool {
        let state = self.state();
        match (found, &state.error) {
            (Ok(Some(content)), None) => state.in_effect.as_ref() == Some(&content.signature),
            (Ok(Some(content)), Some(_)) => state.refused.as_ref() == Some(&content.signature),
            (Ok(None), None) => state.in_effect.is_none(),
            (Ok(None), Some(error)) => error == GONE,
            (Err(found), error) => error.as_ref() == Some(&found.0),
        }
    }

    /// Puts a file into effect, all of it or nothing.
    async fn take(&self, content: &Content) -> Result<(), ConfigError> {
        if self.state().in_effect.as_ref() == Some(&content.signature) {
            tracing::info!(path = %content.path.display(), "the extensions file is as it was");
            return Ok(());
        }
        let extensions = content.parse(&self.source.environment)?;
        check(&self.settings, &extensions)?;
        self.frozen.check(&extensions).map_err(|drift| ConfigError(drift.to_string()))?;
        let upstreams = self.open.replace(&extensions)?;
        self.catalog.set(&extensions, &upstreams);
        self.open.let_go().await;
        for warning in &extensions.warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!(path = %content.path.display(), servers = extensions.servers.len(), "extensions reloaded");
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs what reads or writes files where it blocks nobody.
pub(super) async fn blocking<T: Send + 'static, E: From<ConfigError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err(ConfigError("internal error".to_owned()).into()),
    }
}

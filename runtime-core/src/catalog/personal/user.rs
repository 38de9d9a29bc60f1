//! One user's connections in effect.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::catalog::{Catalog, Tool};
use crate::config::edit::Stamp;
use crate::config::{ConfigError, Connection, Extensions, PersonalConnections, Settings};
use crate::upstream::{Connected, NotConnected, SharedUpstream, Upstreams};

/// How often a way that was replaced is looked at until nobody uses it.
const CLOSE_LOOK: Duration = Duration::from_secs(1);

pub(super) struct User {
    connections: PersonalConnections,
    /// What told the file from others when it was read.
    pub(super) stamp: Option<Stamp>,
    looked: Mutex<Instant>,
    /// The enabled ones, by the name that they run under.
    live: HashMap<String, Connected>,
    catalog: Arc<Catalog>,
}

impl User {
    /// `connections` in effect, in place of what was in effect `before`: a connection that is as it was keeps its sessions.
    pub(super) fn new(
        connections: PersonalConnections,
        stamp: Option<Stamp>,
        before: Option<&Arc<Self>>,
        settings: &Settings,
        open: impl Fn(&Connection) -> Result<SharedUpstream, ConfigError>,
    ) -> Self {
        let (enabled, problems) = connections.enabled(settings);
        for problem in problems {
            tracing::warn!(user = connections.user(), problem, "a personal connection is left out");
        }
        let (mut live, mut extensions) = (HashMap::new(), Extensions::default());
        for connection in enabled {
            let name = connection.config.name.clone();
            let trusts = |known: &&Connected| known.trusted == connection.trusted;
            let known = before.and_then(|before| before.live.get(&name)).filter(trusts);
            let upstream = match known.map_or_else(|| open(&connection), |known| Ok(Arc::clone(&known.upstream))) {
                Ok(upstream) => upstream,
                Err(error) => {
                    tracing::warn!(user = connections.user(), %error, "a personal connection is left out");
                    continue;
                }
            };
            extensions.servers.insert(name.clone(), connection.config.clone());
            let (config, trusted) = (Arc::new(connection.config), connection.trusted);
            live.insert(name, Connected { config, upstream, trusted });
        }
        let upstreams: Upstreams =
            live.iter().map(|(name, connected)| (name.clone(), Arc::clone(&connected.upstream))).collect();
        let catalog = match before {
            Some(before) => {
                before.catalog.set(&extensions, &upstreams);
                Arc::clone(&before.catalog)
            }
            None => Arc::new(Catalog::new(&extensions, &upstreams, settings)),
        };
        if let Some(before) = before {
            let stays = |old: &SharedUpstream| live.values().any(|new| Arc::ptr_eq(&new.upstream, old));
            let replaced = before.live.values().map(|old| &old.upstream).filter(|old| !stays(old));
            replaced.for_each(|old| retire(Arc::clone(old)));
        }
        Self { connections, stamp, looked: Mutex::new(Instant::now()), live, catalog }
    }

    /// Whether the file was looked at within this time.
    pub(super) fn looked_within(&self, time: Duration) -> bool {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < time
    }

    /// The file was looked at, and is as it was.
    pub(super) fn look(&self) {
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn find(&self, server: &str) -> Result<Connected, NotConnected> {
        match self.live.get(server) {
            Some(connected) => Ok(connected.clone()),
            None if self.connections.is_gone(server) => Err(NotConnected::Gone(format!(
                "the personal connection {server} was changed, switched off or deleted"
            ))),
            None => Err(NotConnected::Elsewhere(format!("the personal connection {server} cannot be used here"))),
        }
    }

    pub(super) fn names_with_toolsets(&self) -> impl Iterator<Item = String> {
        self.live.iter().filter(|(_, connected)| connected.config.has_toolsets()).map(|(name, _)| name.clone())
    }

    pub(super) async fn tools(&self, patience: Duration) -> Vec<Arc<Tool>> {
        if self.live.is_empty() {
            return Vec::new();
        }
        let view = timeout(patience, self.catalog.view()).await.unwrap_or_else(|_| self.catalog.last_view());
        view.tools.clone()
    }

    pub(super) async fn find_tool(&self, name: &str, patience: Duration) -> Option<Arc<Tool>> {
        if self.live.is_empty() {
            return None;
        }
        timeout(patience, self.catalog.find(name)).await.ok().flatten()
    }

    pub(super) async fn close(&self) {
        futures_util::future::join_all(self.live.values().map(|connected| connected.upstream.close())).await;
    }

    /// Lets all of them go.
    pub(super) fn retire_all(&self) {
        self.live.values().for_each(|connected| retire(Arc::clone(&connected.upstream)));
    }
}

/// Lets idle sessions go at once, and closes what is left when nobody uses it any more.
fn retire(upstream: SharedUpstream) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        upstream.refresh().await;
        while Arc::strong_count(&upstream) > 1 {
            sleep(CLOSE_LOOK).await;
        }
        upstream.close().await;
    });
}

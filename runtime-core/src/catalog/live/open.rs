//! The servers that are open: kept while their configuration is, closed when nobody uses them any more (BEHAVIOURS 95, 96).

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use tokio_util::task::TaskTracker;

use crate::config::{ConfigError, Extensions};
use crate::upstream::{Factory, SharedUpstream, Upstreams};

pub(super) struct Open {
    factory: Factory,
    state: Mutex<State>,
    closing: TaskTracker,
}

#[derive(Default)]
struct State {
    /// By name, with the digest of what the connection depends on.
    servers: IndexMap<String, (String, SharedUpstream)>,
    /// Replaced or removed, and perhaps still in use.
    retired: Vec<SharedUpstream>,
}

impl Open {
    pub(super) fn new(factory: Factory) -> Self {
        Self { factory, state: Mutex::default(), closing: TaskTracker::new() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the enabled servers of `extensions`: those that are connected to as before stay the same. On an error nothing
    /// has changed.
    pub(super) fn replace(&self, extensions: &Extensions) -> Result<Upstreams, ConfigError> {
        let chain = extensions.interceptors_digest();
        let mut state = self.state();
        let mut servers = IndexMap::new();
        for server in extensions.servers.values().filter(|server| server.enabled) {
            let key = format!("{} {chain}", server.task_digest());
            let upstream = match state.servers.get(&server.name) {
                Some((known, upstream)) if *known == key => Arc::clone(upstream),
                _ => self.factory.open(server, extensions)?,
            };
            servers.insert(server.name.clone(), (key, upstream));
        }
        let stays = |old: &SharedUpstream| servers.values().any(|(_, new)| Arc::ptr_eq(old, new));
        let gone: Vec<_> = state.servers.values().map(|(_, old)| old).filter(|old| !stays(old)).cloned().collect();
        state.retired.extend(gone);
        state.servers = servers;
        Ok(upstreams(&state))
    }

    pub(super) fn all(&self) -> Upstreams {
        upstreams(&self.state())
    }

    pub(super) fn find(&self, server: &str) -> Option<SharedUpstream> {
        self.state().servers.get(server).map(|(_, upstream)| Arc::clone(upstream))
    }

    /// Lets idle sessions of what was replaced go at once, and closes what nobody uses.
    pub(super) async fn let_go(&self) {
        let retired = self.state().retired.clone();
        for upstream in &retired {
            upstream.refresh().await;
        }
        drop(retired);
        self.reap();
    }

    /// Closes, in the background, what was replaced and is in nobody's hands: a call under way ends in peace first.
    pub(super) fn reap(&self) {
        let mut state = self.state();
        let (used, unused): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.retired).into_iter().partition(|upstream| Arc::strong_count(upstream) > 1);
        state.retired = used;
        drop(state);
        for upstream in unused {
            self.closing.spawn(async move { upstream.close().await });
        }
    }

    /// Forgets the stored tokens of all servers but these.
    pub(super) async fn retain_tokens(&self, servers: &[String]) {
        self.factory.retain_tokens(servers).await;
    }

    pub(super) async fn close(&self) {
        let retired = std::mem::take(&mut self.state().retired);
        futures_util::future::join_all(retired.iter().map(|upstream| upstream.close())).await;
        self.all().close().await;
        self.closing.close();
        self.closing.wait().await;
        self.factory.settle().await;
    }
}

fn upstreams(state: &State) -> Upstreams {
    state.servers.iter().map(|(name, (_, upstream))| (name.clone(), Arc::clone(upstream))).collect()
}

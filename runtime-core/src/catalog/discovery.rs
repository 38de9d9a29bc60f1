//! Asking servers for their tools, and keeping what they said (BEHAVIOURS M).

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::assemble::{Discovered, Rules, Server, assemble};
use super::{BUILTIN_TOOLS, Guardrail, TOOL_SEARCH, View};
use crate::config::{Extensions, Settings};
use crate::upstream::{SharedUpstream, Upstreams};

/// A server that failed is asked again after this long, doubling up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_secs(2);
const MAX_RETRY: Duration = Duration::from_mins(1);
/// Bounds a discovery where the server's configuration does not (99).
const MAX_DISCOVERY: Duration = Duration::from_mins(5);

/// The tools of all enabled servers, cached server by server.
pub struct Catalog {
    inner: Arc<Inner>,
}

struct Inner {
    servers: Vec<(Server, SharedUpstream)>,
    rules: Rules,
    state: Mutex<State>,
    /// Held by the caller that fills an empty cache; others wait for it.
    filling: tokio::sync::Mutex<()>,
    /// Told of every answer and reset.
    changed: Notify,
    /// Grows when agents that listed the tools should list them again.
    listing: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// Grows with each reset; what was discovered before is discarded (96).
    generation: u64,
    entries: Vec<Entry>,
    view: Option<Arc<View>>,
}

#[derive(Clone, Default)]
struct Entry {
    discovered: Option<Discovered>,
    failures: u32,
    retry_at: Option<Instant>,
    running: bool,
}

impl Catalog {
    /// A catalogue of the enabled servers of `extensions`; nobody is asked yet.
    pub fn new(extensions: &Extensions, upstreams: &Upstreams, settings: &Settings) -> Self {
        let servers = extensions.servers.values().filter_map(|config| {
            let upstream = upstreams.find(&config.name)?;
            let server = Server {
                name: config.name.clone(),
                prefix: config.tool_name_prefix,
                toolsets: config.toolsets.iter().cloned().map(Arc::new).collect(),
                routing: Arc::new(config.routing.clone()),
            };
            Some((server, Arc::clone(upstream)))
        });
        let servers: Vec<_> = servers.collect();
        let mut reserved = if settings.gateway.builtin_tools { BUILTIN_TOOLS.to_vec() } else { Vec::new() };
        reserved.extend(settings.tool_search.enabled.then_some(TOOL_SEARCH));
        let rules = Rules {
            on_missing_tool: settings.gateway.on_missing_tool,
            guardrail: Guardrail::new(&settings.guardrails),
            reserved,
        };
        let state = Mutex::new(State { entries: vec![Entry::default(); servers.len()], ..State::default() });
        Self {
            inner: Arc::new(Inner {
                servers,
                rules,
                state,
                filling: tokio::sync::Mutex::default(),
                changed: Notify::new(),
                listing: watch::Sender::new(0),
            }),
        }
    }

    /// What agents see.
    ///
    /// The first call asks every server and waits for all of them, at most for the longest `session_init_timeout`; later
    /// ones answer from the cache, and servers that failed are asked again in the background.
    pub async fn view(&self) -> Arc<View> {
        if let Some(view) = self.inner.cached() {
            return view;
        }
        let _filling = self.inner.filling.lock().await;
        if let Some(view) = self.inner.cached() {
            return view;
        }
        loop {
            let changed = self.inner.changed.notified();
            if self.inner.is_complete() {
                break;
            }
            // On tasks of their own, so that a caller that goes away costs the others nothing. A reset in between makes
            // what was asked before worthless, and asks again (96).
            for (at, generation) in self.inner.start_due(true) {
                self.inner.spawn(at, generation);
            }
            changed.await;
        }
        self.inner.publish()
    }

    /// What agents last saw, without asking any server; empty before the first [`Catalog::view`].
    pub fn last_view(&self) -> Arc<View> {
        self.inner.state().view.clone().unwrap_or_default()
    }

    /// Changes whenever agents that listed the tools should list them again: what they were shown is not what they would
    /// be shown now, or it was forgotten.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.listing.subscribe()
    }

    /// Whether agents may submit to this toolset: the guardrail allows its submit tool under its visible name. Asks no
    /// server, and says nothing of toolsets that are not configured (130).
    pub fn allows_submit(&self, server: &str, task: &str) -> bool {
        self.inner.servers.iter().filter(|(known, _)| known.name == server).all(|(known, _)| {
            let mut toolsets = known.toolsets.iter().filter(|toolset| toolset.name == task);
            toolsets.all(|toolset| self.inner.rules.guardrail.allows(&known.visible_name(&toolset.submit_tool)))
        })
    }

    /// Forgets everything, and lets pooled sessions go once they are idle (97).
    pub async fn reset(&self) {
        let listed = {
            let mut state = self.inner.state();
            state.generation += 1;
            state.entries = vec![Entry::default(); self.inner.servers.len()];
            state.view.take().is_some()
        };
        if listed {
            self.inner.list_again();
        }
        self.inner.changed.notify_waiters();
        for (_, upstream) in &self.inner.servers {
            upstream.refresh().await;
        }
    }
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").field("servers", &self.inner.servers.len()).finish_non_exhaustive()
    }
}

impl Inner {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached view, if there is one; whoever failed and is due is asked again meanwhile.
    fn cached(self: &Arc<Self>) -> Option<Arc<View>> {
        let view = self.state().view.clone()?;
        for (at, generation) in self.start_due(false) {
            self.spawn(at, generation);
        }
        Some(view)
    }

    /// Marks the servers that have to be asked now, and names them with the generation they belong to.
    fn start_due(&self, first: bool) -> Vec<(usize, u64)> {
        let now = Instant::now();
        let mut state = self.state();
        let due = |entry: &Entry| match &entry.discovered {
            None => first,
            Some(Err(_)) => entry.retry_at.is_none_or(|at| at <= now),
            Some(Ok(_)) => false,
        };
        let mut started = Vec::new();
        let generation = state.generation;
        for (at, entry) in state.entries.iter_mut().enumerate() {
            if !entry.running && due(entry) {
                entry.running = true;
                started.push((at, generation));
            }
        }
        started
    }

    fn spawn(self: &Arc<Self>, at: usize, generation: u64) {
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let (server, upstream) = &inner.servers[at];
            let listing = AssertUnwindSafe(upstream.list_tools()).catch_unwind();
            let discovered = match timeout(MAX_DISCOVERY, listing).await {
                Ok(Ok(Ok(tools))) => Ok(tools.into()),
                Ok(Ok(Err(error))) => Err(error.message),
                // Whoever waits for this server must not wait for ever.
                Ok(Err(_)) => Err("internal error".to_owned()),
                Err(_) => Err(format!("no answer within {MAX_DISCOVERY:?}")),
            };
            if let Err(error) = &discovered {
                tracing::warn!(server = server.name, error, "discovery failed");
            }
            inner.record(at, generation, discovered);
            inner.changed.notify_waiters();
        });
    }

    fn record(&self, at: usize, generation: u64, discovered: Discovered) {
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        let entry = &mut state.entries[at];
        entry.running = false;
        if discovered.is_ok() {
            entry.failures = 0;
            entry.retry_at = None;
        } else {
            let wait = MIN_RETRY.saturating_mul(1 << entry.failures.min(5)).min(MAX_RETRY);
            entry.failures = entry.failures.saturating_add(1);
            entry.retry_at = Some(Instant::now() + wait);
        }
        entry.discovered = Some(discovered);
        if let Some(before) = &state.view {
            let view = Arc::new(self.assembled(&state));
            let same = view.lists_as(before);
            state.view = Some(view);
            if !same {
                self.list_again();
            }
        }
    }

    fn list_again(&self) {
        self.listing.send_modify(|changes| *changes += 1);
    }

    fn is_complete(&self) -> bool {
        self.state().entries.iter().all(|entry| entry.discovered.is_some())
    }

    fn publish(&self) -> Arc<View> {
        let mut state = self.state();
        let view = Arc::new(self.assembled(&state));
        for problem in &view.problems {
            tracing::error!(problem, "catalogue");
        }
        // After a reset in between, the view is for this caller only.
        if state.entries.iter().all(|entry| entry.discovered.is_some()) {
            state.view = Some(Arc::clone(&view));
        }
        view
    }

    fn assembled(&self, state: &State) -> View {
        let servers: Vec<_> = self
            .servers
            .iter()
            .zip(&state.entries)
            .map(|((server, _), entry)| (server.clone(), entry.discovered.clone()))
            .collect();
        assemble(&servers, &self.rules)
    }
}

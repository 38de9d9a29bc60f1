//! Asking servers for their tools, and keeping what they said (BEHAVIOURS M).

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::assemble::{Discovered, Rules, Server};
use super::cache::{Ask, Cache, Given};
use super::{BUILTIN_TOOLS, Guardrail, TOOL_SEARCH, Tool, View};
use crate::config::{Extensions, Settings};
use crate::upstream::Upstreams;

/// Bounds a discovery where the server's configuration does not (99).
const MAX_DISCOVERY: Duration = Duration::from_mins(5);
/// How long a caller waits where every server has failed before: the daemon's own tools are to be seen meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two notices of a server's that are heeded, doubling while they follow each other closely: one that says with every
/// list that it has changed is not listed in a tight loop.
const MIN_NOTICE_GAP: Duration = Duration::from_millis(250);
const MAX_NOTICE_GAP: Duration = Duration::from_secs(5);

/// The tools of all enabled servers, cached server by server.
pub struct Catalog {
    inner: Arc<Inner>,
}

struct Inner {
    cache: Mutex<Cache>,
    /// Told of every answer and change.
    changed: Notify,
    /// Grows when agents that listed the tools should list them again.
    listing: watch::Sender<u64>,
}

impl Catalog {
    /// A catalogue of the enabled servers of `extensions`; nobody is asked yet.
    pub fn new(extensions: &Extensions, upstreams: &Upstreams, settings: &Settings) -> Self {
        let mut reserved = if settings.gateway.builtin_tools { BUILTIN_TOOLS.to_vec() } else { Vec::new() };
        reserved.extend(settings.tool_search.enabled.then_some(TOOL_SEARCH));
        let rules = Rules {
            on_missing_tool: settings.gateway.on_missing_tool,
            guardrail: Guardrail::new(&settings.guardrails),
            reserved,
        };
        let cache = Mutex::new(Cache::new(rules));
        let catalog = Self { inner: Arc::new(Inner { cache, changed: Notify::new(), listing: watch::Sender::new(0) }) };
        catalog.set(extensions, upstreams);
        catalog
    }

    /// Takes another configuration. Servers that are configured as before keep what is known of them; discoveries under way
    /// of others are discarded (95, 96).
    pub fn set(&self, extensions: &Extensions, upstreams: &Upstreams) {
        let chain = extensions.interceptors_digest();
        let given = |config: &crate::config::ServerConfig| {
            let upstream = Arc::clone(upstreams.find(&config.name)?);
            let server = Server {
                name: config.name.clone(),
                prefix: config.tool_name_prefix,
                toolsets: config.toolsets.iter().cloned().map(Arc::new).collect(),
                routing: Arc::new(config.routing.clone()),
            };
            Some(Given { server, key: format!("{} {chain}", config.digest()), upstream })
        };
        let servers = extensions.servers.values().filter(|server| server.enabled).filter_map(given).collect();
        self.inner.change(|cache| cache.set(servers));
    }

    /// What agents see.
    ///
    /// Asks every server that was not asked yet and waits for all of them, at most for the longest `session_init_timeout`;
    /// otherwise answers from the cache, and servers that failed are asked again in the background. Where all of them failed
    /// before, they are asked again at once, and waited for a few seconds (95).
    pub async fn view(&self) -> Arc<View> {
        let all_failed = self.inner.cache().begin(Instant::now());
        if !all_failed {
            return self.settled().await;
        }
        timeout(PATIENCE, self.settled()).await.unwrap_or_else(|_| self.last_view())
    }

    async fn settled(&self) -> Arc<View> {
        loop {
            let changed = self.inner.changed.notified();
            // On tasks of their own, so that a caller that goes away costs the others nothing. A change in between makes
            // what was asked before worthless, and asks again (96).
            self.inner.ask(true);
            if let Some(view) = self.inner.cache().complete() {
                return view;
            }
            changed.await;
        }
    }

    /// The tool with this visible name. While servers whose configuration changed are being asked, the others' tools are
    /// there at once.
    pub async fn find(&self, name: &str) -> Option<Arc<Tool>> {
        let known = {
            let cache = self.inner.cache();
            cache.was_published().then(|| cache.view().find(name).cloned()).flatten()
        };
        match known {
            Some(tool) => Some(tool),
            None => self.view().await.find(name).cloned(),
        }
    }

    /// What is known, without asking any server; empty before the first [`Catalog::view`].
    pub fn last_view(&self) -> Arc<View> {
        Arc::clone(self.inner.cache().view())
    }

    /// Asks again, in the background, whoever failed and is due, and whoever changed where somebody has looked before: so
    /// that agents that are connected learn of it.
    pub fn tend(&self) {
        let looked_at = self.inner.cache().was_published();
        self.inner.ask(looked_at);
    }

    /// Changes whenever agents that listed the tools should list them again: they would be shown others.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.listing.subscribe()
    }

    /// Whether agents may submit to this toolset: the guardrail allows its submit tool under its visible name. Asks no
    /// server, and says nothing of toolsets that are not configured (130).
    pub fn allows_submit(&self, server: &str, task: &str) -> bool {
        self.inner.cache().allows_submit(server, task)
    }

    /// Forgets what the servers answered.
    pub fn forget(&self) {
        self.inner.change(Cache::forget);
    }

    /// Forgets what the servers answered, and lets pooled sessions go once they are idle (97).
    pub async fn reset(&self) {
        self.forget();
        let upstreams = self.inner.cache().upstreams();
        for upstream in upstreams {
            upstream.refresh().await;
        }
    }
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").field("tools", &self.inner.cache().view().tools.len()).finish_non_exhaustive()
    }
}

impl Inner {
    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Cache) -> bool) {
        let shows_other_tools = change(&mut self.cache());
        self.tell(shows_other_tools);
    }

    fn tell(&self, shows_other_tools: bool) {
        if shows_other_tools {
            self.listing.send_modify(|changes| *changes += 1);
        }
        self.changed.notify_waiters();
    }

    /// Asks whoever is due, each on a task of its own.
    fn ask(self: &Arc<Self>, first: bool) {
        let due = self.cache().due(Instant::now(), first);
        for ask in due {
            let inner = Arc::clone(self);
            tokio::spawn(async move {
                let ticket = ask.ticket;
                let discovered = discover(&ask).await;
                let shows_other_tools = inner.cache().record(ticket, discovered, Instant::now());
                inner.tell(shows_other_tools);
                inner.follow(ticket);
                // It may have said that its tools changed while it was asked.
                inner.ask(false);
            });
        }
    }

    /// Listens to a server that has answered, unless somebody does.
    fn follow(self: &Arc<Self>, ticket: u64) {
        let mut cache = self.cache();
        let Some(changes) = cache.unfollowed(ticket) else { return };
        let following = follow(Arc::downgrade(self), ticket, changes);
        cache.followed(ticket, AbortOnDropHandle::new(tokio::spawn(following)));
    }
}

/// Has a server asked again whenever it says that its tools changed, within bounds.
async fn follow(inner: Weak<Inner>, ticket: u64, mut changes: watch::Receiver<u64>) {
    let (mut gap, mut heeded) = (MIN_NOTICE_GAP, None::<Instant>);
    while changes.changed().await.is_ok() {
        let is_close = heeded.replace(Instant::now()).is_some_and(|last| last.elapsed() < gap + MAX_NOTICE_GAP);
        gap = if is_close { (gap * 2).min(MAX_NOTICE_GAP) } else { MIN_NOTICE_GAP };
        let Some(inner) = inner.upgrade() else { return };
        if !inner.cache().expire(ticket) {
            return;
        }
        inner.ask(false);
        drop(inner);
        sleep(gap).await;
    }
}

async fn discover(ask: &Ask) -> Discovered {
    let listing = AssertUnwindSafe(ask.upstream.list_tools()).catch_unwind();
    let discovered = match timeout(MAX_DISCOVERY, listing).await {
        Ok(Ok(Ok(tools))) => Ok(tools.into()),
        Ok(Ok(Err(error))) => Err(error.message),
        // Whoever waits for this server must not wait for ever.
        Ok(Err(_)) => Err("internal error".to_owned()),
        Err(_) => Err(format!("no answer within {MAX_DISCOVERY:?}")),
    };
    if let Err(error) = &discovered {
        tracing::warn!(server = ask.name, error, "discovery failed");
    }
    discovered
}

//! Parties to a grant: an authority, a server that takes its tokens alone, and replicas that call it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use mcp_taskd_core::clock::SystemClock;
use mcp_taskd_core::credentials::{Chains, Keys};
use mcp_taskd_core::store::TokenChains;
use mcp_taskd_core::store::memory::MemoryStore;
use mcp_taskd_core::upstream::oauth::{ChainId, ChainStore, Kept, Tokens, Unkept};
use mcp_taskd_core::upstream::{CallError, Options, SharedUpstream, build};
use mcp_taskd_tests::fake::{FakeAuthority, FakeOptions, FakeServer};
use serde_json::{Value, json};

use crate::setup::{call, extensions};

pub(super) const PATIENT: Option<Duration> = Some(Duration::from_secs(20));
/// The key of every replica that has no other.
pub(super) const KEY: &str = "a-shared-credentials-key";

/// An authority and a server behind it.
pub(super) struct Party {
    pub(super) authority: FakeAuthority,
    pub(super) server: FakeServer,
}

impl Party {
    pub(super) async fn new() -> Self {
        let authority = FakeAuthority::start().await;
        let options = FakeOptions { authority: Some(Arc::clone(&authority.state)), ..FakeOptions::default() };
        Self { server: FakeServer::start(options).await, authority }
    }

    /// The server's definition with this `oauth`.
    pub(super) fn definition(&self, oauth: &Value) -> Value {
        json!({"s": {"type": "http", "url": self.server.url, "oauth": oauth}})
    }

    /// A replica that keeps its chain in `chains`, if anywhere.
    pub(super) fn replica(&self, oauth: &Value, chains: Option<Arc<dyn ChainStore>>) -> SharedUpstream {
        let options = Options { chains, ..Options::new("unused") };
        let upstreams = build(&extensions(&self.definition(oauth)), &options).expect("buildable");
        Arc::clone(upstreams.find("s").expect("it is there"))
    }

    /// Calls the server accepted.
    pub(super) fn calls(&self) -> u64 {
        self.server.state.core.counters.calls.load(Ordering::Relaxed)
    }

    pub(super) fn asked(&self) -> u64 {
        self.authority.state.count()
    }

    /// How often a refresh token came a second time.
    pub(super) fn reuses(&self) -> u64 {
        self.authority.state.reuses.load(Ordering::Relaxed)
    }
}

/// An ordinary call.
pub(super) async fn echo(upstream: &SharedUpstream) -> Result<Value, CallError> {
    call(upstream, "echo", &json!({}), PATIENT).await
}

/// Rows that replicas share.
pub(super) fn memory() -> Arc<dyn TokenChains> {
    Arc::new(MemoryStore::new(Arc::new(SystemClock)))
}

/// What a replica with these keys makes of `rows`.
pub(super) fn kept_in(rows: &Arc<dyn TokenChains>, keys: &[&str]) -> Arc<Faulty> {
    let keys: Vec<_> = keys.iter().map(|key| (*key).into()).collect();
    let inner = Chains::new(Arc::clone(rows), Keys::new(&keys, Path::new("unused")));
    Arc::new(Faulty {
        inner,
        down: AtomicBool::new(false),
        deaf: AtomicBool::new(false),
        lease_ms: AtomicU64::new(30_000),
    })
}

/// Chains that cannot be reached, or that cannot be written, at will.
#[derive(Debug)]
pub(super) struct Faulty {
    inner: Chains,
    /// Nothing works.
    pub(super) down: AtomicBool,
    /// Tokens cannot be saved.
    pub(super) deaf: AtomicBool,
    /// How long a lease is.
    pub(super) lease_ms: AtomicU64,
}

impl Faulty {
    fn up(&self) -> Result<(), Unkept> {
        if self.down.load(Ordering::Relaxed) { Err(Unkept("down on purpose".to_owned())) } else { Ok(()) }
    }
}

#[async_trait]
impl ChainStore for Faulty {
    fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Ordering::Relaxed))
    }

    async fn find(&self, chain: &ChainId) -> Result<Option<Kept>, Unkept> {
        self.up()?;
        self.inner.find(chain).await
    }

    async fn claim(&self, chain: &ChainId, holder: &str, lease: Duration) -> Result<Option<Kept>, Unkept> {
        self.up()?;
        self.inner.claim(chain, holder, lease).await
    }

    async fn renew(&self, chain: &ChainId, holder: &str, lease: Duration) -> Result<bool, Unkept> {
        self.up()?;
        self.inner.renew(chain, holder, lease).await
    }

    async fn release(&self, chain: &ChainId, holder: &str, lost: bool) -> Result<(), Unkept> {
        self.up()?;
        self.inner.release(chain, holder, lost).await
    }

    async fn save(&self, chain: &ChainId, holder: &str, version: i64, tokens: &Tokens) -> Result<bool, Unkept> {
        self.up()?;
        if self.deaf.load(Ordering::Relaxed) {
            return Err(Unkept("deaf on purpose".to_owned()));
        }
        self.inner.save(chain, holder, version, tokens).await
    }

    async fn retain(&self, servers: &[String]) -> Result<(), Unkept> {
        self.up()?;
        self.inner.retain(servers).await
    }
}

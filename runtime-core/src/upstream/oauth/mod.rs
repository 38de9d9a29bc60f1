//! OAuth towards servers: one token state a connection, shared by everything that calls it (BEHAVIOURS Q).
//!
//! A token is asked for by one refresh at a time, on a task of its own, and used until shortly before its end. A chain of
//! refresh tokens is kept in the fleet's store where there is one ([`ChainStore`]): whoever gets the lease refreshes, the
//! others use what it got. A failure is its server's own: an error of kind [`Auth`](super::CallErrorKind::Auth), before
//! anything is sent.

mod answer;
mod chain;
mod endpoint;
mod failure;
mod flight;
mod held;
mod metrics;
mod refresh;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use chain::{ChainId, ChainStore, Content, Kept, Tokens, Unkept};
pub(super) use metrics::Metrics;
pub(super) use source::Source;

use tokio::time::timeout;

use super::http::Clients;
use crate::config::{ConfigError, OAuth};

/// How long the end of the process waits for a refresh under way.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// The tokens of a process's servers.
#[derive(Debug)]
pub(super) struct Sources {
    chains: Option<Arc<dyn ChainStore>>,
    metrics: Option<Metrics>,
    /// The latest source of each server: what comes after it goes on with its tokens.
    latest: Mutex<HashMap<String, Source>>,
}

impl Sources {
    pub(super) fn new(chains: Option<Arc<dyn ChainStore>>, metrics: Option<Metrics>) -> Self {
        Self { chains, metrics, latest: Mutex::default() }
    }

    /// The source for a server. Where it continues what there was before, it shares that one's tokens (115).
    pub(super) fn open(&self, server: &str, config: &OAuth, clients: &Clients) -> Result<Source, ConfigError> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let fingerprint = config.fingerprint();
        let before = latest.get(server).filter(|before| before.0.chain.fingerprint == fingerprint);
        let shared = before.map(|before| before.shared(config)).unwrap_or_default();
        let source = Source::new(server, config, clients, shared, self)?;
        latest.insert(server.to_owned(), source.clone());
        Ok(source)
    }

    /// Forgets what is kept of servers other than these, as far as that can be done now.
    pub(super) async fn retain(&self, servers: &[String]) {
        let Some(chains) = &self.chains else { return };
        if let Err(error) = chains.retain(servers).await {
            tracing::warn!(%error, "the OAuth tokens of servers that are gone are still stored");
        }
    }

    /// Waits for refreshes under way, and saves what is not saved yet.
    pub(super) async fn settle(&self) {
        let sources: Vec<_> = self.latest.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let settling = futures_util::future::join_all(sources.iter().map(Source::settle));
        if timeout(SETTLE_TIMEOUT, settling).await.is_err() {
            tracing::warn!("a refresh of OAuth tokens is still under way, and its answer is lost with this process");
        }
    }
}

//! Chains of tokens, in one process.

use async_trait::async_trait;

use super::MemoryStore;
use crate::clock::Millis;
use crate::store::{ChainKey, ChainRow, Result, SealedTokens, TokenChains};
use crate::task::is_personal;

/// A chain with its lease.
#[derive(Debug, Default)]
pub(super) struct Chain {
    version: i64,
    saved_by: Option<String>,
    sealed: Option<String>,
    expires_at: Millis,
    lease: Option<(String, Millis)>,
    interrupted: bool,
}

impl Chain {
    fn row(&self, now: Millis) -> ChainRow {
        ChainRow {
            version: self.version,
            sealed: self.sealed.clone(),
            remaining_ms: self.expires_at - now,
            interrupted: self.interrupted,
        }
    }

    fn is_held_by(&self, holder: &str) -> bool {
        self.lease.as_ref().is_some_and(|(owner, _)| owner == holder)
    }
}

#[async_trait]
impl TokenChains for MemoryStore {
    async fn find_chain(&self, key: &ChainKey) -> Result<Option<ChainRow>> {
        let now = self.now_ms();
        Ok(self.state().chains.get(key).map(|chain| chain.row(now)))
    }

    async fn claim_refresh(&self, key: &ChainKey, holder: &str, lease_ms: i64) -> Result<Option<ChainRow>> {
        let now = self.now_ms();
        let mut state = self.state();
        let chain = state.chains.entry(key.clone()).or_default();
        if let Some((owner, expires_at)) = &chain.lease
            && owner != holder
        {
            if *expires_at > now {
                return Ok(None);
            }
            chain.interrupted = true;
        }
        chain.lease = Some((holder.to_owned(), now + lease_ms));
        Ok(Some(chain.row(now)))
    }

    async fn renew_refresh(&self, key: &ChainKey, holder: &str, lease_ms: i64) -> Result<bool> {
        let now = self.now_ms();
        let mut state = self.state();
        let Some(chain) = state.chains.get_mut(key).filter(|chain| chain.is_held_by(holder)) else { return Ok(false) };
        chain.lease = Some((holder.to_owned(), now + lease_ms));
        Ok(true)
    }

    async fn release_refresh(&self, key: &ChainKey, holder: &str, lost: bool) -> Result<()> {
        let mut state = self.state();
        if let Some(chain) = state.chains.get_mut(key).filter(|chain| chain.is_held_by(holder)) {
            chain.lease = None;
            chain.interrupted |= lost;
        }
        Ok(())
    }

    async fn save_chain(&self, key: &ChainKey, tokens: SealedTokens<'_>) -> Result<bool> {
        let now = self.now_ms();
        let mut state = self.state();
        let chain = state.chains.entry(key.clone()).or_default();
        let is_repeated = chain.version == tokens.version && chain.saved_by.as_deref() == Some(tokens.holder);
        if chain.version >= tokens.version && !is_repeated {
            return Ok(false);
        }
        chain.version = tokens.version;
        chain.saved_by = Some(tokens.holder.to_owned());
        chain.sealed = Some(tokens.sealed.to_owned());
        chain.expires_at = now + tokens.remaining_ms;
        chain.interrupted = false;
        if chain.is_held_by(tokens.holder) {
            chain.lease = None;
        }
        Ok(true)
    }

    async fn retain_chains(&self, servers: &[String]) -> Result<u64> {
        let mut state = self.state();
        let before = state.chains.len();
        state.chains.retain(|key, _| servers.contains(&key.server_name) || is_personal(&key.server_name));
        Ok((before - state.chains.len()) as u64)
    }
}

//! Chains of OAuth tokens in the store, encrypted: what the upstream's port asks for, over what the store has.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use super::{Keys, Unsealed, Vault};
use crate::store::{ChainKey, ChainRow, SealedTokens, TokenChains};
use crate::upstream::oauth::{ChainId, ChainStore, Content, Kept, Tokens, Unkept};

/// Keeps chains in a store.
pub struct Chains {
    rows: Arc<dyn TokenChains>,
    keys: Keys,
}

impl std::fmt::Debug for Chains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chains").field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// What is encrypted of a set of tokens.
#[derive(Serialize, Deserialize)]
struct Plain {
    authorization: String,
    request: String,
    refresh_token: String,
}

impl Chains {
    /// Chains in `rows`, encrypted with `keys`.
    pub fn new(rows: Arc<dyn TokenChains>, keys: Keys) -> Self {
        Self { rows, keys }
    }

    async fn vault(&self) -> Result<&Vault, Unkept> {
        self.keys.vault().await.map_err(|error| Unkept(format!("the credentials key cannot be had: {error}")))
    }

    async fn kept(&self, chain: &ChainId, row: ChainRow) -> Result<Kept, Unkept> {
        let content = match &row.sealed {
            None => Content::Nothing,
            Some(sealed) => match self.vault().await?.open(sealed, &context(chain)) {
                Unsealed::Text(text) => content(&text, row.remaining_ms),
                Unsealed::Foreign => Content::Sealed,
            },
        };
        Ok(Kept { version: row.version, content, interrupted: row.interrupted })
    }
}

fn content(text: &SecretString, remaining_ms: i64) -> Content {
    let Ok(plain) = serde_json::from_str::<Plain>(text.expose_secret()) else { return Content::Sealed };
    Content::Tokens(Tokens {
        authorization: plain.authorization.into(),
        request: plain.request,
        remaining: Duration::from_millis(remaining_ms.max(0).unsigned_abs()),
        refresh_token: plain.refresh_token.into(),
    })
}

/// Tokens of one chain cannot be put in another's place.
fn context(chain: &ChainId) -> String {
    format!("oauth\0{}\0{}", chain.server, chain.fingerprint)
}

fn key(chain: &ChainId) -> ChainKey {
    ChainKey { server_name: chain.server.clone(), fingerprint: chain.fingerprint.clone() }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl From<crate::store::StoreError> for Unkept {
    fn from(error: crate::store::StoreError) -> Self {
        Self(error.to_string())
    }
}

#[async_trait]
impl ChainStore for Chains {
    async fn find(&self, chain: &ChainId) -> Result<Option<Kept>, Unkept> {
        match self.rows.find_chain(&key(chain)).await? {
            None => Ok(None),
            Some(row) => self.kept(chain, row).await.map(Some),
        }
    }

    async fn claim(&self, chain: &ChainId, holder: &str, lease: Duration) -> Result<Option<Kept>, Unkept> {
        // Nothing may be asked for that could not be kept.
        self.vault().await?;
        match self.rows.claim_refresh(&key(chain), holder, millis(lease)).await? {
            None => Ok(None),
            Some(row) => self.kept(chain, row).await.map(Some),
        }
    }

    async fn renew(&self, chain: &ChainId, holder: &str, lease: Duration) -> Result<bool, Unkept> {
        Ok(self.rows.renew_refresh(&key(chain), holder, millis(lease)).await?)
    }

    async fn release(&self, chain: &ChainId, holder: &str, lost: bool) -> Result<(), Unkept> {
        Ok(self.rows.release_refresh(&key(chain), holder, lost).await?)
    }

    async fn save(&self, chain: &ChainId, holder: &str, version: i64, tokens: &Tokens) -> Result<bool, Unkept> {
        let plain = Plain {
            authorization: tokens.authorization.expose_secret().to_owned(),
            request: tokens.request.clone(),
            refresh_token: tokens.refresh_token.expose_secret().to_owned(),
        };
        let plain = serde_json::to_string(&plain).map_err(|error| Unkept(error.to_string()))?;
        let sealed = self.vault().await?.seal(&plain, &context(chain));
        let sealed = sealed.ok_or_else(|| Unkept("tokens cannot be encrypted".to_owned()))?;
        let tokens = SealedTokens { holder, version, sealed: &sealed, remaining_ms: millis(tokens.remaining) };
        Ok(self.rows.save_chain(&key(chain), tokens).await?)
    }

    async fn retain(&self, servers: &[String]) -> Result<(), Unkept> {
        self.rows.retain_chains(servers).await?;
        Ok(())
    }
}

//! Chains of OAuth tokens, which a fleet continues together (BEHAVIOURS 116).

use async_trait::async_trait;

use super::Result;

/// Which chain: a server, and a digest of how its tokens are asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainKey {
    /// The server's name.
    pub server_name: String,
    /// Another one is another chain.
    pub fingerprint: String,
}

/// What is kept of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainRow {
    /// Grows with each set of tokens; 0 before the first.
    pub version: i64,
    /// The tokens, encrypted by whoever saved them; none before the first.
    pub sealed: Option<String>,
    /// How long the access token is still good for, by the store's clock; negative once it is not.
    pub remaining_ms: i64,
    /// Whether somebody began a refresh since then and vanished, so that its answer may be lost.
    pub interrupted: bool,
}

/// Tokens to save.
#[derive(Debug, Clone, Copy)]
pub struct SealedTokens<'a> {
    /// Who saves; the same again is the same write.
    pub holder: &'a str,
    /// One more than the version they were obtained from.
    pub version: i64,
    /// The tokens, encrypted.
    pub sealed: &'a str,
    /// How long the access token is good for.
    pub remaining_ms: i64,
}

/// The chains of a fleet. No call holds anything but for its own statement: the right to refresh is a lease in the row, judged
/// by the store's clock.
#[async_trait]
pub trait TokenChains: Send + Sync {
    /// The chain as it is.
    async fn find_chain(&self, key: &ChainKey) -> Result<Option<ChainRow>>;

    /// Takes the right to refresh the chain for `lease_ms`, and returns it as it then is; `None` while somebody else has it.
    async fn claim_refresh(&self, key: &ChainKey, holder: &str, lease_ms: i64) -> Result<Option<ChainRow>>;

    /// Keeps that right for `lease_ms` from now. Returns whether `holder` still had it.
    async fn renew_refresh(&self, key: &ChainKey, holder: &str, lease_ms: i64) -> Result<bool>;

    /// Gives that right back; `lost` says that an answer may have been lost. Nothing where somebody else has it.
    async fn release_refresh(&self, key: &ChainKey, holder: &str, lost: bool) -> Result<()>;

    /// Saves tokens, unless others of their version or a later one are there; the right to refresh is given back with it.
    ///
    /// Returns whether these very tokens are what is kept: saying the same again changes nothing.
    async fn save_chain(&self, key: &ChainKey, tokens: SealedTokens<'_>) -> Result<bool>;

    /// Deletes the chains of all servers but these, and but users' own connections. Returns how many.
    async fn retain_chains(&self, servers: &[String]) -> Result<u64>;
}

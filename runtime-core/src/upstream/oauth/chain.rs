//! What is asked of whoever keeps chains of refresh tokens for a fleet (BEHAVIOURS 116).

use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;

/// Which chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainId {
    /// The server's name.
    pub server: String,
    /// What the chain continues; another configuration has another one.
    pub fingerprint: String,
}

/// A set of tokens.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// The value of `Authorization`: type and access token.
    pub authorization: SecretString,
    /// What the access token was asked for with: only who would ask for it in the same way may use it.
    pub request: String,
    /// How long it is good for from now.
    pub remaining: Duration,
    /// The refresh token that continues the chain.
    pub refresh_token: SecretString,
}

/// What is kept of a chain.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Grows with each set of tokens; 0 before the first.
    pub version: i64,
    /// The tokens.
    pub content: Content,
    /// Whether a refresh was begun since then whose answer may be lost.
    pub interrupted: bool,
}

/// The tokens of a chain, if they can be had.
#[derive(Debug, Clone)]
pub enum Content {
    /// None were saved yet.
    Nothing,
    /// They are there, encrypted with a key that is not known here.
    Sealed,
    /// These.
    Tokens(Tokens),
}

/// The chains cannot be reached, or cannot be read. The text is for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unkept(pub String);

/// See [`ChainStore::lease`].
const LEASE: Duration = Duration::from_secs(30);

/// Keeps chains where all processes of a fleet find them.
///
/// The right to refresh a chain is a lease: it is given to one holder at a time, and ends by itself. No call may hold a lock
/// beyond its own answer.
#[async_trait]
pub trait ChainStore: std::fmt::Debug + Send + Sync {
    /// How long the right to refresh is given for; it is renewed three times in that while a request runs.
    fn lease(&self) -> Duration {
        LEASE
    }

    /// The chain as it is; `None` where nothing is known of it.
    async fn find(&self, chain: &ChainId) -> Result<Option<Kept>, Unkept>;

    /// Takes the right to refresh, and returns the chain as it then is; `None` while somebody else has it.
    async fn claim(&self, chain: &ChainId, holder: &str, lease: Duration) -> Result<Option<Kept>, Unkept>;

    /// Keeps the right for `lease` from now; whether `holder` still had it.
    async fn renew(&self, chain: &ChainId, holder: &str, lease: Duration) -> Result<bool, Unkept>;

    /// Gives the right back; `lost` says that a token may have been used up by a request whose answer did not come.
    async fn release(&self, chain: &ChainId, holder: &str, lost: bool) -> Result<(), Unkept>;

    /// Saves tokens under `version`, unless others of that version or a later one are kept; gives the right back. Whether
    /// these are what is kept now: saying the same again changes nothing.
    async fn save(&self, chain: &ChainId, holder: &str, version: i64, tokens: &Tokens) -> Result<bool, Unkept>;

    /// Forgets the chains of all servers but these.
    async fn retain(&self, servers: &[String]) -> Result<(), Unkept>;
}

//! API keys: who may call, kept without what would let a reader of the database call.

use async_trait::async_trait;

use super::{Page, Result};
use crate::clock::Millis;

/// A key as a store has it. The secret itself is nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKeyRecord {
    /// The public part of the key, at most 64 characters.
    pub id: String,
    /// Whose key it is, at most 255 characters.
    pub user_id: String,
    /// Words parted by blanks, at most 255 characters.
    pub scopes: String,
    /// A digest of the secret, as text of at most 255 characters.
    pub secret_hash: String,
    /// When it was made.
    pub created_at: Millis,
    /// From when on it is refused; `None`: never.
    pub expires_at: Option<Millis>,
    /// When it was last used, to about a minute.
    pub last_used_at: Option<Millis>,
    /// Since when it is refused for good.
    pub revoked_at: Option<Millis>,
}

/// The register of keys. A port of its own: only the daemon's rim asks it, never a worker.
#[async_trait]
pub trait ApiKeys: Send + Sync {
    /// Inserts a key. An id that is taken, or a text longer than its column, is an error of the kind
    /// [`Data`](super::StoreErrorKind::Data).
    async fn insert_key(&self, key: &ApiKeyRecord) -> Result<()>;

    /// The key with this id, revoked and expired ones too.
    async fn find_key(&self, id: &str) -> Result<Option<ApiKeyRecord>>;

    /// Keys, newest first, then by id downwards.
    async fn list_keys(&self, page: &Page) -> Result<Vec<ApiKeyRecord>>;

    /// Revokes a key; the time of the first revocation stays. Returns the row as it then is.
    async fn revoke_key(&self, id: &str, at: Millis) -> Result<Option<ApiKeyRecord>>;

    /// Notes that a key was used at `at`, unless a use less than `every_ms` before that is on record already, so that replicas
    /// together write about once in that time.
    async fn touch_key(&self, id: &str, at: Millis, every_ms: i64) -> Result<()>;
}

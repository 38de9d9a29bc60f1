//! Verified API keys: what the store said of a key counts for a few seconds, so that requests cost no reads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mcp_taskd_core::clock::Clock;
use mcp_taskd_core::store::{ApiKeyRecord, ApiKeys};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::identity::{Identity, Scopes, Verified};
use super::key::ApiKey;
use super::{Denied, Reason};

/// After this a key is read again, by one request while others go on with what is known.
const FRESH: Duration = Duration::from_secs(4);
/// After this nobody goes on with what is known, though the store be away. With the pause between two looks at an open stream's
/// credential it keeps what is promised: a revocation is in effect on every replica within ten seconds.
const STALE: Duration = Duration::from_secs(8);
/// How long a request waits for the store.
const PATIENCE: Duration = Duration::from_secs(5);
/// Reads at a time; whoever guesses ids must not take the store's connections.
const READS: usize = 8;
/// Keys that are remembered; of more, the one that was read longest ago is forgotten.
const MAX_KEYS: usize = 4_096;
/// How often a key's last use is written.
const TOUCH_MS: i64 = 60_000;

#[derive(Debug, Clone)]
struct Entry {
    record: ApiKeyRecord,
    read_at: Instant,
    /// When the next request reads it again.
    next_read: Instant,
    touched_at: i64,
}

/// The keys that callers have used here.
pub struct Ring {
    store: Arc<dyn ApiKeys>,
    clock: Arc<dyn Clock>,
    entries: Mutex<HashMap<String, Entry>>,
    reads: Semaphore,
}

impl Ring {
    /// Nothing is known yet.
    pub fn new(store: Arc<dyn ApiKeys>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, entries: Mutex::default(), reads: Semaphore::new(READS) }
    }

    /// The register behind it.
    pub fn store(&self) -> &Arc<dyn ApiKeys> {
        &self.store
    }

    /// Verifies what a caller presents.
    pub async fn verify(&self, text: &str) -> Result<Verified, Denied> {
        let key = ApiKey::parse(text).ok_or(Denied::Unauthenticated(Reason::Malformed))?;
        let record = self.record(key.id()).await?.filter(|record| key.matches(&record.secret_hash));
        // One answer for an id that nobody has and for a secret that is wrong.
        let record = record.ok_or(Denied::Unauthenticated(Reason::Unknown))?;
        if record.revoked_at.is_some() {
            return Err(Denied::Unauthenticated(Reason::Revoked));
        }
        let now_ms = self.clock.now_ms();
        if record.expires_at.is_some_and(|at| at <= now_ms) {
            return Err(Denied::Unauthenticated(Reason::Expired));
        }
        self.touch(key.id(), now_ms);
        let (scopes, act_as) = Scopes::of_words(record.scopes.split(' '));
        Ok(Verified { subject: record.id, identity: Identity { user_id: record.user_id, scopes, act_as } })
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the store says, or said a moment ago.
    async fn record(&self, id: &str) -> Result<Option<ApiKeyRecord>, Denied> {
        let now = Instant::now();
        let known = {
            let mut entries = self.entries();
            match entries.get_mut(id) {
                Some(entry) if now < entry.next_read && now < entry.read_at + STALE => {
                    return Ok(Some(entry.record.clone()));
                }
                Some(entry) => {
                    // Others need not read too, unless this one comes to nothing.
                    entry.next_read = now + Duration::from_secs(1);
                    Some(entry.clone())
                }
                None => None,
            }
        };
        match self.read(id).await {
            Ok(record) => {
                self.remember(id, record.as_ref(), now);
                Ok(record)
            }
            Err(denied) => match known {
                Some(entry) if Instant::now() < entry.read_at + STALE => Ok(Some(entry.record)),
                _ => Err(denied),
            },
        }
    }

    async fn read(&self, id: &str) -> Result<Option<ApiKeyRecord>, Denied> {
        let reading = async {
            let _permit = self.reads.acquire().await.ok()?;
            self.store
                .find_key(id)
                .await
                .inspect_err(|error| tracing::warn!(%error, key = id, "an API key cannot be looked up"))
                .ok()
        };
        tokio::time::timeout(PATIENCE, reading).await.ok().flatten().ok_or(Denied::Unavailable)
    }

    /// Keeps what was read, as of when the reading began. Ids that nobody has are not kept: they could be many.
    fn remember(&self, id: &str, record: Option<&ApiKeyRecord>, read_at: Instant) {
        let mut entries = self.entries();
        let Some(record) = record else {
            entries.remove(id);
            return;
        };
        if !entries.contains_key(id) && entries.len() >= MAX_KEYS {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.read_at).map(|(id, _)| id.clone());
            oldest.and_then(|id| entries.remove(&id));
        }
        let touched_at = entries.get(id).map(|entry| entry.touched_at).max(record.last_used_at).unwrap_or(i64::MIN);
        let entry = Entry { record: record.clone(), read_at, next_read: read_at + FRESH, touched_at };
        entries.insert(id.to_owned(), entry);
    }

    /// Notes a use, about once a minute, beside the request.
    fn touch(&self, id: &str, now_ms: i64) {
        {
            let mut entries = self.entries();
            let Some(entry) = entries.get_mut(id) else { return };
            if now_ms.saturating_sub(entry.touched_at) < TOUCH_MS {
                return;
            }
            entry.touched_at = now_ms;
        }
        let (store, id) = (Arc::clone(&self.store), id.to_owned());
        tokio::spawn(async move {
            if let Err(error) = store.touch_key(&id, now_ms, TOUCH_MS).await {
                tracing::debug!(%error, key = id, "the use of an API key was not noted");
            }
        });
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("known", &self.entries().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;

//! Resets of the tool cache that every process of a fleet follows (BEHAVIOURS 97).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::store::{Result, SharedState};

/// The name of the generation.
const TOOL_CACHE: &str = "tool_cache";
/// How old what is known of the generation may be: how long another process's reset may go unnoticed.
const MAX_AGE: Duration = Duration::from_secs(1);
/// How long a lookup waits for the store; it can do without.
const PATIENCE: Duration = Duration::from_secs(2);

/// How far a reset reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetScope {
    /// Every process on the same store.
    SharedConfig,
    /// This process alone.
    Process,
}

impl ResetScope {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SharedConfig => "shared_config",
            Self::Process => "process",
        }
    }
}

/// The generation of the tool cache, as this process last saw it.
pub(super) struct Shared {
    state: Option<Arc<dyn SharedState>>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    generation: Option<i64>,
    looked_at: Option<Instant>,
}

impl Shared {
    /// Where `state` is absent, nobody shares anything.
    pub(super) fn new(state: Option<Arc<dyn SharedState>>) -> Self {
        Self { state, seen: Mutex::default() }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another process has reset the cache since this one last looked. The first look only learns where it stands:
    /// it comes before the first discovery.
    pub(super) async fn was_reset(&self) -> bool {
        let Some(state) = &self.state else { return false };
        {
            let mut seen = self.seen();
            let now = Instant::now();
            if seen.looked_at.is_some_and(|at| now < at + MAX_AGE) {
                return false;
            }
            seen.looked_at = Some(now);
        }
        match timeout(PATIENCE, state.generation(TOOL_CACHE)).await {
            Ok(Ok(generation)) => self.learn(generation),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the generation of the tool cache cannot be read");
                false
            }
            Err(_) => {
                tracing::debug!("the generation of the tool cache takes too long to read");
                false
            }
        }
    }

    /// Tells every process to forget; how far that reaches.
    pub(super) async fn reset(&self) -> Result<ResetScope> {
        let Some(state) = &self.state else { return Ok(ResetScope::Process) };
        let generation = state.next_generation(TOOL_CACHE).await?;
        self.learn(generation);
        Ok(ResetScope::SharedConfig)
    }

    /// Whether `generation` is a later one than known. A slow answer may be an old one.
    fn learn(&self, generation: i64) -> bool {
        let mut seen = self.seen();
        let is_later = seen.generation.is_some_and(|known| generation > known);
        seen.generation = seen.generation.max(Some(generation));
        is_later
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::store::memory::MemoryStore;

    #[tokio::test(start_paused = true)]
    async fn a_reset_elsewhere_is_noticed_once_within_a_second_97() {
        let store = Arc::new(MemoryStore::new(Arc::new(SystemClock)));
        let (here, there) = (Shared::new(Some(store.clone())), Shared::new(Some(store)));
        assert!(!here.was_reset().await && !there.was_reset().await);
        assert_eq!(there.reset().await.unwrap(), ResetScope::SharedConfig);
        assert!(!here.was_reset().await, "not asked again at once");
        tokio::time::advance(MAX_AGE).await;
        assert!(here.was_reset().await);
        tokio::time::advance(MAX_AGE).await;
        assert!(!here.was_reset().await && !there.was_reset().await, "its own is no news");
        let alone = Shared::new(None);
        assert_eq!(alone.reset().await.unwrap(), ResetScope::Process);
    }
}

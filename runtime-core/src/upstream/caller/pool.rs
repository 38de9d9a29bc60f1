//! The ways to one server, one for each credential: bounded, and closed when nobody has used them for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

use super::{Credential, Open};
use crate::config::ConfigError;
use crate::upstream::SharedUpstream;

/// Most of them that are kept though nobody uses them at the moment.
const MAX_KEPT: usize = 256;
/// How long one is kept that nobody uses.
const IDLE: Duration = Duration::from_mins(5);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A credential's digest: the credential itself is kept only where it is sent from.
type Key = [u8; 32];

struct Way {
    upstream: SharedUpstream,
    used: Instant,
}

#[derive(Default)]
struct State {
    ways: HashMap<Key, Way>,
    /// Whether somebody looks for those that are idle.
    tended: bool,
}

#[derive(Default)]
pub(super) struct Pool(Mutex<State>);

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way for `credential`.
    pub(super) fn get(self: &Arc<Self>, credential: &Credential, open: &Open) -> Result<SharedUpstream, ConfigError> {
        let key = digest(credential);
        let now = Instant::now();
        let mut state = self.state();
        if let Some(way) = state.ways.get_mut(&key) {
            way.used = now;
            return Ok(Arc::clone(&way.upstream));
        }
        let upstream = open(credential)?;
        state.ways.insert(key, Way { upstream: Arc::clone(&upstream), used: now });
        let surplus = state.surplus();
        let tended = std::mem::replace(&mut state.tended, true);
        drop(state);
        close(surplus);
        if !tended {
            tokio::spawn(tend(Arc::downgrade(self)));
        }
        Ok(upstream)
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<SharedUpstream> {
        self.state().ways.values().map(|way| Arc::clone(&way.upstream)).collect()
    }

    /// Takes all of them out.
    pub(super) fn drain(&self) -> Vec<SharedUpstream> {
        self.state().ways.drain().map(|(_, way)| way.upstream).collect()
    }

    /// Closes those that are idle; whether there may be more of them later.
    fn sweep(&self) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        let is_idle = |way: &Way| way.is_free() && now.duration_since(way.used) >= IDLE;
        let idle = state.ways.extract_if(|_, way| is_idle(way)).map(|(_, way)| way.upstream).collect();
        state.tended = !state.ways.is_empty();
        let tended = state.tended;
        drop(state);
        close(idle);
        tended
    }
}

impl Way {
    /// Whether no call is under way on it: nobody can take it while the state is locked.
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.upstream) == 1
    }
}

impl State {
    /// Takes out what was used longest ago and is free, down to the bound.
    fn surplus(&mut self) -> Vec<SharedUpstream> {
        let mut surplus = Vec::new();
        while self.ways.len() > MAX_KEPT {
            let free = self.ways.iter().filter(|(_, way)| way.is_free());
            let Some(oldest) = free.min_by_key(|(_, way)| way.used).map(|(key, _)| *key) else { break };
            surplus.extend(self.ways.remove(&oldest).map(|way| way.upstream));
        }
        surplus
    }
}

async fn tend(pool: Weak<Pool>) {
    loop {
        sleep(LOOK_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        if !pool.sweep() {
            return;
        }
    }
}

/// Ends sessions in the background.
fn close(ways: Vec<SharedUpstream>) {
    for way in ways {
        tokio::spawn(async move { way.close().await });
    }
}

fn digest(credential: &Credential) -> Key {
    let mut parts: Vec<_> = credential.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    parts.sort_unstable();
    let mut hasher = Sha256::new();
    for (name, value) in parts {
        for part in [name.as_bytes(), value] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize().into()
}

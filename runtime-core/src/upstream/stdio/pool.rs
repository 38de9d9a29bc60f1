//! The sessions of all stdio servers, a bounded number of them (BEHAVIOURS 29, 102, 103).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::restraint::Restraint;
use super::session::Session;
use crate::upstream::Scope;
use crate::upstream::flight::Flight;

/// The place of one scope's session on one server.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) flight: Flight<Session>,
    /// Of processes that ended soon after they had started.
    pub(super) restraint: Mutex<Restraint>,
    used: AtomicU64,
    retired: AtomicBool,
}

impl Slot {
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }
}

/// A server in the pool: two with the same name, of which one takes the other's place, share nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tenant(u64);

type Slots = HashMap<Tenant, HashMap<Scope, Arc<Slot>>>;

/// Sessions by server and scope.
pub(in crate::upstream) struct Pool {
    capacity: usize,
    slots: Mutex<Slots>,
    tick: AtomicU64,
}

impl Pool {
    pub(in crate::upstream) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), slots: Mutex::default(), tick: AtomicU64::new(0) }
    }

    /// A place for a server's sessions.
    pub(super) fn admit(&self) -> Tenant {
        Tenant(self.tick.fetch_add(1, Ordering::Relaxed))
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The scope's place; where there are too many, the one used longest ago goes, an idle one before a busy one.
    ///
    /// A session that goes while it is used ends when its users let go of it.
    pub(super) fn slot(&self, server: Tenant, scope: &Scope) -> Arc<Slot> {
        let now = self.tick.fetch_add(1, Ordering::Relaxed);
        let mut slots = self.slots();
        if let Some(slot) = slots.get(&server).and_then(|scopes| scopes.get(scope)) {
            slot.used.store(now, Ordering::Relaxed);
            return Arc::clone(slot);
        }
        let mut evicted = Vec::new();
        while slots.values().map(HashMap::len).sum::<usize>() >= self.capacity {
            let oldest = slots
                .iter()
                .flat_map(|(server, scopes)| scopes.iter().map(move |(scope, slot)| (server, scope, slot)))
                .min_by_key(|(_, _, slot)| (Arc::strong_count(slot) > 1, slot.used.load(Ordering::Relaxed)))
                .map(|(server, scope, _)| (*server, scope.clone()));
            let Some((server, scope)) = oldest else { break };
            evicted.extend(slots.get_mut(&server).and_then(|scopes| scopes.remove(&scope)));
        }
        let slot = Arc::new(Slot::default());
        slot.used.store(now, Ordering::Relaxed);
        slots.entry(server).or_default().insert(scope.clone(), Arc::clone(&slot));
        drop(slots);
        if !evicted.is_empty() {
            let (sessions, capacity) = (evicted.len(), self.capacity);
            tracing::info!(sessions, capacity, "too many stdio sessions; those used longest ago are ended");
        }
        drop(evicted);
        slot
    }

    /// Takes all of a server's places out.
    pub(super) fn take(&self, server: Tenant) -> Vec<Arc<Slot>> {
        self.slots().remove(&server).unwrap_or_default().into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(user: usize) -> Scope {
        Scope { user_id: user.to_string().into(), thread_id: "t".into() }
    }

    #[test]
    fn the_place_used_longest_ago_goes_and_idle_ones_go_first_102() {
        let pool = Pool::new(3);
        let (server, other) = (pool.admit(), pool.admit());
        let busy = pool.slot(server, &scope(0));
        let idle = Arc::downgrade(&pool.slot(server, &scope(1)));
        let recent = Arc::downgrade(&pool.slot(other, &scope(0)));
        let again = pool.slot(server, &scope(0));
        assert!(Arc::ptr_eq(&busy, &again), "the same scope has one place");
        pool.slot(server, &scope(2));
        assert!(idle.upgrade().is_none(), "the idle one used longest ago is gone");
        assert!(recent.upgrade().is_some(), "another server's scope is another place");
        assert_eq!(pool.take(server).len(), 2);
        assert_eq!(pool.take(server).len(), 0);
    }
}

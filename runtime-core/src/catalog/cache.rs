//! What is known of each server's tools, and what that adds up to (BEHAVIOURS M): decisions only, no server is asked here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::View;
use super::assemble::{Discovered, Rules, Server, assemble};
use crate::upstream::SharedUpstream;

/// A server that failed is asked again after this long, doubling up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_secs(2);
const MAX_RETRY: Duration = Duration::from_mins(1);
/// Where all of them failed, the next caller has them asked again at once, but not more often than this.
const FLOOR: Duration = Duration::from_secs(1);

/// A server as the cache is given it.
pub(super) struct Given {
    pub(super) server: Server,
    /// What its answer depends on: the same key means the same answer (95).
    pub(super) key: String,
    pub(super) upstream: SharedUpstream,
}

/// A server that has to be asked now. What it answers belongs to this very ticket: one that was handed out before a change
/// or a reset is worth nothing afterwards (96).
pub(super) struct Ask {
    pub(super) ticket: u64,
    pub(super) name: String,
    pub(super) upstream: SharedUpstream,
}

struct Slot {
    given: Given,
    ticket: u64,
    discovered: Option<Discovered>,
    failures: u32,
    failed_at: Option<Instant>,
    running: bool,
    /// Whether a caller waits for it to be asked once more.
    again: bool,
    /// Whether it said that its tools changed since it was last asked.
    stale: bool,
    /// Listens to it; ends with the ticket.
    follower: Option<AbortOnDropHandle<()>>,
}

/// The cache, server by server.
pub(super) struct Cache {
    rules: Rules,
    slots: Vec<Slot>,
    tickets: u64,
    /// Of what is known so far.
    view: Arc<View>,
    /// What agents last saw.
    published: Option<Arc<View>>,
    /// What was wrong when it was last logged.
    logged: Vec<String>,
}

impl Cache {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, slots: Vec::new(), tickets: 0, view: Arc::default(), published: None, logged: Vec::new() }
    }

    /// Takes other servers, or the same in another order. Whoever is as before keeps its answer, also one that is under way. Whether agents now
    /// see other tools.
    pub(super) fn set(&mut self, servers: Vec<Given>) -> bool {
        let mut known = std::mem::take(&mut self.slots);
        for given in servers {
            let same = known
                .iter()
                .position(|slot| slot.given.server.name == given.server.name && slot.given.key == given.key);
            let slot = match same {
                Some(at) => Slot { given, ..known.swap_remove(at) },
                None => self.fresh(given),
            };
            self.slots.push(slot);
        }
        self.settle()
    }

    /// Forgets every answer (97).
    pub(super) fn forget(&mut self) -> bool {
        for slot in std::mem::take(&mut self.slots) {
            let slot = self.fresh(slot.given);
            self.slots.push(slot);
        }
        self.settle()
    }

    fn fresh(&mut self, given: Given) -> Slot {
        self.tickets += 1;
        Slot {
            given,
            ticket: self.tickets,
            discovered: None,
            failures: 0,
            failed_at: None,
            running: false,
            again: false,
            stale: false,
            follower: None,
        }
    }

    /// Whether there has been anything to see yet.
    pub(super) fn was_published(&self) -> bool {
        self.published.is_some()
    }

    /// What is known so far.
    pub(super) fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// What is known, once every server has answered or failed.
    pub(super) fn complete(&self) -> Option<Arc<View>> {
        self.slots.iter().all(|slot| slot.discovered.is_some() && !slot.again).then(|| Arc::clone(&self.view))
    }

    /// A caller begins to look: where all servers failed, there is nothing to show it, and it has them asked again. Whether
    /// they failed before, so that it should not wait for ever.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let is_over = |slot: &Slot| !slot.running && slot.failed_at.is_some_and(|at| now >= at + FLOOR);
        if self.slots.iter().all(is_over) {
            self.slots.iter_mut().for_each(|slot| slot.again = true);
        }
        self.slots.iter().all(|slot| slot.failed_at.is_some())
    }

    /// Whom to ask now: who failed some time ago, and with `first` who was not asked yet.
    pub(super) fn due(&mut self, now: Instant, first: bool) -> Vec<Ask> {
        let is_due = |slot: &Slot| match (&slot.discovered, slot.failed_at) {
            (None, _) => first,
            _ if slot.again || slot.stale => true,
            (Some(Err(_)), Some(at)) => {
                now >= at + MIN_RETRY.saturating_mul(1 << slot.failures.saturating_sub(1).min(5)).min(MAX_RETRY)
            }
            _ => false,
        };
        let due = self.slots.iter_mut().filter(|slot| !slot.running && is_due(slot));
        due.map(|slot| {
            (slot.running, slot.stale) = (true, false);
            let upstream = Arc::clone(&slot.given.upstream);
            Ask { ticket: slot.ticket, name: slot.given.server.name.clone(), upstream }
        })
        .collect()
    }

    /// Takes an answer in; one to a ticket that is no longer valid is discarded. Whether agents now see other tools.
    pub(super) fn record(&mut self, ticket: u64, discovered: Discovered, now: Instant) -> bool {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.ticket == ticket) else { return false };
        (slot.running, slot.again) = (false, false);
        if discovered.is_ok() {
            (slot.failures, slot.failed_at) = (0, None);
        } else {
            (slot.failures, slot.failed_at) = (slot.failures.saturating_add(1), Some(now));
        }
        slot.discovered = Some(discovered);
        self.settle()
    }

    /// What tells that a server's tools changed, where it answered to this ticket and nobody listens to it yet.
    pub(super) fn unfollowed(&self, ticket: u64) -> Option<watch::Receiver<u64>> {
        let slot = self.slots.iter().find(|slot| slot.ticket == ticket)?;
        let listens = slot.follower.as_ref().is_some_and(|follower| !follower.is_finished());
        (!listens && matches!(slot.discovered, Some(Ok(_)))).then(|| slot.given.upstream.changes())
    }

    /// Keeps who listens to a server for as long as the ticket is valid.
    pub(super) fn followed(&mut self, ticket: u64, follower: AbortOnDropHandle<()>) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.ticket == ticket) {
            slot.follower = Some(follower);
        }
    }

    /// A server said that its tools changed: it is asked again, and what it said before stands meanwhile. Whether the
    /// ticket is still valid.
    pub(super) fn expire(&mut self, ticket: u64) -> bool {
        let slot = self.slots.iter_mut().find(|slot| slot.ticket == ticket);
        slot.map(|slot| slot.stale = true).is_some()
    }

    /// Works out the view anew, and publishes it where every server was heard and not all of them failed (95).
    fn settle(&mut self) -> bool {
        let known = self.slots.iter().map(|slot| (&slot.given.server, slot.discovered.as_ref()));
        self.view = Arc::new(assemble(known, &self.rules));
        if self.complete().is_some() && self.logged != self.view.problems {
            for problem in self.view.problems.iter().filter(|problem| !self.logged.contains(problem)) {
                tracing::error!(problem, "catalogue");
            }
            self.logged.clone_from(&self.view.problems);
        }
        let all_failed =
            !self.slots.is_empty() && self.slots.iter().all(|slot| matches!(slot.discovered, Some(Err(_))));
        if all_failed || self.complete().is_none() {
            return false;
        }
        let before = self.published.replace(Arc::clone(&self.view));
        before.is_some_and(|before| !self.view.lists_as(&before))
    }

    /// Whether the guardrail allows the submit tool of this toolset (130).
    pub(super) fn allows_submit(&self, server: &str, task: &str) -> bool {
        self.slots.iter().map(|slot| &slot.given.server).filter(|known| known.name == server).all(|known| {
            let mut toolsets = known.toolsets.iter().filter(|toolset| toolset.name == task);
            toolsets.all(|toolset| self.rules.guardrail.allows(&known.visible_name(&toolset.submit_tool)))
        })
    }

    /// The ways to the servers.
    pub(super) fn upstreams(&self) -> Vec<SharedUpstream> {
        self.slots.iter().map(|slot| Arc::clone(&slot.given.upstream)).collect()
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;

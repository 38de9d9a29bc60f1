//! The fleet: an even share, the lease, and another life after a refused one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Actor;
use crate::store::{Result, WorkerId};
use crate::task::{PERSONAL, Status};
use crate::worker::balance;
use crate::worker::held::Phase;
use crate::worker::lanes::Slot;
use crate::worker::message::Message;
use crate::worker::{Context, Incarnation, heartbeat, takeover};

impl Actor {
    /// Whether what is due is for the others to claim, as long as it is not late.
    pub(super) fn above_share(&self) -> bool {
        self.balance.holds_back(&self.fleet, self.held.len(), self.crowd.polls)
    }

    /// Lets the tasks due last go, where the share is exceeded.
    pub(super) fn balance(&mut self) {
        let held = &self.held;
        self.leaving.retain(|id| held.get(id).is_some_and(|held| matches!(held.phase, Phase::Writing(_))));
        // What is on its way out still counts as held: it would be let go a second time. While there is more to claim than
        // anybody can take, shares mean nothing.
        if !self.may_call() || !self.leaving.is_empty() || self.crowd.polls {
            return;
        }
        let excess = self.balance.let_go(&self.fleet, self.held.len());
        let spare: Vec<_> = self
            .held
            .latest()
            .filter(|id| self.held.get(id).is_some_and(|held| held.task.status != Status::Submitting))
            .take(excess)
            .cloned()
            .collect();
        if !spare.is_empty() {
            tracing::info!(tasks = spare.len(), "tasks are let go for another worker");
        }
        for id in &spare {
            self.release(id);
        }
        self.leaving = spare;
    }

    /// Tells the others soon when the number of held tasks has changed by an eighth.
    pub(super) fn publish(&mut self) {
        let held = self.held.len() as i64;
        self.context.held.store(held, Ordering::Relaxed);
        if (held - self.published).abs() >= balance::FROM.max(self.published / 8) {
            self.published = held;
            self.context.publish.notify_one();
        }
    }

    pub(super) fn observe(&mut self) {
        let metrics = &self.context.metrics;
        metrics.leases_held.set(self.held.len() as i64);
        let (slots, used) = self.lanes.usage(Slot::Poll);
        metrics.poll_slots.with_label_values(&["total"]).set(slots as i64);
        metrics.poll_slots.with_label_values(&["used"]).set(used as i64);
        let names: Vec<String> = self.context.routes.names().map(str::to_owned).collect();
        for name in names {
            let open = self.lanes.breaker(&name).is_open();
            self.context.metrics.breaker_open.with_label_values(&[&name]).set(i64::from(open));
        }
        let open = self.lanes.any_personal_open();
        self.context.metrics.breaker_open.with_label_values(&[PERSONAL]).set(i64::from(open));
        self.lanes.prune();
    }

    pub(super) fn start_heartbeat(&mut self) {
        if let Some(worker) = &self.worker {
            let beat = heartbeat::run(Arc::clone(&self.context), Arc::clone(worker), self.messages.clone());
            self.heartbeat = Some(self.context.tasks.spawn(beat));
        }
    }

    /// The lease is certain again: what waited for that is written.
    pub(super) fn renewed(&mut self) {
        self.want_reconcile = true;
        let parked: Vec<_> = self
            .held
            .iter()
            .filter(|held| matches!(held.phase, Phase::Parked(_)))
            .map(|held| Arc::clone(&held.task.id))
            .collect();
        for id in parked {
            let Some(held) = self.held.get_mut(&id) else { continue };
            if let Phase::Parked(change) = std::mem::replace(&mut held.phase, Phase::Waiting) {
                self.write(&id, *change);
            }
        }
    }

    /// Dead to the store: nothing that is held is owned any more. Start again under a new id.
    pub(super) fn reborn(&mut self, old: &WorkerId) {
        let Some(worker) = self.worker.take_if(|worker| worker.id == *old) else { return };
        worker.leave();
        tracing::error!(worker = %old, tasks = self.held.len(), "the store counts this worker as dead; it starts again");
        self.context.metrics.leases_lost.with_label_values(&["refused"]).inc_by(self.held.len() as u64);
        self.running.keys().copied().collect::<Vec<_>>().into_iter().for_each(|job| self.abort(job));
        self.held.clear();
        self.lanes.clear();
        self.to_load.clear();
        self.leaving.clear();
        self.asked = None;
        self.context.set_incarnation(None);
        self.register(Duration::ZERO);
    }

    fn register(&mut self, after: Duration) {
        self.registering = true;
        let (context, messages) = (Arc::clone(&self.context), self.messages.clone());
        self.context.tasks.spawn(async move {
            tokio::time::sleep(after).await;
            let registered = context.register().await;
            if let Err(refused) = messages.send(Message::Reborn(registered))
                && let Message::Reborn(Ok(late)) = refused.0
            {
                // The drain could not wait for it any longer.
                retire(&context, &late).await;
            }
        });
    }

    pub(super) fn registered(&mut self, incarnation: Result<Arc<Incarnation>>) {
        self.registering = false;
        match incarnation {
            Ok(incarnation) => {
                self.context.set_incarnation(Some(Arc::clone(&incarnation)));
                self.worker = Some(incarnation);
                self.want_claim = true;
                self.start_heartbeat();
            }
            Err(error) if self.drain.is_some() => {
                tracing::info!(%error, "the worker is shutting down and does not register again");
            }
            Err(error) => {
                tracing::error!(%error, "the worker cannot register");
                self.register(Duration::from_millis(500 + fastrand::u64(..1_000)));
            }
        }
    }
}

/// Leaves the register: dead, never deleted, and whatever is left is freed at once.
pub(super) async fn retire(context: &Context, worker: &Incarnation) {
    let left = async {
        context.store.mark_dead(&worker.id, &worker.id, None).await?;
        worker.leave();
        if takeover::free_all(context).await? > 0 {
            context.announce_due();
        }
        context.store.delete_dead().await
    };
    match left.await {
        Ok(_) => tracing::info!(worker = %worker.id, "worker retired"),
        Err(error) => tracing::warn!(%error, "the worker could not retire; others will find it dead"),
    }
}

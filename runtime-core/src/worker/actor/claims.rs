//! The store's side: claims, reconciling, adoptions; one question is open at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Actor;
use crate::driver::DRIVERS;
use crate::store::{ClaimOrder, Owned, WorkerId};
use crate::task::{PERSONAL, Status};
use crate::worker::held::{Held, Phase};
use crate::worker::lanes::cancel_slots;
use crate::worker::message::{Answer, Message};
use crate::worker::room::{CLAIM, Crowd, Portion, Room};

/// Cancels of one server that may be held beyond `max_held`, for each slot that cancels have.
const CANCEL_RESERVE: usize = 4;
/// How long an answer of the store is waited for before the question counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// A claim reaches this far ahead at least.
const HORIZON_MS: i64 = 60_000;
/// How often a claim that asks for each server apart looks for tasks of others, where the last look found none: it goes past all
/// that waits.
const STRANGERS_EVERY: Duration = Duration::from_secs(5);
/// What a worker above its share still takes: what has been due for so long that nobody else seems to.
const LATE_MS: i64 = 2_000;

impl Actor {
    pub(super) fn ask(&mut self) {
        if let Some(asked) = self.asked {
            if asked.elapsed() < PATIENCE {
                return;
            }
            // Its answer is ignored when it comes; what it did is found by reconciling.
            tracing::warn!("the store has not answered for {PATIENCE:?}");
            self.asked = None;
            self.want_reconcile = true;
        }
        let Some(worker) = self.worker.as_ref().map(|worker| Arc::clone(&worker.id)) else { return };
        if self.fenced() {
            return;
        }
        let store = Arc::clone(&self.context.store);
        if !self.to_load.is_empty() {
            let rest = self.to_load.split_off(self.to_load.len().min(CLAIM));
            let ids = std::mem::replace(&mut self.to_load, rest);
            self.question(async move {
                let tasks = store.load_owned(&worker, &ids).await;
                Answer::Loaded { ids, tasks }
            });
        } else if self.want_reconcile {
            self.want_reconcile = false;
            self.question(async move { Answer::Owned(store.owned(&worker).await) });
        } else if self.want_claim && self.drain.is_none() && self.context.options.polls {
            self.want_claim = false;
            let now = Instant::now();
            let strangers = now >= self.next_strangers;
            if strangers {
                self.next_strangers = now + STRANGERS_EVERY;
            }
            let orders = self.claim_orders(&worker, strangers);
            let metrics = self.context.metrics.clone();
            self.question(async move {
                let (mut tasks, mut crowd, mut strangers, mut failed) = (Vec::new(), Crowd::default(), false, false);
                for order in orders {
                    match store.claim(&order).await {
                        Ok(claimed) => {
                            metrics.claims.with_label_values(&["ok"]).inc();
                            metrics.claimed_tasks.inc_by(claimed.len() as u64);
                            metrics.rows_written.with_label_values(&["claim"]).inc_by(claimed.len() as u64);
                            let full = claimed.len() >= order.limit as usize;
                            *(if order.cancels { &mut crowd.cancels } else { &mut crowd.polls }) |= full;
                            strangers |= order.servers.is_empty() && !claimed.is_empty();
                            tasks.extend(claimed);
                        }
                        Err(error) => {
                            metrics.claims.with_label_values(&["error"]).inc();
                            tracing::warn!(%error, "claim failed");
                            failed = true;
                        }
                    }
                }
                Answer::Claimed { tasks, crowd, strangers, failed }
            });
        }
    }

    pub(super) fn question(&mut self, answer: impl Future<Output = Answer> + Send + 'static) {
        self.questions += 1;
        self.asked = Some(Instant::now());
        let (question, messages) = (self.questions, self.messages.clone());
        self.context.tasks.spawn(async move {
            let answer = answer.await;
            let _ = messages.send(Message::Answer { question, answer });
        });
    }

    /// What this worker has room for.
    pub(super) fn room(&self) -> Room {
        let options = &self.context.options;
        Room {
            max_held: options.max_held,
            held: self.held.len(),
            cancel_reserve: CANCEL_RESERVE * cancel_slots(options.max_concurrent_polls),
        }
    }

    /// Cancels first, even when room is full; then what is due soon, while there is room.
    fn claim_orders(&self, worker: &WorkerId, strangers: bool) -> Vec<ClaimOrder> {
        let now = self.context.now();
        let any_server_due_before = now - self.context.options.lease.as_millis() as i64;
        let routes = &self.context.routes;
        let personal = routes.connections();
        // Those share one part of the room, however many they are.
        let names = routes.names().chain((!personal.is_empty()).then_some(PERSONAL));
        let servers: Vec<_> = names.map(|name| (name, self.held.of_server(name))).collect();
        let held = strangers.then(|| self.held.of_strangers(|name| routes.find(name).is_some() || name == PERSONAL));
        let all = |servers: Vec<String>| -> Vec<String> {
            let has_personal = servers.iter().any(|name| name == PERSONAL);
            servers.into_iter().chain(personal.iter().filter(|_| has_personal).cloned()).collect()
        };
        let known: Vec<String> = routes.names().map(str::to_owned).chain(personal.iter().cloned()).collect();
        let order = |cancels, due_before, portion: Portion| ClaimOrder {
            worker: Arc::clone(worker),
            cancels,
            servers: all(portion.servers),
            known: known.clone(),
            drivers: DRIVERS.iter().map(|&driver| driver.to_owned()).collect(),
            due_before,
            any_server_due_before: portion.strangers.then_some(any_server_due_before),
            limit: portion.limit as u32,
        };
        let room = self.room();
        let due_before = if self.above_share() { now - LATE_MS } else { now + self.horizon() };
        let cancels = room.cancels(&servers, held, self.crowd.cancels);
        let polls = room.polls(&servers, self.crowd.polls, strangers);
        let cancels = cancels.into_iter().map(|portion| order(true, now, portion));
        cancels.chain(polls.into_iter().map(|portion| order(false, due_before, portion))).collect()
    }

    pub(super) fn horizon(&self) -> i64 {
        HORIZON_MS.max(2 * self.context.policy.poll_interval_ms)
    }

    pub(super) fn answered(&mut self, question: u64, answer: Answer) {
        if question != self.questions || self.asked.take().is_none() {
            // Too late: the question was given up. What a late claim took is found by reconciling.
            self.want_reconcile = true;
            return;
        }
        match answer {
            Answer::Claimed { tasks, crowd, strangers, failed } => {
                self.want_reconcile |= failed;
                self.want_claim |= crowd != Crowd::default();
                self.crowd = crowd;
                if strangers {
                    // There may be more, but they do not come before the others.
                    self.next_strangers = self.next_tick;
                }
                if crowd.polls {
                    self.balance.shared_a_crowd(&self.fleet);
                }
                tasks.into_iter().for_each(|task| self.hold(task));
            }
            Answer::Owned(Ok(rows)) => self.reconcile(&rows),
            Answer::Loaded { ids, tasks: Ok(tasks) } => {
                for id in ids {
                    let gone = self.held.get(&id).is_some_and(|held| held.since < question)
                        && !tasks.iter().any(|task| task.id == id);
                    if gone {
                        self.lose(&id, "reconcile");
                    }
                }
                tasks.into_iter().for_each(|task| self.hold(task));
            }
            Answer::Owned(Err(error)) | Answer::Loaded { tasks: Err(error), .. } => {
                tracing::warn!(%error, "own rows cannot be read");
                // With the next heartbeat it is tried again.
            }
        }
    }

    /// Brings what is held and what is owned together (DESIGN, Reconcile).
    pub(super) fn reconcile(&mut self, rows: &[Owned]) {
        let question = self.questions;
        let owned: HashMap<&Arc<str>, i64> = rows.iter().map(|row| (&row.id, row.epoch)).collect();
        let settled = |held: &&Held| held.since < question && !matches!(held.phase, Phase::Writing(_));
        let lost: Vec<_> = self
            .held
            .iter()
            .filter(settled)
            .filter(|held| !owned.contains_key(&held.task.id))
            .map(|held| Arc::clone(&held.task.id))
            .collect();
        for id in lost {
            self.lose(&id, "reconcile");
        }
        let intents = self.context.intents().clone();
        let strangers = rows.iter().filter(|row| match self.held.get(&row.id) {
            Some(held) => settled(&held) && row.epoch > held.task.lease_epoch,
            None => !(row.status == Some(Status::Submitting) && intents.contains(&row.id)),
        });
        self.to_load = strangers.map(|row| Arc::clone(&row.id)).collect();
    }
}

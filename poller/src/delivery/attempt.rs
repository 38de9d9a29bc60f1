//! One attempt at a delivery, from the task's row to what is written of it.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::clock::Clock;
use mcp_taskd_core::store::{Deliveries, Delivery, DeliveryState, Settlement, SharedStore, WorkerId};
use mcp_taskd_core::task::Policy;
use mcp_taskd_core::task::schedule::Chance;
use tokio::time::Instant;

use super::message;
use super::post::Post;
use super::sink::Sink;
use super::verdict::{Answer, Outcome, judge, settle};

/// How often a store that does not answer is told of the end of an attempt. Then the delivery is given back, and made again.
const SETTLE_ATTEMPTS: u32 = 5;

/// What an attempt needs.
#[derive(Clone)]
pub(super) struct Attempt {
    pub(super) worker: WorkerId,
    pub(super) sink: Arc<Sink>,
    pub(super) store: SharedStore,
    pub(super) deliveries: Arc<dyn Deliveries>,
    pub(super) post: Arc<dyn Post>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) policy: Policy,
}

/// What became of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) task_id: Arc<str>,
    pub(super) outcome: Outcome,
    /// How the delivery stands now, as far as that is known.
    pub(super) left: Option<DeliveryState>,
    pub(super) took: Duration,
}

impl Attempt {
    /// Delivers.
    pub(super) async fn run(self, delivery: Delivery) -> Ended {
        let started = Instant::now();
        let task_id = Arc::clone(&delivery.task_id);
        let ended = |outcome, left| Ended { task_id, outcome, left, took: started.elapsed() };
        let answer = match self.store.find_task(&delivery.task_id, None, None).await {
            Ok(Some(task)) => {
                let message = message::write(&delivery, task, &self.policy);
                self.post.post(&self.sink, &message).await
            }
            // It was pruned, and its deliveries with it.
            Ok(None) => return ended(Outcome::Stale, None),
            // What was not asked is given back by the courier, and counts for nothing.
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, sink = self.sink.name, "a delivery's task cannot be read");
                return ended(Outcome::Stale, None);
            }
            Err(error) => Answer::Failed(format!("the task cannot be read: {error}")),
        };
        let chance = Chance::new(fastrand::f64());
        let settlement = settle(&delivery, &answer, self.clock.now_ms(), self.policy.poll_interval_ms, chance);
        let outcome = judge(&answer);
        if let Some(error) = &settlement.error {
            let sink = &self.sink.name;
            tracing::info!(sink, task.id = %settlement.task_id, outcome = outcome.as_str(), error, "an event was not delivered");
        }
        match self.write(&settlement).await {
            Some(Some(left)) => ended(outcome, Some(left)),
            Some(None) => ended(Outcome::Stale, None),
            None => ended(outcome, None),
        }
    }

    /// Writes how it ended. The same write may be repeated: one that took effect makes the repeat stale.
    async fn write(&self, settlement: &Settlement) -> Option<Option<DeliveryState>> {
        for attempt in 0..SETTLE_ATTEMPTS {
            match self.deliveries.settle_delivery(&self.worker, settlement).await {
                Ok(left) => return Some(left),
                Err(error) => {
                    tracing::warn!(%error, sink = self.sink.name, "the end of a delivery cannot be written");
                    let pause = Duration::from_millis(100 << attempt);
                    tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64() / 4.0)).await;
                }
            }
        }
        None
    }
}
